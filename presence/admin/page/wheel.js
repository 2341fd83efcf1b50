// The wheel on the page: animates it, handles pointer and keys, and describes it in text.

import { byId, element, syncChildren, setText, setVisible } from "./dom.js";
import { Palette, paint, radii } from "./paint.js";
import { Ring } from "./ring.js";
import { count, duration, plural } from "./text.js";

const HAND_GLOW_S = 0.7;
const TABLE_ROWS = 16;

export class WheelView {
  #ring = new Ring();
  #canvas = byId("wheel");
  #clock;
  #palette = null;
  #selectedWorker = "all";
  #pointedDueS = null; // seconds until the pointed slot is due; the pointer keeps its position while the wheel turns
  #marked = []; // {node, due}: the sessions of the explained user; due in Unix seconds
  #workers = [];
  #expiredAt = -Infinity;
  #nextFullKey = null;
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
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
      this.#animate();
    }).observe(this.#canvas);
    byId("wheel-worker").addEventListener("change", (event) => {
      this.#selectedWorker = event.target.value;
      this.#ring.clear();
    });
    this.#addListeners();
  }

  /** Show a sample. */
  update(sample) {
    this.#workers = sample.workers ?? [];
    this.#updateWorkerChoice(this.#workers);
    const worker = this.#workers.find((each) => String(each.worker) === this.#selectedWorker);
    const wheel = this.#selectedWorker === "all" ? sample.wheel : worker?.wheel;
    if (!wheel?.sizes?.length) {
      this.#ring.clear();
    } else this.#ring.update(wheel, sample.at_ms / 1000);
    this.#showSummary();
    this.#animate();
    if (this.#reducedMotion.matches) this.#draw();
  }

  /** Mark the slots of sessions, `{node, due}`, due in Unix seconds; sessions of other machines have no slot here. */
  mark(sessions) {
    this.#marked = sessions;
    this.#draw();
  }

  #markedKeys(now) {
    const nodes = this.#workers
      .filter(({ worker }) => this.#selectedWorker === "all" || String(worker) === this.#selectedWorker)
      .map(({ node }) => node);
    const marked = this.#marked.filter(({ node }) => nodes.includes(node));
    return marked.map(({ due }) => this.#ring.segmentAt(due - now, now)?.key);
  }

  #now() {
    return this.#clock.now() / 1000;
  }

  #updateWorkerChoice(workers) {
    const select = byId("wheel-worker");
    setVisible(select.parentElement, workers.length > 1);
    const choices = [{ worker: "all" }, ...workers];
    if (!choices.some(({ worker }) => String(worker) === this.#selectedWorker)) this.#selectedWorker = "all";
    const newOption = ({ worker }) =>
      element("option", { value: worker }, worker === "all" ? "all workers" : `worker ${worker}`);
    syncChildren(select, choices, ({ worker }) => worker, newOption, () => {});
    if (select.value !== this.#selectedWorker) select.value = this.#selectedWorker;
  }

  /** Redraw in each frame, while the wheel is visible and motion is not reduced. */
  #animate() {
    if (this.#frame || !this.#visible || this.#reducedMotion.matches) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
      this.#animate();
    });
  }

  #draw() {
    this.#size = this.#canvas.clientWidth;
    if (!this.#size) return;
    this.#palette ??= new Palette();
    const now = this.#now();
    const segments = this.#ring.segments(now, !this.#reducedMotion.matches);
    this.#detectExpiry(segments, now);
    const selected = this.#pointedDueS === null ? null : this.#ring.segmentAt(this.#pointedDueS, now);
    const handGlow = this.#reducedMotion.matches ? 0 : Math.max(0, 1 - (now - this.#expiredAt) / HAND_GLOW_S);
    const marked = this.#markedKeys(now);
    const scene = { segments, span: this.#ring.span, handGlow, marked, selected: selected?.key ?? null };
    paint(this.#canvas, this.#size, scene, this.#palette);
    this.#showSelection(selected);
  }

  /** Notice when a slot that has sessions passes the hand. */
  #detectExpiry(segments, now) {
    const next = segments.find(({ to }) => to > 0);
    if (this.#nextFullKey !== null && next && next.key > this.#nextFullKey) this.#expiredAt = now;
    this.#nextFullKey = next && next.size > 0 ? next.key : null;
  }

  #showSelection(selected) {
    if (selected) {
      setText(byId("wheel-figure"), count(selected.size));
      setText(byId("wheel-caption"), `due in ${duration(Math.max(0, selected.to), 1)}`);
      this.#canvas.setAttribute("aria-valuenow", Math.max(0, selected.to).toFixed(1));
      this.#canvas.setAttribute(
        "aria-valuetext",
        `${plural(Math.round(selected.size), "session")} due in ${duration(Math.max(0, selected.to), 1)}`,
      );
    } else {
      setText(byId("wheel-figure"), count(this.#ring.total));
      setText(byId("wheel-caption"), "sessions in the wheel");
    }
  }

  /** Update the text alternative of the picture, and the table. */
  #showSummary() {
    const now = this.#now();
    const segments = this.#ring.segments(now, false).filter(({ to }) => to > 0);
    const span = this.#ring.span;
    const near = Math.max(1, Math.round(span / 6));
    const soon = segments.filter(({ to }) => to <= near).reduce((sum, { size }) => sum + size, 0);
    const later = this.#ring.later ? `, ${count(this.#ring.later)} due later` : "";
    const text = `${count(soon)} due within ${duration(near)}${later}`;
    setText(byId("wheel-summary"), text);
    this.#canvas.setAttribute("aria-valuemax", span.toFixed(0));
    if (this.#pointedDueS === null) {
      this.#canvas.setAttribute("aria-valuetext", `${plural(this.#ring.total, "session")}, ${text}`);
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
    const newRow = ({ row }) =>
      element("tr", {}, element("td", {}, `${(row * width).toFixed(1)} to ${((row + 1) * width).toFixed(1)} s`), element("td"));
    const update = (node, { size }) => setText(node.lastElementChild, count(size));
    syncChildren(byId("wheel-rows"), rows, ({ row }) => `${row}/${width}`, newRow, update);
  }

  #addListeners() {
    const canvas = this.#canvas;
    const point = (event) => {
      this.#pointedDueS = this.#dueAt(event);
      this.#draw();
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "touch") return; // after a tap the selection stays
      this.#pointedDueS = null;
      this.#draw();
    });
    canvas.addEventListener("blur", () => (this.#pointedDueS = null));
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
      const { slotS, span } = this.#ring;
      const from = this.#pointedDueS ?? 0;
      let to = steps[event.key] ? from + steps[event.key] * slotS : null;
      if (event.key === "Home") to = slotS / 2;
      if (event.key === "End") to = span - slotS / 2;
      if (event.key === "Escape") this.#pointedDueS = null;
      if (to === null) return;
      event.preventDefault();
      this.#pointedDueS = Math.max(slotS / 2, Math.min(span - slotS / 2, to));
      this.#draw();
    });
  }

  /** Seconds until the slot below the pointer is due; null if there is none. */
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
