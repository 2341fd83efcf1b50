// One user: looked up, explained, watched while the panel is open, and kicked if that may be.

import { bar, byId, element, keep, say, setBar, show, stranger } from "./dom.js";
import { ask } from "./stream.js";
import { NOTHING, count, duration, isNumber, moment, reasonInWords, several, visible } from "./text.js";

const ASKED_AGAIN_MS = 2000;
const COUNTED_EACH_MS = 200;

export class User {
  #clock;
  #onMark;
  #uid = null;
  #answer = null;
  #acts = false;
  #asking = 0;
  #waiting = false;

  /**
   * Args: `onMark([{node, due}])`: the sessions whose slots are to be marked in the wheel; `isLive()`: whether
   * the server can be asked again and again.
   */
  constructor(clock, onMark, isLive) {
    this.#clock = clock;
    this.#onMark = onMark;
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      const uid = byId("search-uid").value.trim();
      if (uid) this.open(uid);
    });
    byId("user-close").addEventListener("click", () => this.close());
    byId("user").addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    byId("kick").addEventListener("click", () => this.#confirm());
    byId("kick-dialog").addEventListener("close", (event) => {
      if (event.target.returnValue === "kick") this.#kick();
    });
    addEventListener("hashchange", () => this.#fromAddress());
    setInterval(() => this.#count(), COUNTED_EACH_MS);
    // An answer may take longer than that, where a node does not answer.
    setInterval(() => {
      if (isLive() && !document.hidden && this.#uid !== null && !this.#waiting) this.#ask();
    }, ASKED_AGAIN_MS);
  }

  begin(hello) {
    this.#acts = hello.acts === true;
    if (this.#uid === null) this.#fromAddress();
    this.#draw();
  }

  /** Look at a user. The page's address names him, so that it can be passed on. */
  open(uid) {
    history.replaceState(null, "", `#user=${encodeURIComponent(uid)}`);
    this.#show(uid);
    byId("user").focus();
  }

  close() {
    history.replaceState(null, "", location.pathname + location.search);
    this.#uid = this.#answer = null;
    show(byId("user"), false);
    this.#onMark([]);
    byId("search-uid").value = "";
    byId("search-uid").focus();
  }

  #fromAddress() {
    const said = new URLSearchParams(location.hash.slice(1)).get("user");
    if (said && said !== this.#uid) this.#show(said);
  }

  #show(uid) {
    this.#uid = uid;
    this.#answer = null;
    byId("search-uid").value = uid;
    byId("user-uid").replaceChildren(stranger(visible(uid)));
    say(byId("user-status"), "asking");
    byId("user-status").dataset.tone = "";
    for (const id of ["user-why", "user-problem", "kick-outcome"]) say(byId(id), "");
    for (const id of ["user-sessions", "user-notes"]) byId(id).replaceChildren();
    show(byId("kick"), false);
    show(byId("user"), true);
    this.#ask();
  }

  async #ask() {
    const uid = this.#uid;
    const number = ++this.#asking;
    this.#waiting = true;
    try {
      const response = await ask(`v1/explain/${encodeURIComponent(uid)}`);
      const answer = await response.json();
      if (number !== this.#asking || uid !== this.#uid) return;
      if (!response.ok) throw new Error(answer.error?.message ?? `refused: ${response.status}`);
      this.#answer = answer;
      say(byId("user-problem"), "");
      this.#draw();
    } catch (error) {
      if (number !== this.#asking || uid !== this.#uid) return;
      if (!this.#answer) say(byId("user-status"), "not known");
      say(byId("user-problem"), visible(error.message));
    } finally {
      if (number === this.#asking) this.#waiting = false;
    }
  }

  #draw() {
    const answer = this.#answer;
    if (!answer) return;
    const status = answer.state?.status ?? "unknown";
    const sessions = answer.sessions ?? [];
    byId("user-status").dataset.tone = { online: "good", away: "fair", offline: "bad" }[status] ?? "";
    say(byId("user-status"), status);
    say(byId("user-why"), visible(answer.why ?? ""));
    this.#drawFacts(answer);
    keep(byId("user-sessions"), sessions, ({ session }) => session, newSession, drawSession);
    const notes = [...(answer.notes ?? []), ...(answer.redis ? [`Redis does not answer: ${answer.redis}`] : [])];
    keep(byId("user-notes"), notes, (note) => note, (note) => element("li", {}, visible(note)), () => {});
    show(byId("kick"), this.#acts && (sessions.length > 0 || ["online", "away", "unknown"].includes(status)));
    this.#onMark(sessions.filter(({ due_ms: due }) => isNumber(due)).map(({ node, due_ms: due }) => ({ node, due: due / 1000 })));
    this.#count();
  }

  #drawFacts({ state, event }) {
    const facts = [];
    if (state && state.status !== "offline" && isNumber(state.since_ms)) facts.push(["online since", moment(state.since_ms)]);
    if (state?.status === "offline" && isNumber(state.last_seen_ms)) facts.push(["last seen", moment(state.last_seen_ms)]);
    if (event) {
      const uttered = `${event.type}, ${moment(event.at_ms)}: ${reasonInWords(event.reason)} (${event.reason})`;
      facts.push(["last event", visible(uttered)], ["told by", visible(event.node ?? NOTHING)]);
    }
    const make = ([name]) => element("div", { class: "field" }, element("dt", {}, name), element("dd"));
    keep(byId("user-facts"), facts, ([name]) => name, make, (node, [, text]) => say(node.lastElementChild, text));
  }

  /** Let ages grow and deadlines come nearer between two answers. */
  #count() {
    if (!this.#answer) return;
    const now = this.#clock.now();
    for (const row of byId("user-sessions").children) {
      const { last_packet_ms: last, due_ms: due, idle_timeout_s: timeout } = row.session;
      const age = isNumber(last) ? Math.max(0, (now - last) / 1000) : null;
      const left = isNumber(due) ? Math.max(0, (due - now) / 1000) : null;
      say(row.querySelector(".session-age"), isNumber(age) ? duration(age, 1) : NOTHING);
      say(row.querySelector(".session-left"), isNumber(left) ? duration(left, 1) : "ending");
      setBar(row.querySelector(".bar"), isNumber(left) ? left / timeout : 0, left / timeout < 0.2 ? "bad" : "");
    }
  }

  #confirm() {
    const sessions = this.#answer?.sessions?.length ?? 0;
    byId("kick-uid").replaceChildren(stranger(visible(this.#uid)));
    say(byId("kick-what"), `${sessions ? several(sessions, "session") : "Every session"} will be closed, and the clients will not reconnect automatically. This is no ban: the user may log in again.`);
    byId("kick-dialog").returnValue = "";
    byId("kick-dialog").showModal();
  }

  async #kick() {
    const uid = this.#uid;
    const outcome = byId("kick-outcome");
    say(outcome, "kicking …");
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await ask("v1/kick", { method: "POST", headers, body: JSON.stringify({ uid }) });
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error?.message ?? `refused: ${response.status}`);
      const left = answer.left?.length ?? 0;
      const done = `kicked: ${several(answer.sessions ?? 0, "session")}`;
      if (uid === this.#uid) say(outcome, left ? `${done}, ${count(left)} of them not ended yet` : done);
    } catch (error) {
      if (uid === this.#uid) say(outcome, `not kicked: ${visible(error.message)}`);
    }
    if (uid === this.#uid) this.#ask();
  }
}

function newSession() {
  const line = (name, className) =>
    element("div", { class: "field" }, element("dt", {}, name), element("dd", { class: className }));
  const left = element("div", { class: "field" }, element("dt", {}, "due in"), element("dd", {}, element("span", { class: "session-left" }), bar(0)));
  const fields = [line("last packet", "session-age"), left, line("idle time-out", "session-timeout"), line("from", "session-from"), line("node", "session-node"), line("logged in", "session-since")];
  return element("li", { class: "row" }, element("div", { class: "row-head" }, element("span", { class: "dot" }), element("strong"), element("span", { class: "row-note" })), element("dl", {}, ...fields));
}

function drawSession(row, session) {
  row.session = session;
  const lost = session.link === "lost";
  const [dot, name, note] = row.firstElementChild.children;
  dot.dataset.tone = lost ? "fair" : "good";
  name.replaceChildren(session.device ? stranger(visible(session.device)) : "default device");
  const record = session.on_record === false ? "not in Redis yet" : "";
  say(note, [lost ? "connection lost, in its grace period" : "connected", session.status === "away" ? "away" : "", record].filter(Boolean).join(" · "));
  const set = (part, text) => say(row.querySelector(`.session-${part}`), text);
  set("timeout", duration(session.idle_timeout_s));
  set("from", session.address ? `${visible(session.address)} ${session.transport === "tls" ? "(TLS)" : ""}` : NOTHING);
  set("node", visible(session.node ?? NOTHING));
  set("since", moment(session.login_ms));
}
