// The panel of one user: explains the user, keeps that up to date, and kicks the user if the operator may.

import { bar, byId, element, syncChildren, setText, setBar, setVisible, isolated } from "./dom.js";
import { authorizedFetch } from "./stream.js";
import { NO_VALUE, count, duration, isNumber, dateTime, describeReason, plural, escapeInvisible, unescapeName } from "./text.js";

const POLL_INTERVAL_MS = 2000;
const TICK_INTERVAL_MS = 200;
const TRANSPORTS = { tls: "(TLS)", ws: "(WebSocket)", wss: "(WebSocket, TLS)" }; // others: plain TCP

export class User {
  #clock;
  #onMark;
  #uid = null;
  #answer = null;
  #mayAct = false;
  #requestNumber = 0;
  #isPending = false;

  /**
   * Args: `onMark([{node, due}])`: marks the slots of sessions in the wheel; `isLive()`: whether the server
   * answers.
   */
  constructor(clock, onMark, isLive) {
    this.#clock = clock;
    this.#onMark = onMark;
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      // No uid has white space. `trim` would also remove U+FEFF, which a uid may have.
      const uid = unescapeName(byId("search-uid").value.replace(/\p{White_Space}/gu, ""));
      if (uid) this.open(uid);
    });
    byId("user-close").addEventListener("click", () => this.close());
    byId("user").addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    byId("kick").addEventListener("click", () => this.#askToKick());
    byId("kick-dialog").addEventListener("close", (event) => {
      if (event.target.returnValue === "kick") this.#kick();
    });
    addEventListener("hashchange", () => this.#openFromHash());
    setInterval(() => this.#updateTimes(), TICK_INTERVAL_MS);
    // An answer may take longer than the interval, if a node does not answer.
    setInterval(() => {
      if (isLive() && !document.hidden && this.#uid !== null && !this.#isPending) this.#fetchExplanation();
    }, POLL_INTERVAL_MS);
  }

  begin(hello) {
    this.#mayAct = hello.acts === true;
    if (this.#uid === null) this.#openFromHash();
    this.#draw();
  }

  /** Explain a user. The page's address contains the uid, so that it can be shared. */
  open(uid) {
    history.replaceState(null, "", `#user=${encodeURIComponent(uid)}`);
    this.#show(uid);
    byId("user").focus();
  }

  close() {
    history.replaceState(null, "", location.pathname + location.search);
    this.#uid = this.#answer = null;
    setVisible(byId("user"), false);
    this.#onMark([]);
    byId("search-uid").value = "";
    byId("search-uid").focus();
  }

  #openFromHash() {
    const uid = new URLSearchParams(location.hash.slice(1)).get("user");
    if (uid && uid !== this.#uid) this.#show(uid);
  }

  #show(uid) {
    this.#uid = uid;
    this.#answer = null;
    byId("search-uid").value = escapeInvisible(uid);
    byId("user-uid").replaceChildren(isolated(escapeInvisible(uid)));
    setText(byId("user-status"), "loading");
    byId("user-status").dataset.tone = "";
    for (const id of ["user-why", "user-problem", "kick-outcome"]) setText(byId(id), "");
    for (const id of ["user-sessions", "user-notes"]) byId(id).replaceChildren();
    setVisible(byId("kick"), false);
    setVisible(byId("user"), true);
    this.#fetchExplanation();
  }

  async #fetchExplanation() {
    const uid = this.#uid;
    const number = ++this.#requestNumber;
    this.#isPending = true;
    try {
      const response = await authorizedFetch(`v1/explain?uid=${encodeURIComponent(uid)}`);
      const answer = await response.json();
      if (number !== this.#requestNumber || uid !== this.#uid) return;
      if (!response.ok) throw new Error(answer.error?.message ?? `refused: ${response.status}`);
      this.#answer = answer;
      setText(byId("user-problem"), "");
      this.#draw();
    } catch (error) {
      if (number !== this.#requestNumber || uid !== this.#uid) return;
      if (!this.#answer) setText(byId("user-status"), "no answer");
      setText(byId("user-problem"), escapeInvisible(error.message));
    } finally {
      if (number === this.#requestNumber) this.#isPending = false;
    }
  }

  #draw() {
    const answer = this.#answer;
    if (!answer) return;
    const status = answer.state?.status ?? "unknown";
    const sessions = answer.sessions ?? [];
    byId("user-status").dataset.tone = { online: "good", away: "fair", offline: "bad" }[status] ?? "";
    setText(byId("user-status"), status);
    setText(byId("user-why"), escapeInvisible(answer.why ?? ""));
    this.#drawFacts(answer);
    syncChildren(byId("user-sessions"), sessions, ({ session }) => session, newSession, drawSession);
    const notes = [...(answer.notes ?? []), ...(answer.redis ? [`Redis does not answer: ${answer.redis}`] : [])];
    syncChildren(byId("user-notes"), notes, (note) => note, (note) => element("li", {}, escapeInvisible(note)), () => {});
    setVisible(byId("kick"), this.#mayAct && (sessions.length > 0 || ["online", "away", "unknown"].includes(status)));
    this.#onMark(sessions.filter(({ due_ms: due }) => isNumber(due)).map(({ node, due_ms: due }) => ({ node, due: due / 1000 })));
    this.#updateTimes();
  }

  #drawFacts({ state, event, roster_users: roster }) {
    const facts = [];
    if (state && state.status !== "offline" && isNumber(state.since_ms)) facts.push(["online since", dateTime(state.since_ms)]);
    if (state?.status === "offline" && isNumber(state.last_seen_ms)) facts.push(["last seen", dateTime(state.last_seen_ms)]);
    if (event) {
      const lastEvent = `${event.type}, ${dateTime(event.at_ms)}: ${describeReason(event.reason)} (${event.reason})`;
      facts.push(["last event", escapeInvisible(lastEvent)], ["reported by", escapeInvisible(event.node ?? NO_VALUE)]);
    }
    if (isNumber(roster)) facts.push(["roster", plural(roster, "user")]);
    const newFact = ([name]) => element("div", { class: "field" }, element("dt", {}, name), element("dd"));
    syncChildren(byId("user-facts"), facts, ([name]) => name, newFact, (node, [, text]) => setText(node.lastElementChild, text));
  }

  /** Update ages and remaining times between two answers. */
  #updateTimes() {
    if (!this.#answer) return;
    const now = this.#clock.now();
    for (const row of byId("user-sessions").children) {
      const { last_packet_ms: last, due_ms: due, idle_timeout_s: timeout } = row.session;
      const age = isNumber(last) ? Math.max(0, (now - last) / 1000) : null;
      const left = isNumber(due) ? Math.max(0, (due - now) / 1000) : null;
      setText(row.querySelector(".session-age"), isNumber(age) ? duration(age, 1) : NO_VALUE);
      setText(row.querySelector(".session-left"), isNumber(left) ? duration(left, 1) : "ending");
      setBar(row.querySelector(".bar"), isNumber(left) ? left / timeout : 0, left / timeout < 0.2 ? "bad" : "");
    }
  }

  #askToKick() {
    const sessions = this.#answer?.sessions?.length ?? 0;
    byId("kick-uid").replaceChildren(isolated(escapeInvisible(this.#uid)));
    setText(byId("kick-what"), `${sessions ? plural(sessions, "session") : "Every session"} will be closed, and the clients will not reconnect automatically. This is no ban: the user may log in again.`);
    byId("kick-dialog").returnValue = "";
    byId("kick-dialog").showModal();
  }

  async #kick() {
    const uid = this.#uid;
    const outcome = byId("kick-outcome");
    setText(outcome, "kicking …");
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await authorizedFetch("v1/kick", { method: "POST", headers, body: JSON.stringify({ uid }) });
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error?.message ?? `refused: ${response.status}`);
      const left = answer.left?.length ?? 0;
      const done = `kicked: ${plural(answer.sessions ?? 0, "session")}`;
      if (uid === this.#uid) setText(outcome, left ? `${done}, ${count(left)} of them not ended yet` : done);
    } catch (error) {
      if (uid === this.#uid) setText(outcome, `not kicked: ${escapeInvisible(error.message)}`);
    }
    if (uid === this.#uid) this.#fetchExplanation();
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
  name.replaceChildren(session.device ? isolated(escapeInvisible(session.device)) : "default device");
  const record = session.on_record === false ? "not in Redis yet" : "";
  setText(note, [lost ? "connection lost, in its grace period" : "connected", session.status === "away" ? "away" : "", session.roster === "followed" ? "follows the roster" : "", record].filter(Boolean).join(" · "));
  const set = (part, text) => setText(row.querySelector(`.session-${part}`), text);
  set("timeout", duration(session.idle_timeout_s));
  set("from", session.address ? `${escapeInvisible(session.address)} ${TRANSPORTS[session.transport] ?? ""}` : NO_VALUE);
  set("node", escapeInvisible(session.node ?? NO_VALUE));
  set("since", dateTime(session.login_ms));
}
