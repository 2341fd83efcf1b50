// The wheel on the page: turns it, answers pointer and keys, and tells it in words.

import { byId, element, keep, say, show } from "./dom.js";
import { Palette, paint, radii } from "./paint.js";
import { Ring } from "./ring.js";
import { count, duration, several } from "./text.js";

const SWEPT_S = 0.7;
const TABLE_ROWS = 16;

export class WheelView {
  #ring = new Ring();
  #canvas = byId("wheel");
  #clock;
  #palette = null;
  #worker = "all";
  #pointed = null; // seconds until due, of the slot that is pointed at: it stays there while the wheel turns
  #marked = []; // {node, due}: the sessions of the user who was searched; due in Unix seconds
  #workers = [];
  #sweptAt = -Infinity;
  #lastFull = null;
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  #visible = true;
  #size = 0;
  #frame = 0;

  constructor(clock) {
    this.#clock = clock;
    document.addEventListener("themechange", () => {
      this.#palette = null;
      this.#draw();
    });
    new ResizeObserver(() => this.#draw()).observe(this.#canvas);
    new IntersectionObserver(([entry]) => {
      this.#visible = entry.isIntersecting;
      this.#turn();
    }).observe(this.#canvas);
    byId("wheel-worker").addEventListener("change", (event) => {
      this.#worker = event.target.value;
      this.#ring.clear();
    });
    this.#listen();
  }

  /** Show a sample. */
  update(sample) {
    this.#workers = sample.workers ?? [];
    this.#offerWorkers(this.#workers);
    const worker = this.#workers.find((each) => String(each.worker) === this.#worker);
    const wheel = this.#worker === "all" ? sample.wheel : worker?.wheel;
    if (!wheel?.sizes?.length) {
      this.#ring.clear();
    } else this.#ring.absorb(wheel, sample.at_ms / 1000);
    this.#describe();
    this.#turn();
    if (this.#still.matches) this.#draw();
  }

  /** Mark the slots of these sessions, `{node, due}`, due in Unix seconds; those of other machines stand in none. */
  mark(sessions) {
    this.#marked = sessions;
    this.#draw();
  }

  #marks(now) {
    const nodes = this.#workers
      .filter(({ worker }) => this.#worker === "all" || String(worker) === this.#worker)
      .map(({ node }) => node);
    const here = this.#marked.filter(({ node }) => nodes.includes(node));
    return here.map(({ due }) => this.#ring.at(due - now, now)?.key);
  }

  #now() {
    return this.#clock.now() / 1000;
  }

  #offerWorkers(workers) {
    const select = byId("wheel-worker");
    show(select.parentElement, workers.length > 1);
    const choices = [{ worker: "all" }, ...workers];
    if (!choices.some(({ worker }) => String(worker) === this.#worker)) this.#worker = "all";
    const make = ({ worker }) =>
      element("option", { value: worker }, worker === "all" ? "all workers" : `worker ${worker}`);
    keep(select, choices, ({ worker }) => worker, make, () => {});
    if (select.value !== this.#worker) select.value = this.#worker;
  }

  /** Draw again and again, as long as somebody looks and may be shown motion. */
  #turn() {
    if (this.#frame || !this.#visible || this.#still.matches) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
      this.#turn();
    });
  }

  #draw() {
    this.#size = this.#canvas.clientWidth;
    if (!this.#size) return;
    this.#palette ??= new Palette();
    const now = this.#now();
    const segments = this.#ring.segments(now, !this.#still.matches);
    this.#noticeSweep(segments, now);
    const selected = this.#pointed === null ? null : this.#ring.at(this.#pointed, now);
    const swept = this.#still.matches ? 0 : Math.max(0, 1 - (now - this.#sweptAt) / SWEPT_S);
    const marked = this.#marks(now);
    const scene = { segments, span: this.#ring.span, swept, marked, selected: selected?.key ?? null };
    paint(this.#canvas, this.#size, scene, this.#palette);
    this.#tell(selected);
  }

  /** Whether a slot with somebody in it has just passed the hand. */
  #noticeSweep(segments, now) {
    const next = segments.find(({ to }) => to > 0);
    if (this.#lastFull !== null && next && next.key > this.#lastFull) this.#sweptAt = now;
    this.#lastFull = next && next.size > 0 ? next.key : null;
  }

  #tell(selected) {
    if (selected) {
      say(byId("wheel-figure"), count(selected.size));
      say(byId("wheel-caption"), `due in ${duration(Math.max(0, selected.to), 1)}`);
      this.#canvas.setAttribute("aria-valuenow", Math.max(0, selected.to).toFixed(1));
      this.#canvas.setAttribute(
        "aria-valuetext",
        `${several(Math.round(selected.size), "session")} due in ${duration(Math.max(0, selected.to), 1)}`,
      );
    } else {
      say(byId("wheel-figure"), count(this.#ring.total));
      say(byId("wheel-caption"), "sessions in the wheel");
    }
  }

  /** The text that stands for the picture, and its figures as a table. */
  #describe() {
    const now = this.#now();
    const segments = this.#ring.segments(now, false).filter(({ to }) => to > 0);
    const span = this.#ring.span;
    const near = Math.max(1, Math.round(span / 6));
    const soon = segments.filter(({ to }) => to <= near).reduce((sum, { size }) => sum + size, 0);
    const later = this.#ring.later ? `, ${count(this.#ring.later)} due later` : "";
    const text = `${count(soon)} due within ${duration(near)}${later}`;
    say(byId("wheel-summary"), text);
    this.#canvas.setAttribute("aria-valuemax", span.toFixed(0));
    if (this.#pointed === null) {
      this.#canvas.setAttribute("aria-valuetext", `${several(this.#ring.total, "session")}, ${text}`);
    }
    if (byId("wheel-table").open) this.#fillTable(segments, span);
  }

  #fillTable(segments, span) {
    const width = span / TABLE_ROWS;
    const rows = Array.from({ length: TABLE_ROWS }, (_, row) => ({
      row,
      size: segments
        .filter(({ to }) => Math.min(TABLE_ROWS - 1, Math.floor(Math.max(0, to - 1e-6) / width)) === row)
        .reduce((sum, { size }) => sum + size, 0),
    }));
    const make = ({ row }) =>
      element("tr", {}, element("td", {}, `${(row * width).toFixed(1)} to ${((row + 1) * width).toFixed(1)} s`), element("td"));
    const update = (node, { size }) => say(node.lastElementChild, count(size));
    keep(byId("wheel-rows"), rows, ({ row }) => `${row}/${width}`, make, update);
  }

  #listen() {
    const canvas = this.#canvas;
    const point = (event) => {
      this.#pointed = this.#dueAt(event);
      this.#draw();
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "touch") return; // a tap's answer stays
      this.#pointed = null;
      this.#draw();
    });
    canvas.addEventListener("blur", () => (this.#pointed = null));
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
      const { slotS, span } = this.#ring;
      const from = this.#pointed ?? 0;
      let to = steps[event.key] ? from + steps[event.key] * slotS : null;
      if (event.key === "Home") to = slotS / 2;
      if (event.key === "End") to = span - slotS / 2;
      if (event.key === "Escape") this.#pointed = null;
      if (to === null) return;
      event.preventDefault();
      this.#pointed = Math.max(slotS / 2, Math.min(span - slotS / 2, to));
      this.#draw();
    });
  }

  /** Seconds until the slot below the pointer is due; null: there is none. */
  #dueAt(event) {
    const box = this.#canvas.getBoundingClientRect();
    const x = event.clientX - box.left - box.width / 2;
    const y = event.clientY - box.top - box.height / 2;
    const { inner, outer } = radii(box.width);
    const radius = Math.hypot(x, y);
    if (radius < inner - 8 || radius > outer + 18) return null;
    const clockwise = (Math.atan2(x, -y) / (2 * Math.PI) + 1) % 1;
    return (1 - clockwise) * this.#ring.span;
  }
}
