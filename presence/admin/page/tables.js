// Nodes, this machine's workers, and Redis.

import { bar, byId, element, keep, say, setBar, show } from "./dom.js";
import { NOTHING, bytes, count, duration, isNumber, milliseconds, percent, visible } from "./text.js";

const LOW_LEASE = 0.25;
const NEARLY_FULL = 0.85;
const LAG_SAMPLES = 60;
const READINESS = {
  ready: "ready",
  redis_away: "Redis is away",
  fenced: "declared dead, re-registering",
  draining: "draining",
  starting: "starting",
  no_answer: "no answer",
};

function field(name, ...content) {
  return element("div", { class: "field", "data-field": name }, element("dt", {}, name), element("dd", {}, ...content));
}

/** Write the text of the field `name` of a row. */
function tell(row, name, text) {
  say(row.querySelector(`[data-field="${name}"] .value`), text);
}

function value() {
  return element("span", { class: "value" });
}

function card(title, fields) {
  const head = element("div", { class: "row-head" }, element("span", { class: "dot" }), element("strong"), element("span", { class: "row-note" }));
  const list = element("dl", {}, ...fields);
  return element("li", { class: "row", "data-kind": title }, head, list);
}

function setHead(row, tone, name, note) {
  const [dot, title, rest] = row.firstElementChild.children;
  dot.dataset.tone = tone;
  say(title, name);
  say(rest, note);
}

/** All nodes that share the Redis. Their leases run down between two samples. */
export class Nodes {
  #longest = 1; // seconds: a whole bar

  begin(hello) {
    this.#longest = hello.lease_s ?? 1;
  }

  update(sample) {
    const nodes = sample.nodes ?? [];
    show(byId("nodes-empty"), !nodes.length);
    say(byId("nodes-empty"), sample.nodes ? "no node has a lease" : "not known: Redis does not answer");
    say(byId("nodes-count"), nodes.length ? count(nodes.length) : "");
    const here = new Set((sample.workers ?? []).map(({ node }) => node));
    for (const node of nodes) this.#longest = Math.max(this.#longest, node.lease_left_s ?? 0);
    keep(byId("nodes"), nodes, ({ node }) => node, newNode, (row, node) => {
      const alive = node.status === "alive";
      const tone = !alive ? "bad" : node.readiness === "ready" ? "good" : "fair";
      const readiness = READINESS[node.readiness] ?? visible(node.readiness ?? "");
      const state = alive ? readiness : `${node.status}${node.sweeper ? `, swept by ${visible(node.sweeper)}` : ""}`;
      setHead(row, tone, visible(node.node), [here.has(node.node) ? "here" : "", state].filter(Boolean).join(" · "));
      tell(row, "address", visible(node.address ?? NOTHING));
      tell(row, "process", node.host ? `${node.pid ?? NOTHING}@${visible(node.host)}` : NOTHING);
      tell(row, "sessions", count(node.sessions));
      tell(row, "share", percent(node.share));
      setBar(row.querySelector('[data-field="share"] .bar'), node.share);
      this.#setLease(row, node.lease_left_s);
    });
  }

  #setLease(row, leftS) {
    tell(row, "lease", !isNumber(leftS) ? "none" : leftS >= 0 ? `${leftS.toFixed(1)} s left` : `expired ${duration(-leftS)} ago`);
    const part = (leftS ?? 0) / this.#longest;
    setBar(row.querySelector('[data-field="lease"] .bar'), part, part < LOW_LEASE ? "bad" : "");
  }
}

function newNode() {
  return card("node", [
    field("address", value()),
    field("process", value()),
    field("sessions", value()),
    field("share", value(), bar(0)),
    field("lease", value(), bar(0)),
  ]);
}

/** The worker processes that this page's own process asks. */
export class Workers {
  #lags = new Map(); // by process: the histograms of its loop's lag in the last samples

  update(sample) {
    const workers = sample.workers ?? [];
    say(byId("workers-count"), workers.length > 1 ? count(workers.length) : "");
    keep(byId("workers"), workers, ({ worker }) => worker, newWorker, (row, worker) => {
      const answering = worker.answering !== false;
      const tone = !answering ? "bad" : worker.readiness === "ready" ? "good" : "fair";
      const state = answering ? (READINESS[worker.readiness] ?? visible(worker.readiness ?? "")) : "no answer";
      const name = worker.worker ? `worker ${worker.worker}` : "the server";
      setHead(row, tone, name, [isNumber(worker.pid) ? `pid ${worker.pid}` : "", state].filter(Boolean).join(" · "));
      tell(row, "sessions", count(worker.sessions));
      tell(row, "connections", count(worker.connections));
      tell(row, "memory", bytes(worker.rss_bytes));
      const part = worker.open_fds / worker.max_fds;
      tell(row, "descriptors", isNumber(worker.max_fds) ? `${count(worker.open_fds)} of ${count(worker.max_fds)}` : count(worker.open_fds));
      setBar(row.querySelector('[data-field="descriptors"] .bar'), part, part > NEARLY_FULL ? "bad" : "");
      tell(row, "loop lag, 1 min", this.#lag(worker));
      tell(row, "outbox", count(worker.outbox));
    });
    const alive = new Set(workers.map(({ pid }) => pid));
    for (const pid of this.#lags.keys()) if (!alive.has(pid)) this.#lags.delete(pid);
  }

  /** The bound that no lag of the last minute was beyond. */
  #lag({ pid, loop_lag: lag }) {
    if (!lag) return NOTHING;
    const kept = this.#lags.get(pid) ?? [];
    this.#lags.set(pid, kept);
    kept.push(lag.counts);
    if (kept.length > LAG_SAMPLES) kept.shift();
    const place = lag.counts.findLastIndex((value, i) => value > kept[0][i]);
    if (place < 0) return NOTHING;
    return place < lag.bounds.length ? `≤ ${milliseconds(lag.bounds[place])}` : `> ${milliseconds(lag.bounds.at(-1))}`;
  }
}

function newWorker() {
  return card("worker", [
    field("sessions", value()),
    field("connections", value()),
    field("memory", value()),
    field("descriptors", value(), bar(0)),
    field("loop lag, 1 min", value()),
    field("outbox", value()),
  ]);
}

const REDIS_FIELDS = ["ping", "memory", "policy", "append-only file", "clients", "replicas", "shards", "evicted keys", "version"];

/** Health of Redis. */
export function showRedis(redis) {
  const list = byId("redis");
  if (!list.children.length) {
    list.append(...REDIS_FIELDS.map((name) => (name === "memory" ? field(name, value(), bar(0)) : field(name, value()))));
  }
  const away = redis?.status !== "ok";
  const head = byId("redis-state");
  head.dataset.tone = !redis ? "" : away ? "bad" : "good";
  say(head, !redis ? "not read yet" : away ? "unreachable" : "ok");
  show(byId("redis-error"), Boolean(redis?.error));
  say(byId("redis-error"), visible(redis?.error ?? ""));
  if (!redis) return;
  const most = redis.maxmemory_bytes;
  const part = most ? redis.used_memory_bytes / most : 0;
  tell(list, "ping", isNumber(redis.ping_ms) ? milliseconds(redis.ping_ms / 1000) : NOTHING);
  tell(list, "memory", `${bytes(redis.used_memory_bytes)}${most ? ` of ${bytes(most)}` : isNumber(redis.used_memory_bytes) ? ", no limit" : ""}`);
  const full = list.querySelector('[data-field="memory"] .bar');
  show(full, Boolean(most));
  setBar(full, part, part > NEARLY_FULL ? "bad" : "");
  tell(list, "policy", visible(redis.maxmemory_policy ?? NOTHING));
  tell(list, "append-only file", redis.aof === true ? "on" : redis.aof === false ? "off" : NOTHING);
  tell(list, "clients", count(redis.clients));
  tell(list, "replicas", count(redis.replicas));
  tell(list, "shards", redis.servers > 1 ? `${count(redis.shards)} on ${count(redis.servers)} servers` : count(redis.shards));
  tell(list, "evicted keys", count(redis.evicted_keys));
  tell(list, "version", visible([redis.server, redis.version].filter(Boolean).join(" ") || NOTHING));
}
