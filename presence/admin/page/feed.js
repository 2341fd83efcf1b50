// Live events. The list pauses while the pointer or the focus is in it.

import { byId, element, setText, setVisible, isolated } from "./dom.js";
import { count, describeReason, timeOfDay, escapeInvisible } from "./text.js";

const MAX_ROWS = 200;
const MAX_EVENTS = 500;
const SYMBOLS = { online: "▲", offline: "▼", away: "◐", update: "✎", gap: "!" };

export class Feed {
  #list = byId("feed");
  #events = []; // newest first
  #unseen = 0; // events since the list paused
  #pauseReasons = new Set(); // of pointer, focus, button
  #fromHistory = new Set(); // keys of events read from the streams, which may arrive live too
  #problem = "";
  #onUser;

  /** Args: `onUser(uid)` is called when a user is selected. */
  constructor(onUser) {
    this.#onUser = onUser;
    const area = byId("feed-area");
    const pause = (reason) => () => this.#pauseReasons.add(reason);
    const resume = (reason) => () => {
      this.#pauseReasons.delete(reason);
      this.#redrawUnlessPaused();
    };
    // Only if the pointer moved, not if the list moved below it.
    area.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse" || (!event.movementX && !event.movementY)) return;
      pause("pointer")();
      this.#showState();
    });
    area.addEventListener("pointerleave", resume("pointer"));
    area.addEventListener("focusin", pause("focus"));
    area.addEventListener("focusout", resume("focus"));
    byId("feed-pause").addEventListener("click", (event) => {
      const wasPaused = this.#pauseReasons.has("button");
      event.currentTarget.setAttribute("aria-pressed", String(!wasPaused));
      (wasPaused ? resume : pause)("button")();
      this.#showState();
    });
    for (const id of ["feed-text", "feed-type"]) byId(id).addEventListener("input", () => this.#redraw());
  }

  add({ events = [], skipped = 0 }) {
    if (skipped) this.#push({ skipped });
    const added = events.filter((event) => !this.#fromHistory.has(eventKey(event)));
    for (const event of added) this.#push(event);
    this.#unseen += added.length;
    this.#redrawUnlessPaused();
  }

  /** Add the last events before the stream began, or show why they cannot be read. */
  begin({ events = [], problem = "" }) {
    const known = new Set(this.#events.map(eventKey));
    this.#fromHistory = new Set(events.map(eventKey));
    this.#problem = problem;
    for (const event of events) if (!known.has(eventKey(event))) this.#push(event);
    this.#redrawUnlessPaused();
  }

  /** Mark that the connection was lost, so events may be missing. */
  interrupt() {
    if (this.#events.length && !this.#events[0].interrupted) this.#push({ interrupted: true });
  }

  #push(event) {
    this.#events.unshift(event);
    if (this.#events.length > MAX_EVENTS) this.#events.length = MAX_EVENTS;
  }

  #matchesFilter(event) {
    const type = byId("feed-type").value;
    if (type && event.type !== type) return false;
    const text = byId("feed-text").value.trim().toLowerCase();
    if (!text) return true;
    return [event.uid, event.reason, event.node, event.device].some((value) => value?.toLowerCase().includes(text));
  }

  #redrawUnlessPaused() {
    if (!this.#pauseReasons.size) this.#redraw();
    else this.#showState();
  }

  #redraw() {
    this.#unseen = 0;
    const events = this.#events.filter((event) => this.#matchesFilter(event)).slice(0, MAX_ROWS);
    const known = new Map([...this.#list.children].map((row) => [row.event, row]));
    const rows = events.map((event) => known.get(event) ?? this.#row(event));
    if (rows.length !== this.#list.children.length || rows.some((row, i) => row !== this.#list.children[i])) {
      this.#list.replaceChildren(...rows);
    }
    setVisible(byId("feed-empty"), !rows.length);
    const emptyText = this.#problem ? `events cannot be read: ${escapeInvisible(this.#problem)}` : "no events yet";
    setText(byId("feed-empty"), this.#events.length ? "no event matches the filter" : emptyText);
    this.#showState();
  }

  #showState() {
    const paused = this.#pauseReasons.size > 0;
    const state = paused ? `paused${this.#unseen ? `, ${count(this.#unseen)} more` : ""}` : "";
    setText(byId("feed-state"), state);
  }

  #row(event) {
    const row = this.#newRow(event);
    row.event = event;
    return row;
  }

  #newRow(event) {
    if (event.skipped) {
      return element("li", { class: "feed-note" }, `${count(event.skipped)} more events, too many to show`);
    }
    if (event.interrupted) return element("li", { class: "feed-note" }, "connection lost: events may be missing here");
    if (event.type === "gap") {
      const text = `${count(event.dropped)} changes are missing (${escapeInvisible(event.reason ?? "gap")})`;
      return element("li", { class: "feed-note", "data-type": "gap" }, timeElement(event), ` ${text}`);
    }
    const uid = escapeInvisible(event.uid ?? "");
    const user = element("button", { type: "button", class: "feed-user", title: `explain ${uid}` }, isolated(uid));
    user.addEventListener("click", () => this.#onUser(event.uid));
    const device = event.device ? element("span", { class: "feed-device" }, isolated(escapeInvisible(event.device))) : null;
    const userCell = element("span", { class: "feed-who" }, user, device);
    const node = element("span", { class: "feed-node", title: escapeInvisible(event.node ?? "") }, escapeInvisible(event.node ?? "").replace(/^.*-/, ""));
    const symbol = element("span", { class: "feed-sign", "aria-hidden": "true" }, SYMBOLS[event.type] ?? "·");
    const type = element("span", { class: "sr-only" }, escapeInvisible(event.type ?? ""));
    const reason = element("span", { class: "feed-reason", title: describeReason(event.reason) }, escapeInvisible(event.reason ?? ""));
    return element("li", { "data-type": event.type }, timeElement(event), symbol, type, userCell, reason, node);
  }
}

function eventKey({ shard, id }) {
  return `${shard}:${id}`;
}

function timeElement(event) {
  const ms = event.at_ms ?? event.to_ms ?? Number.parseInt(event.id, 10);
  return element("time", {}, timeOfDay(ms));
}
