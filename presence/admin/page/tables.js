// Nodes, this machine's workers, Redis, and the largest rooms.

import { bar, byId, element, syncChildren, setText, setBar, setVisible } from "./dom.js";
import { NO_VALUE, bytes, count, duration, isNumber, milliseconds, percent, escapeInvisible } from "./text.js";

const LOW_LEASE = 0.25; // of the longest one
const NEARLY_FULL = 0.85;
const MAX_LAG_SAMPLES = 60;
const READINESS = {
  ready: "ready",
  redis_away: "Redis unreachable",
  fenced: "declared dead, re-registering",
  draining: "draining",
  starting: "starting",
  no_answer: "no answer",
};

function field(name, ...content) {
  return element("div", { class: "field", "data-field": name }, element("dt", {}, name), element("dd", {}, ...content));
}

/** Set the text of a field of a row. */
function setField(row, name, text) {
  setText(row.querySelector(`[data-field="${name}"] .value`), text);
}

function value() {
  return element("span", { class: "value" });
}

function newRow(kind, fields) {
  const head = element("div", { class: "row-head" }, element("span", { class: "dot" }), element("strong"), element("span", { class: "row-note" }));
  const list = element("dl", {}, ...fields);
  return element("li", { class: "row", "data-kind": kind }, head, list);
}

function setHead(row, tone, name, note) {
  const [dot, title, rest] = row.firstElementChild.children;
  dot.dataset.tone = tone;
  setText(title, name);
  setText(rest, note);
}

/** Nodes that need attention before all others; otherwise in the server's order. */
export function troubledFirst(nodes) {
  const isFine = ({ status, readiness }) => Number(status === "alive" && readiness === "ready");
  return [...nodes].sort((a, b) => isFine(a) - isFine(b));
}

/** All nodes on the same Redis, with their leases. */
export class Nodes {
  #longestLeaseS = 1; // seen so far: a full bar

  update(sample) {
    const nodes = troubledFirst(sample.nodes ?? []);
    setVisible(byId("nodes-empty"), !nodes.length);
    setText(byId("nodes-empty"), sample.nodes ? "no node has a lease" : "unknown: Redis does not answer");
    setText(byId("nodes-count"), nodes.length ? count(nodes.length) : "");
    const here = new Set((sample.workers ?? []).map(({ node }) => node));
    for (const node of nodes) this.#longestLeaseS = Math.max(this.#longestLeaseS, node.lease_left_s ?? 0);
    syncChildren(byId("nodes"), nodes, ({ node }) => node, newNode, (row, node) => {
      const alive = node.status === "alive";
      const tone = !alive ? "bad" : node.readiness === "ready" ? "good" : "fair";
      const readiness = READINESS[node.readiness] ?? escapeInvisible(node.readiness ?? "");
      const state = alive ? readiness : `${node.status}${node.sweeper ? `, swept by ${escapeInvisible(node.sweeper)}` : ""}`;
      setHead(row, tone, escapeInvisible(node.node), [here.has(node.node) ? "here" : "", state].filter(Boolean).join(" · "));
      setField(row, "address", escapeInvisible(node.address ?? NO_VALUE));
      setField(row, "process", node.host ? `${node.pid ?? NO_VALUE}@${escapeInvisible(node.host)}` : NO_VALUE);
      setField(row, "sessions", count(node.sessions));
      setField(row, "share", percent(node.share));
      setBar(row.querySelector('[data-field="share"] .bar'), node.share);
      this.#setLease(row, node.lease_left_s);
    });
  }

  #setLease(row, leftS) {
    setField(row, "lease", !isNumber(leftS) ? "none" : leftS >= 0 ? `${leftS.toFixed(1)} s left` : `expired ${duration(-leftS)} ago`);
    const fraction = (leftS ?? 0) / this.#longestLeaseS;
    setBar(row.querySelector('[data-field="lease"] .bar'), fraction, fraction < LOW_LEASE ? "bad" : "");
  }
}

function newNode() {
  return newRow("node", [
    field("address", value()),
    field("process", value()),
    field("sessions", value()),
    field("share", value(), bar(0)),
    field("lease", value(), bar(0)),
  ]);
}

/** The worker processes of this machine. */
export class Workers {
  #lags = new Map(); // by pid: histograms of the loop lag in the last samples

  update(sample) {
    const workers = sample.workers ?? [];
    setText(byId("workers-count"), workers.length > 1 ? count(workers.length) : "");
    syncChildren(byId("workers"), workers, ({ worker }) => worker, newWorker, (row, worker) => {
      const answering = worker.answering !== false;
      const tone = !answering ? "bad" : worker.readiness === "ready" ? "good" : "fair";
      const state = answering ? (READINESS[worker.readiness] ?? escapeInvisible(worker.readiness ?? "")) : "no answer";
      const name = worker.worker ? `worker ${worker.worker}` : "the server";
      setHead(row, tone, name, [isNumber(worker.pid) ? `pid ${worker.pid}` : "", state].filter(Boolean).join(" · "));
      setField(row, "sessions", count(worker.sessions));
      setField(row, "connections", count(worker.connections));
      setField(row, "memory", bytes(worker.rss_bytes));
      const fraction = worker.open_fds / worker.max_fds;
      setField(row, "descriptors", isNumber(worker.max_fds) ? `${count(worker.open_fds)} of ${count(worker.max_fds)}` : count(worker.open_fds));
      setBar(row.querySelector('[data-field="descriptors"] .bar'), fraction, fraction > NEARLY_FULL ? "bad" : "");
      setField(row, "loop lag, 1 min", this.#lag(worker));
      setField(row, "outbox", count(worker.outbox));
    });
    const alive = new Set(workers.map(({ pid }) => pid));
    for (const pid of this.#lags.keys()) if (!alive.has(pid)) this.#lags.delete(pid);
  }

  /** The bound that no lag of the last minute exceeded. */
  #lag({ pid, loop_lag: lag }) {
    if (!lag) return NO_VALUE;
    const samples = this.#lags.get(pid) ?? [];
    this.#lags.set(pid, samples);
    samples.push(lag.counts);
    if (samples.length > MAX_LAG_SAMPLES) samples.shift();
    const last = lag.counts.findLastIndex((value, i) => value > samples[0][i]);
    if (last < 0) return NO_VALUE;
    return last < lag.bounds.length ? `≤ ${milliseconds(lag.bounds[last])}` : `> ${milliseconds(lag.bounds.at(-1))}`;
  }
}

function newWorker() {
  return newRow("worker", [
    field("sessions", value()),
    field("connections", value()),
    field("memory", value()),
    field("descriptors", value(), bar(0)),
    field("loop lag, 1 min", value()),
    field("outbox", value()),
  ]);
}

const REDIS_FIELDS = ["ping", "memory", "policy", "append-only file", "clients", "replicas", "shards", "evicted keys", "version"];

/** Show the health of Redis. */
export function showRedis(redis) {
  const list = byId("redis");
  if (!list.children.length) {
    list.append(...REDIS_FIELDS.map((name) => (name === "memory" ? field(name, value(), bar(0)) : field(name, value()))));
  }
  const isDown = redis?.status !== "ok";
  const head = byId("redis-state");
  head.dataset.tone = !redis ? "" : isDown ? "bad" : "good";
  setText(head, !redis ? "not read yet" : isDown ? "unreachable" : "ok");
  setVisible(byId("redis-error"), Boolean(redis?.error));
  setText(byId("redis-error"), escapeInvisible(redis?.error ?? ""));
  if (!redis) return;
  const maxBytes = redis.maxmemory_bytes;
  const fraction = maxBytes ? redis.used_memory_bytes / maxBytes : 0;
  setField(list, "ping", isNumber(redis.ping_ms) ? milliseconds(redis.ping_ms / 1000) : NO_VALUE);
  setField(list, "memory", `${bytes(redis.used_memory_bytes)}${maxBytes ? ` of ${bytes(maxBytes)}` : isNumber(redis.used_memory_bytes) ? ", no limit" : ""}${redis.servers > 1 ? ", fullest server" : ""}`);
  const memoryBar = list.querySelector('[data-field="memory"] .bar');
  setVisible(memoryBar, Boolean(maxBytes));
  setBar(memoryBar, fraction, fraction > NEARLY_FULL ? "bad" : "");
  setField(list, "policy", escapeInvisible(redis.maxmemory_policy ?? NO_VALUE));
  setField(list, "append-only file", redis.aof === true ? "on" : redis.aof === false ? "off" : NO_VALUE);
  setField(list, "clients", count(redis.clients));
  setField(list, "replicas", count(redis.replicas));
  setField(list, "shards", redis.servers > 1 ? `${count(redis.shards)} on ${count(redis.servers)} servers` : count(redis.shards));
  setField(list, "evicted keys", count(redis.evicted_keys));
  setField(list, "version", escapeInvisible([redis.server, redis.version].filter(Boolean).join(" ") || NO_VALUE));
}

/** Show the rooms with the most members; without the setting `rooms` there is no panel. */
export function showRooms(rooms) {
  setVisible(byId("rooms-area"), rooms !== undefined);
  setVisible(byId("rooms-empty"), !rooms?.length);
  setText(byId("rooms-empty"), rooms ? "no room has members" : "unknown: Redis does not answer");
  const most = Math.max(1, ...(rooms ?? []).map((room) => room.count));
  syncChildren(byId("rooms"), rooms ?? [], ({ name }) => name, newRoom, (row, room) => {
    const [name, members, share] = row.children;
    setText(name, escapeInvisible(room.name));
    setText(members, count(room.count));
    setBar(share, room.count / most);
  });
}

function newRoom() {
  return element("li", {}, element("bdi"), value(), bar(0));
}
