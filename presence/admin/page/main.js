// Wires the page: passes events of the stream to the panels, and shows the state of the connection.

import { Charts } from "./charts.js";
import { ServerClock } from "./clock.js";
import { Delays } from "./delays.js";
import { byId, setText, setVisible } from "./dom.js";
import { Feed } from "./feed.js";
import { LiveStream } from "./stream.js";
import { Nodes, Workers, showRedis, showRooms } from "./tables.js";
import { count, duration, rate, timeOfDay, escapeInvisible } from "./text.js";
import { User } from "./user.js";
import { WheelView } from "./wheel.js";

const STALE_MS = 3000;
const STATE_INTERVAL_MS = 250;

const clock = new ServerClock();
const wheel = new WheelView(clock);
const charts = new Charts();
const delays = new Delays();
const nodes = new Nodes();
const workers = new Workers();
const user = new User(clock, (sessions) => wheel.mark(sessions), () => state === "live");
const feed = new Feed((uid) => user.open(uid));
const stream = new LiveStream(onEvent, setState);

let state = "connecting"; // connecting, open (no sample yet), live, stale, lost, token, busy
let detail = null;
let latest = null; // the last sample
let receivedAt = 0; // when it arrived, by the browser's clock
let hasConnected = false;
let version = null;
let redisLostMs = null;

const WORDS = {
  connecting: "connecting",
  open: "connecting",
  live: "live",
  stale: "stale",
  lost: "reconnecting",
  token: "token needed",
  busy: "waiting",
};

function setState(next, reason = null) {
  if (state === "live" || state === "stale") feed.interrupt();
  state = next;
  detail = reason;
  setVisible(byId("token"), state === "token");
  showState();
}

function onEvent(name, value) {
  if (name === "hello") begin(value);
  else if (name === "sample") update(value);
  else if (name === "past") feed.begin(value);
  else if (name === "transitions") feed.add(value);
}

function begin(hello) {
  clock.reset();
  clock.observe(hello.now_ms);
  setVisible(byId("renewed"), version !== null && hello.version !== version);
  version ??= hello.version;
  const where = new URL(hello.url ?? location.href).host;
  setText(byId("where"), `${where} · ${escapeInvisible(hello.version ?? "")} · idle time-out ${duration(hello.idle_timeout_s)}`);
  for (const part of [charts, delays, user]) part.begin(hello);
  hasConnected = true;
}

function update(sample) {
  latest = sample;
  receivedAt = performance.now();
  clock.observe(sample.at_ms, receivedAt);
  if (state !== "live") {
    state = "live";
    detail = null;
  }
  const figures = {
    online: count(sample.online),
    sessions: count(sample.sessions),
    connections: count(sample.connections),
    packets: rate(sample.packets_per_s),
    logins: rate(sample.logins_per_s),
    refusals: rate(sample.refusals_per_s),
  };
  for (const [name, text] of Object.entries(figures)) setText(byId(`figure-${name}`), text);
  byId("figure-refusals").dataset.tone = sample.refusals_per_s > 0 ? "fair" : "";
  document.title = `${count(sample.online)} online · presence`;
  wheel.update(sample);
  charts.add(sample);
  delays.update(sample);
  nodes.update(sample);
  workers.update(sample);
  showRedis(sample.redis);
  showRooms(sample.rooms);
  showState();
}

/** Show the state in the heading, and below it a message if there is a problem. */
function showState() {
  const silenceMs = performance.now() - receivedAt;
  if (state === "live" && silenceMs > STALE_MS) state = "stale";
  const age = latest ? duration(silenceMs / 1000) : null;
  byId("state").dataset.state = state;
  setText(byId("state-word"), WORDS[state]);
  document.documentElement.classList.toggle("stale", hasConnected && state !== "live");
  const text = message(age);
  setVisible(byId("message"), text !== "");
  if (byId("message-state").dataset.state !== state + text.replace(/\d.*/, "")) {
    // Screen readers announce it once per state, not every second.
    byId("message-state").dataset.state = state + text.replace(/\d.*/, "");
    setText(byId("message-state"), text);
  }
  setText(byId("message-text"), text);
}

function message(age) {
  const dataAge = age ? ` The data shown is ${age} old.` : "";
  switch (state) {
    case "stale":
      return `No sample for ${age}: the server or the connection to it is stalled.`;
    case "lost":
      return detail ? `The server answers ${detail}; retrying.${dataAge}` : `The server cannot be reached; retrying.${dataAge}`;
    case "busy":
      return `The server has its maximum number of viewers, or is starting; retrying.${dataAge}`;
    case "token":
      return `The server requires an operator token: enter it in your browser, or here.${dataAge}`;
    case "live":
      return redisMessage();
    default:
      return "";
  }
}

function redisMessage() {
  const isDown = latest.redis && latest.redis.status !== "ok";
  if (!isDown) {
    redisLostMs = null;
    return "";
  }
  redisLostMs ??= latest.at_ms;
  const queued = (latest.workers ?? []).reduce((sum, { outbox }) => sum + (outbox ?? 0), 0);
  return `Redis unreachable since ${timeOfDay(redisLostMs)}: logins and time-outs continue, ${count(queued)} changes are queued.`;
}

byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.useToken(byId("token-text").value);
  byId("token-text").value = "";
});
byId("reload").addEventListener("click", () => location.reload());
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("search-uid").focus();
  }
});
setInterval(showState, STATE_INTERVAL_MS);
stream.run();
