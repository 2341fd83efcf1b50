// Detection delays, from the idle time-out to the detection: a histogram, and a line at the guarantee.

import { byId, svgElement, syncChildren, setText } from "./dom.js";
import { count, duration, isNumber, milliseconds, percent, plural } from "./text.js";

const RECENT_MS = 300_000;
const WIDTH = 400;
const HEIGHT = 130;
const LABEL_HEIGHT = 18;
const MIN_BAR_HEIGHT = 2;

export class Delays {
  #guarantee = null; // seconds: one tick
  #recent = false;
  #samples = []; // {at, counts}, of at most five minutes
  #latest = null;

  constructor() {
    for (const radio of document.querySelectorAll("input[name=delays]")) {
      if (radio.value === "start") radio.checked = true;
      radio.addEventListener("change", () => {
        this.#recent = radio.value === "recent";
        this.#draw();
      });
    }
  }

  begin(hello) {
    this.#guarantee = hello.tick_s ?? null;
    this.#samples = [];
  }

  update(sample) {
    const { delays, at_ms: at } = sample;
    if (!delays?.counts?.length) return;
    const last = this.#samples.at(-1);
    // A replaced worker counts from zero again, so older samples cannot be compared.
    if (last && delays.counts.some((value, i) => value < last.counts[i])) this.#samples = [];
    this.#samples.push({ at, counts: delays.counts });
    while (this.#samples.length > 1 && this.#samples[1].at <= at - RECENT_MS) this.#samples.shift();
    this.#latest = delays;
    this.#draw();
  }

  #counts() {
    if (!this.#recent) return this.#latest.counts;
    const first = this.#samples[0].counts;
    return this.#latest.counts.map((value, i) => value - first[i]);
  }

  #draw() {
    if (!this.#latest) return;
    const counts = this.#counts();
    const { bounds } = this.#latest;
    const total = counts.reduce((sum, value) => sum + value, 0);
    const largest = Math.max(1, ...counts);
    const width = WIDTH / counts.length;
    const bars = counts.map((value, index) => ({ value, index, from: bounds[index - 1] ?? 0, to: bounds[index] }));
    syncChildren(byId("delay-bars"), bars, ({ index }) => index, newBar, (node, bar) => {
      const height = bar.value ? Math.max(MIN_BAR_HEIGHT, ((HEIGHT - LABEL_HEIGHT - 14) * bar.value) / largest) : 0;
      const [shape, name, title] = node.children;
      setAttributes(shape, { x: bar.index * width + 1.5, width: width - 3, y: HEIGHT - LABEL_HEIGHT - height, height });
      setAttributes(name, { x: (bar.index + 0.5) * width, y: HEIGHT - 5 });
      shape.dataset.late = isNumber(this.#guarantee) && bar.from >= this.#guarantee;
      setText(name, isNumber(bar.to) ? formatBound(bar.to) : "more");
      setText(title, `${range(bar)}: ${plural(bar.value, "session")}`);
    });
    this.#drawGuarantee(bounds, width);
    this.#showSummary(counts, bounds, total);
  }

  #drawGuarantee(bounds, width) {
    const line = byId("delay-guarantee");
    line.toggleAttribute("hidden", !isNumber(this.#guarantee));
    if (!isNumber(this.#guarantee)) return;
    const at = barPosition(bounds, this.#guarantee) * width;
    setAttributes(line.firstElementChild, { x1: at, x2: at, y1: 4, y2: HEIGHT - LABEL_HEIGHT });
    const right = at > WIDTH * 0.7;
    setAttributes(line.lastElementChild, { x: right ? at - 5 : at + 5, y: 14, "text-anchor": right ? "end" : "start" });
    setText(line.lastElementChild, `guarantee: ${formatBound(this.#guarantee)} s`);
  }

  #showSummary(counts, bounds, total) {
    const inTime = bounds.reduce((sum, bound, i) => sum + (bound <= this.#guarantee + 1e-9 ? counts[i] : 0), 0);
    const since = this.#recent ? (this.#samples.at(-1).at - this.#samples[0].at) / 1000 : null;
    const window = since === null ? "" : ` in ${since > 299 ? "5 min" : duration(since)}`;
    const text = total
      ? `${plural(total, "silent session")} detected${window}; within a tick ${percent(inTime / total)}; half within ${quantile(counts, bounds, 0.5)}`
      : `no session went silent${window}`;
    setText(byId("delay-summary"), text);
    byId("delay-chart").setAttribute("aria-label", `Detection delay: ${text}.`);
  }
}

function newBar() {
  return svgElement("g", { class: "delay-bar" }, svgElement("rect", {}), svgElement("text", {}), svgElement("title"));
}

function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, typeof value === "number" ? Number(value.toFixed(2)) : value);
  }
}

/** The position of a value on the axis, in bar widths. */
function barPosition(bounds, value) {
  const index = bounds.findIndex((bound) => value <= bound + 1e-9);
  if (index < 0) return bounds.length;
  const low = bounds[index - 1] ?? 0;
  return index + (value - low) / (bounds[index] - low);
}

function formatBound(seconds) {
  return `${Number(seconds.toPrecision(3))}`.replace(/^0\./, ".");
}

function range({ from, to }) {
  return isNumber(to) ? `${milliseconds(from)} to ${milliseconds(to)} after the time-out` : `more than ${milliseconds(from)}`;
}

/** The bound below which at least this fraction of all values lie. */
function quantile(counts, bounds, fraction) {
  const total = counts.reduce((sum, value) => sum + value, 0);
  let seen = 0;
  const index = counts.findIndex((value) => (seen += value) >= fraction * total);
  return index < bounds.length ? milliseconds(bounds[index]) : `more than ${milliseconds(bounds.at(-1))}`;
}
