// Wires the page: what comes over the stream goes to the parts, and the state of it all stands on top.

import { Charts } from "./charts.js";
import { ServerClock } from "./clock.js";
import { Delays } from "./delays.js";
import { byId, say, show } from "./dom.js";
import { Feed } from "./feed.js";
import { LiveStream } from "./stream.js";
import { Nodes, Workers, showRedis } from "./tables.js";
import { count, duration, rate, timeOfDay, visible } from "./text.js";
import { User } from "./user.js";
import { WheelView } from "./wheel.js";

const STALE_MS = 3000;
const WATCHED_EACH_MS = 250;

const clock = new ServerClock();
const wheel = new WheelView(clock);
const charts = new Charts();
const delays = new Delays();
const nodes = new Nodes();
const workers = new Workers();
const user = new User(clock, (sessions) => wheel.mark(sessions), () => state === "live");
const feed = new Feed((uid) => user.open(uid));
const stream = new LiveStream(received, (state, detail) => become(state, detail));

let state = "connecting"; // connecting, open (no sample yet), live, stale, lost, token, crowded
let detail = null;
let latest = null; // the last sample
let arrived = 0; // when it came, by this browser's own clock
let seenBefore = false;
let version = null;
let awaySince = null;

const WORDS = {
  connecting: "connecting",
  open: "connecting",
  live: "live",
  stale: "stale",
  lost: "reconnecting",
  token: "token needed",
  crowded: "waiting",
};

function become(next, why = null) {
  if (state === "live" || state === "stale") feed.interrupt();
  state = next;
  detail = why;
  show(byId("token"), state === "token");
  tellState();
}

function received(name, value) {
  if (name === "hello") begin(value);
  else if (name === "sample") update(value);
  else if (name === "past") feed.begin(value);
  else if (name === "transitions") feed.add(value);
}

function begin(hello) {
  clock.reset();
  clock.observe(hello.now_ms);
  show(byId("renewed"), version !== null && hello.version !== version);
  version ??= hello.version;
  const where = new URL(hello.url ?? location.href).host;
  say(byId("where"), `${where} · ${visible(hello.version ?? "")} · idle time-out ${duration(hello.idle_timeout_s)}`);
  for (const part of [charts, delays, nodes, user]) part.begin(hello);
  seenBefore = true;
}

function update(sample) {
  latest = sample;
  arrived = performance.now();
  clock.observe(sample.at_ms, arrived);
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
  for (const [name, text] of Object.entries(figures)) say(byId(`figure-${name}`), text);
  byId("figure-refusals").dataset.tone = sample.refusals_per_s > 0 ? "fair" : "";
  document.title = `${count(sample.online)} online · presence`;
  wheel.update(sample);
  charts.add(sample);
  delays.update(sample);
  nodes.update(sample);
  workers.update(sample);
  showRedis(sample.redis);
  tellState();
}

/** Say how things stand: the pill in the heading, and below it what somebody should know. */
function tellState() {
  const quiet = performance.now() - arrived;
  if (state === "live" && quiet > STALE_MS) state = "stale";
  const age = latest ? duration(quiet / 1000) : null;
  const pill = byId("state");
  pill.dataset.state = state;
  say(byId("state-word"), WORDS[state]);
  document.documentElement.classList.toggle("stale", seenBefore && state !== "live");
  const text = message(age);
  show(byId("message"), text !== "");
  if (byId("message-state").dataset.state !== state + text.replace(/\d.*/, "")) {
    // Told aloud once for each state, not each second.
    byId("message-state").dataset.state = state + text.replace(/\d.*/, "");
    say(byId("message-state"), text);
  }
  say(byId("message-text"), text);
}

function message(age) {
  const old = age ? ` What is shown is ${age} old.` : "";
  switch (state) {
    case "stale":
      return `No sample for ${age}: the server or the connection to it is stalled.`;
    case "lost":
      return detail ? `The server answers ${detail}; trying again.${old}` : `The server cannot be reached; trying again.${old}`;
    case "crowded":
      return `The server has its maximum of viewers, or is just starting; trying again.${old}`;
    case "token":
      return `The server requires an operator token: enter it in your browser, or here.${old}`;
    case "live":
      return redisMessage();
    default:
      return "";
  }
}

function redisMessage() {
  const away = latest.redis && latest.redis.status !== "ok";
  if (!away) {
    awaySince = null;
    return "";
  }
  awaySince ??= latest.at_ms;
  const waiting = (latest.workers ?? []).reduce((sum, { outbox }) => sum + (outbox ?? 0), 0);
  return `Redis unreachable since ${timeOfDay(awaySince)}: logins and time-outs continue, ${count(waiting)} changes are queued.`;
}

byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.useToken(byId("token-text").value);
  byId("token-text").value = "";
});
byId("reload").addEventListener("click", () => location.reload());
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("search-uid").focus();
  }
});
setInterval(tellState, WATCHED_EACH_MS);
stream.run();
