// Values over time: three charts with one cursor, drawn by uPlot (see vendor/).

import { byId, themeColour, element, setText } from "./dom.js";
import { count, isNumber, rate, timeOfDay } from "./text.js";

const SHORT = { points: 600, stepMs: 1000 };
const LONGEST_STEP_MS = 6000; // while nobody looks, the server takes a point every five seconds
const LONG = { points: 1440, stepMs: 60_000 };
const ONLINE = 1;
const PACKETS = 4;
const CAME = 5;
const WENT = 6;
const LOGINS = 7;
const DESCRIPTION_INTERVAL_MS = 10_000;

// column: index in a point; `format` formats a value; `fill`: the area below is tinted
const CHARTS = [
  {
    id: "chart-online",
    title: "users online",
    lines: [{ label: "online", column: ONLINE, tone: "fresh", fill: true }],
    format: count,
    whole: true,
  },
  { id: "chart-packets", title: "packets per second", lines: [{ label: "packets", column: PACKETS, tone: "blue", fill: true }], format: rate },
  {
    id: "chart-changes",
    title: "logins, users who came online, users who went offline, per second",
    lines: [
      { label: "logins", column: LOGINS, tone: "muted", dash: [3, 3] },
      { label: "online", column: CAME, tone: "fresh" },
      { label: "offline", column: WENT, tone: "ageing" },
    ],
    format: rate,
  },
];

export class Charts {
  #histories = { short: [], long: [] };
  #range = "short";
  #plots = [];
  #describedAt = 0;

  constructor() {
    for (const radio of document.querySelectorAll("input[name=range]")) {
      if (radio.value === this.#range) radio.checked = true; // browsers restore an earlier choice
      radio.addEventListener("change", () => {
        this.#range = radio.value;
        this.#fill();
      });
    }
    document.addEventListener("themechange", () => this.#rebuild());
    const observer = new ResizeObserver(() => this.#resize());
    for (const { id } of CHARTS) observer.observe(byId(id));
  }

  /** Restart with the histories of a `hello`. */
  begin(hello) {
    this.#histories = { short: [...(hello.history?.points ?? [])], long: [...(hello.long_history?.points ?? [])] };
    this.#rebuild();
  }

  /** Add a sample's point. */
  add({ point }) {
    append(this.#histories.short, point, SHORT);
    const last = this.#histories.long.at(-1);
    if (!last || point[0] < last[0] || point[0] - last[0] >= LONG.stepMs) append(this.#histories.long, point, LONG);
    this.#fill();
  }

  #columns(chart) {
    const history = this.#histories[this.#range];
    const times = history.map((point) => point[0] / 1000);
    return [times, ...chart.lines.map(({ column }) => history.map((point) => point[column] ?? null))];
  }

  #fill() {
    if (!this.#plots.length) this.#rebuild();
    const describe = performance.now() - this.#describedAt > DESCRIPTION_INTERVAL_MS;
    if (describe) this.#describedAt = performance.now();
    CHARTS.forEach((chart, index) => {
      const columns = this.#columns(chart);
      this.#plots[index].setData(columns);
      if (describe) byId(chart.id).setAttribute("aria-label", description(chart, columns, this.#range));
      if (this.#plots[index].cursor.idx === null) showValues(chart, columns, columns[0].length - 1);
    });
  }

  #rebuild() {
    for (const plot of this.#plots) plot.destroy();
    this.#plots = CHARTS.map((chart) => {
      const container = byId(chart.id);
      const columns = this.#columns(chart);
      return new globalThis.uPlot(options(chart, container), columns, container);
    });
    this.#describedAt = 0;
  }

  #resize() {
    CHARTS.forEach(({ id }, index) => {
      const { clientWidth: width, clientHeight: height } = byId(id);
      const plot = this.#plots[index];
      if (plot && width && (plot.width !== width || plot.height !== height)) plot.setSize({ width, height });
    });
  }
}

/** Add a point, and before it an empty one if some are missing. After the server's clock was set back it replaces later ones. */
export function append(history, point, { points, stepMs }) {
  while (history.length && history.at(-1)[0] >= point[0]) history.pop();
  const last = history.at(-1);
  if (last && point[0] - last[0] > Math.max(3 * stepMs, LONGEST_STEP_MS)) history.push([last[0] + stepMs]);
  history.push(point);
  const earliest = point[0] - points * stepMs;
  while (history.length && history[0][0] < earliest) history.shift();
}

function options(chart, container) {
  const [muted, line] = [themeColour("muted"), themeColour("line")];
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  return {
    width: container.clientWidth || 300,
    height: container.clientHeight || 120,
    padding: [8, 26, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "time" },
      y: false,
      drag: { x: false, y: false },
      points: { size: 7 },
    },
    hooks: { setCursor: [(plot) => showValues(chart, plot.data, plot.cursor.idx ?? plot.data[0].length - 1, plot)] },
    scales: { y: { range: (_plot, low, high) => rangeFromZero(low, high) } },
    axes: [
      { ...axis, size: 26, gap: 4, values: (_plot, splits) => splits.map(timeLabel), space: 70, grid: { show: false } },
      {
        ...axis,
        size: 52,
        gap: 6,
        space: 30,
        incrs: chart.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] : undefined,
        values: (_plot, splits) => splits.map((value) => compact(value)),
      },
    ],
    series: [{}, ...chart.lines.map(series)],
  };
}

function series({ label: name, tone, fill, dash }) {
  const stroke = themeColour(tone);
  const tint = fill ? stroke.replace(/^rgb\((.*)\)$/, "rgba($1, 0.13)") : undefined;
  return { label: name, stroke, width: 1.5, fill: tint, dash, points: { show: false } };
}

/** The range of an axis: from zero, with space above the highest value. */
function rangeFromZero(_low, high) {
  return [0, isNumber(high) && high > 0 ? high * 1.12 : 1];
}

function timeLabel(seconds) {
  return timeOfDay(seconds * 1000, { hour: "2-digit", minute: "2-digit", ...(seconds % 60 ? { second: "2-digit" } : {}) });
}

function compact(value) {
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  return value >= 1e4 ? `${Number((value / 1e3).toPrecision(3))}k` : `${Number(value.toPrecision(3))}`;
}

/** Show the values at an index of the history in the chart's heading. */
function showValues(chart, columns, index, plot) {
  if (index < 0) return;
  const node = byId(`${chart.id}-now`);
  if (!node.children.length) {
    node.append(element("span"), ...chart.lines.map(({ tone }) => element("span", chart.lines.length > 1 ? { class: "key", "data-tone": tone } : {})));
  }
  const [at, ...values] = node.children;
  setText(at, plot && plot.cursor.idx !== null ? `${timeOfDay(columns[0][index] * 1000)}  ` : "");
  chart.lines.forEach(({ label: name }, i) => {
    const value = chart.format(columns[i + 1][index] ?? null);
    setText(values[i], chart.lines.length > 1 ? `${name} ${value}` : value);
  });
}

function description(chart, columns, range) {
  const parts = chart.lines.map(({ label: name }, i) => {
    const values = columns[i + 1].filter(isNumber);
    if (!values.length) return `${name}: no values yet`;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return `${name}: now ${chart.format(values.at(-1))}, lowest ${chart.format(low)}, highest ${chart.format(high)}`;
  });
  return `${chart.title} over ${range === "short" ? "10 minutes" : "24 hours"}. ${parts.join(". ")}.`;
}
