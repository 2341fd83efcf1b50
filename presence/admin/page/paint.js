// Paints a ring of slots on a canvas. Angles run clockwise from the hand at twelve o'clock.

import { themeColour } from "./dom.js";

const TURN = 2 * Math.PI;
const TOP = -Math.PI / 2;
const SHADES = 48;
const LABEL_PX = 11;
const GAP_PX = 1.5;
const MIN_LENGTH_PX = 3; // so that a single session beside a thousand is visible

/** The colours of the present theme. */
export class Palette {
  constructor() {
    for (const name of ["track", "line", "text", "muted", "fresh", "ageing", "ending", "panel", "mark"]) {
      this[name] = themeColour(name);
    }
    const stops = [this.ending, this.ageing, this.fresh, this.fresh].map(channels);
    this.shades = Array.from({ length: SHADES }, (_, index) => {
      const place = (index / (SHADES - 1)) * (stops.length - 1);
      const low = Math.min(stops.length - 2, Math.floor(place));
      const mixed = stops[low].map((value, i) => value + (stops[low + 1][i] - value) * (place - low));
      return `rgb(${mixed.map(Math.round).join(" ")})`;
    });
  }

  /** The colour of a slot that is due after a fraction of a turn: 0 is now, 1 a full turn ahead. */
  shade(fraction) {
    const index = Math.round(Math.min(1, Math.max(0, fraction * 1.6)) * (SHADES - 1));
    return this.shades[index];
  }
}

function channels(rgb) {
  return rgb.match(/[\d.]+/g).slice(0, 3).map(Number);
}

/** Radii in CSS pixels of a wheel that fills a square of `size`. */
export function radii(size) {
  const outer = size / 2 - 18;
  return { inner: outer * 0.6, outer };
}

/** Seconds between two labels, so that there are about eight. */
export function labelStep(span) {
  return [0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600].find((step) => span / step <= 9) ?? 7200;
}

/**
 * Args: `scene` = {segments, span, selected: key or null, marked: keys, handGlow: 0 to 1, the brightness of the
 * hand after sessions expired}.
 */
export function paint(canvas, size, scene, palette) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(size * ratio)) {
    canvas.width = canvas.height = Math.round(size * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size, size);
  context.translate(size / 2, size / 2);
  const { inner, outer } = radii(size);
  paintTrack(context, inner, outer, palette);
  paintLabels(context, outer, scene.span, palette);
  const largest = Math.max(1, ...scene.segments.map((segment) => segment.size));
  for (const segment of scene.segments) {
    paintSegment(context, segment, { inner, outer, largest }, scene, palette);
  }
  paintHand(context, inner, outer, scene.handGlow, palette);
}

function paintTrack(context, inner, outer, palette) {
  context.beginPath();
  context.arc(0, 0, outer, 0, TURN);
  context.arc(0, 0, inner, TURN, 0, true);
  context.fillStyle = palette.track;
  context.fill();
}

function paintLabels(context, outer, span, palette) {
  const step = labelStep(span);
  context.font = `${LABEL_PX}px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let due = step; due <= span - step / 2; due += step) {
    const angle = TOP - (due / span) * TURN;
    const [x, y] = [Math.cos(angle), Math.sin(angle)];
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x * (outer + 1), y * (outer + 1));
    context.lineTo(x * (outer + 4), y * (outer + 4));
    context.stroke();
    context.fillStyle = palette.muted;
    context.fillText(due < 120 ? `${due}` : `${due / 60}m`, x * (outer + 12), y * (outer + 11));
  }
}

function sector(context, segment, span, from, to) {
  // The gap between neighbours has the same width at every radius.
  const start = TOP - (segment.to / span) * TURN;
  const end = TOP - (segment.from / span) * TURN;
  const [outerGap, innerGap] = [GAP_PX / 2 / to, GAP_PX / 2 / from];
  context.beginPath();
  context.arc(0, 0, to, start + outerGap, Math.max(start + outerGap, end - outerGap));
  context.arc(0, 0, from, Math.max(start + innerGap, end - innerGap), start + innerGap, true);
  context.closePath();
}

function paintSegment(context, segment, { inner, outer, largest }, scene, palette) {
  if (segment.from >= scene.span) return;
  if (segment.key === scene.selected) {
    sector(context, segment, scene.span, inner, outer);
    context.fillStyle = palette.line;
    context.fill();
  }
  if (segment.size > 0) {
    const length = Math.max(MIN_LENGTH_PX, ((outer - inner - 2) * segment.size) / largest);
    sector(context, segment, scene.span, inner, inner + length);
    context.fillStyle = palette.shade((segment.from + segment.to) / 2 / scene.span);
    context.fill();
  }
  if (scene.marked.includes(segment.key)) paintMarker(context, segment, scene.span, { inner, outer }, palette);
}

function paintMarker(context, segment, span, { inner, outer }, palette) {
  const angle = TOP - ((segment.from + segment.to) / 2 / span) * TURN;
  const [x, y] = [Math.cos(angle), Math.sin(angle)];
  context.strokeStyle = palette.mark;
  context.fillStyle = palette.mark;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x * (inner - 9), y * (inner - 9));
  context.lineTo(x * outer, y * outer);
  context.stroke();
  context.beginPath();
  context.arc(x * (inner - 9), y * (inner - 9), 5, 0, TURN);
  context.fill();
}

function paintHand(context, inner, outer, handGlow, palette) {
  if (handGlow > 0) {
    const width = 0.02 + 0.1 * (1 - handGlow);
    context.globalAlpha = handGlow * 0.5;
    context.fillStyle = palette.ending;
    context.beginPath();
    context.arc(0, 0, outer, TOP - width, TOP + width);
    context.arc(0, 0, inner, TOP + width, TOP - width, true);
    context.fill();
    context.globalAlpha = 1;
  }
  context.strokeStyle = handGlow > 0 ? palette.ending : palette.text;
  context.fillStyle = context.strokeStyle;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(0, -inner + 10);
  context.lineTo(0, -outer - 6);
  context.stroke();
  context.beginPath();
  context.moveTo(-6, -outer - 14);
  context.lineTo(6, -outer - 14);
  context.lineTo(0, -outer - 4);
  context.closePath();
  context.fill();
}
