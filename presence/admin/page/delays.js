// How long after its idle time-out each silence was told: bars, and where the promise ends.

import { byId, drawing, keep, say } from "./dom.js";
import { count, duration, isNumber, milliseconds, percent, several } from "./text.js";

const RECENT_MS = 300_000;
const WIDTH = 400;
const HEIGHT = 130;
const FOOT = 18;
const LEAST = 2;

export class Delays {
  #promise = null; // seconds: one tick
  #recent = false;
  #samples = []; // {at, counts}, as of this page's life, five minutes at most
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
    this.#promise = hello.tick_s ?? null;
    this.#samples = [];
  }

  update(sample) {
    const { delays, at_ms: at } = sample;
    if (!delays?.counts?.length) return;
    const last = this.#samples.at(-1);
    // A worker that was replaced counts from zero again: what was before cannot be compared.
    if (last && delays.counts.some((value, i) => value < last.counts[i])) this.#samples = [];
    this.#samples.push({ at, counts: delays.counts });
    while (this.#samples.length > 1 && this.#samples[1].at <= at - RECENT_MS) this.#samples.shift();
    this.#latest = delays;
    this.#draw();
  }

  #counts() {
    if (!this.#recent) return this.#latest.counts;
    const before = this.#samples[0].counts;
    return this.#latest.counts.map((value, i) => value - before[i]);
  }

  #draw() {
    if (!this.#latest) return;
    const counts = this.#counts();
    const { bounds } = this.#latest;
    const total = counts.reduce((sum, value) => sum + value, 0);
    const largest = Math.max(1, ...counts);
    const width = WIDTH / counts.length;
    const bars = counts.map((value, index) => ({ value, index, from: bounds[index - 1] ?? 0, to: bounds[index] }));
    keep(byId("delay-bars"), bars, ({ index }) => index, newBar, (node, bar) => {
      const height = bar.value ? Math.max(LEAST, ((HEIGHT - FOOT - 14) * bar.value) / largest) : 0;
      const [shape, name, title] = node.children;
      place(shape, { x: bar.index * width + 1.5, width: width - 3, y: HEIGHT - FOOT - height, height });
      place(name, { x: (bar.index + 0.5) * width, y: HEIGHT - 5 });
      shape.dataset.late = isNumber(this.#promise) && bar.from >= this.#promise;
      say(name, isNumber(bar.to) ? edge(bar.to) : "more");
      say(title, `${range(bar)}: ${several(bar.value, "session")}`);
    });
    this.#drawPromise(bounds, width);
    this.#tell(counts, bounds, total);
  }

  #drawPromise(bounds, width) {
    const line = byId("delay-promise");
    line.toggleAttribute("hidden", !isNumber(this.#promise));
    if (!isNumber(this.#promise)) return;
    const at = place01(bounds, this.#promise) * width;
    place(line.firstElementChild, { x1: at, x2: at, y1: 4, y2: HEIGHT - FOOT });
    const right = at > WIDTH * 0.7;
    place(line.lastElementChild, { x: right ? at - 5 : at + 5, y: 14, "text-anchor": right ? "end" : "start" });
    say(line.lastElementChild, `guarantee: ${edge(this.#promise)} s`);
  }

  #tell(counts, bounds, total) {
    const kept = bounds.reduce((sum, bound, i) => sum + (bound <= this.#promise + 1e-9 ? counts[i] : 0), 0);
    const since = this.#recent ? (this.#samples.at(-1).at - this.#samples[0].at) / 1000 : null;
    const window = since === null ? "" : ` in ${since > 299 ? "5 min" : duration(since)}`;
    const text = total
      ? `${several(total, "silent session")} detected${window}; within a tick ${percent(kept / total)}; half within ${quantile(counts, bounds, 0.5)}`
      : `no session went silent${window}`;
    say(byId("delay-summary"), text);
    byId("delay-chart").setAttribute("aria-label", `Detection delay: ${text}.`);
  }
}

function newBar() {
  return drawing("g", { class: "delay-bar" }, drawing("rect", {}), drawing("text", {}), drawing("title"));
}

function place(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, typeof value === "number" ? Number(value.toFixed(2)) : value);
  }
}

/** Where a value stands among bars of equal width, in bars. */
function place01(bounds, value) {
  const index = bounds.findIndex((bound) => value <= bound + 1e-9);
  if (index < 0) return bounds.length;
  const low = bounds[index - 1] ?? 0;
  return index + (value - low) / (bounds[index] - low);
}

function edge(seconds) {
  return `${Number(seconds.toPrecision(3))}`.replace(/^0\./, ".");
}

function range({ from, to }) {
  return isNumber(to) ? `${milliseconds(from)} to ${milliseconds(to)} after the time-out` : `more than ${milliseconds(from)}`;
}

/** The bound below which at least `part` of all lie. */
function quantile(counts, bounds, part) {
  const total = counts.reduce((sum, value) => sum + value, 0);
  let seen = 0;
  const index = counts.findIndex((value) => (seen += value) >= part * total);
  return index < bounds.length ? milliseconds(bounds[index]) : `more than ${milliseconds(bounds.at(-1))}`;
}
