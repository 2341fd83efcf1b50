// Transitions as they happen. Stands still while somebody points at it or is in it.

import { byId, element, say, show, stranger } from "./dom.js";
import { count, reasonInWords, timeOfDay, visible } from "./text.js";

const SHOWN = 200;
const KEPT = 500;
const SIGNS = { online: "▲", offline: "▼", away: "◐", update: "✎", gap: "!" };

export class Feed {
  #list = byId("feed");
  #events = []; // newest first
  #waiting = 0;
  #held = new Set();
  #past = new Set(); // what was read from the streams, and may come again as it happens
  #problem = "";
  #onUser;

  /** Args: `onUser(uid)`: a user was chosen. */
  constructor(onUser) {
    this.#onUser = onUser;
    const area = byId("feed-area");
    const hold = (why) => () => this.#held.add(why);
    const release = (why) => () => {
      this.#held.delete(why);
      this.#draw();
    };
    // Moved there by somebody; not where the list comes to lie below a pointer that rests.
    area.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse" || (!event.movementX && !event.movementY)) return;
      hold("pointer")();
      this.#tell();
    });
    area.addEventListener("pointerleave", release("pointer"));
    area.addEventListener("focusin", hold("focus"));
    area.addEventListener("focusout", release("focus"));
    byId("feed-pause").addEventListener("click", (event) => {
      const paused = this.#held.has("button");
      event.currentTarget.setAttribute("aria-pressed", String(!paused));
      (paused ? release : hold)("button")();
      this.#tell();
    });
    for (const id of ["feed-text", "feed-type"]) byId(id).addEventListener("input", () => this.#redraw());
  }

  add({ events = [], skipped = 0 }) {
    if (skipped) this.#push({ skipped });
    const added = events.filter((event) => !this.#past.has(place(event)));
    for (const event of added) this.#push(event);
    this.#waiting += added.length;
    this.#draw();
  }

  /** The last events before the stream began, or why they cannot be read. */
  begin({ events = [], problem = "" }) {
    const known = new Set(this.#events.map(place));
    this.#past = new Set(events.map(place));
    this.#problem = problem;
    for (const event of events) if (!known.has(place(event))) this.#push(event);
    this.#draw();
  }

  /** The connection was away: what happened meanwhile is not here. */
  interrupt() {
    if (this.#events.length && !this.#events[0].interrupted) this.#push({ interrupted: true });
  }

  #push(event) {
    this.#events.unshift(event);
    if (this.#events.length > KEPT) this.#events.length = KEPT;
  }

  #wanted(event) {
    const type = byId("feed-type").value;
    if (type && event.type !== type) return false;
    const text = byId("feed-text").value.trim().toLowerCase();
    if (!text) return true;
    return [event.uid, event.reason, event.node, event.device].some((value) => value?.toLowerCase().includes(text));
  }

  #draw() {
    if (!this.#held.size) this.#redraw();
    else this.#tell();
  }

  #redraw() {
    this.#waiting = 0;
    const events = this.#events.filter((event) => this.#wanted(event)).slice(0, SHOWN);
    const known = new Map([...this.#list.children].map((row) => [row.event, row]));
    const rows = events.map((event) => known.get(event) ?? this.#row(event));
    if (rows.length !== this.#list.children.length || rows.some((row, i) => row !== this.#list.children[i])) {
      this.#list.replaceChildren(...rows);
    }
    show(byId("feed-empty"), !rows.length);
    const nothing = this.#problem ? `events cannot be read: ${visible(this.#problem)}` : "nothing has happened yet";
    say(byId("feed-empty"), this.#events.length ? "no event matches the filter" : nothing);
    this.#tell();
  }

  #tell() {
    const paused = this.#held.size > 0;
    const state = paused ? `paused${this.#waiting ? `, ${count(this.#waiting)} more` : ""}` : "";
    say(byId("feed-state"), state);
  }

  #row(event) {
    const row = this.#made(event);
    row.event = event;
    return row;
  }

  #made(event) {
    if (event.skipped) {
      return element("li", { class: "feed-note" }, `${count(event.skipped)} more, too many to show`);
    }
    if (event.interrupted) return element("li", { class: "feed-note" }, "connection lost: some may be missing here");
    if (event.type === "gap") {
      const what = `${count(event.dropped)} transitions are missing (${visible(event.reason ?? "gap")})`;
      return element("li", { class: "feed-note", "data-type": "gap" }, time(event), ` ${what}`);
    }
    const uid = visible(event.uid ?? "");
    const user = element("button", { type: "button", class: "feed-user", title: `look at ${uid}` }, stranger(uid));
    user.addEventListener("click", () => this.#onUser(event.uid));
    const device = event.device ? element("span", { class: "feed-device" }, stranger(visible(event.device))) : null;
    const who = element("span", { class: "feed-who" }, user, device);
    const node = element("span", { class: "feed-node", title: visible(event.node ?? "") }, visible(event.node ?? "").replace(/^.*-/, ""));
    const sign = element("span", { class: "feed-sign", "aria-hidden": "true" }, SIGNS[event.type] ?? "·");
    const type = element("span", { class: "sr-only" }, visible(event.type ?? ""));
    const reason = element("span", { class: "feed-reason", title: reasonInWords(event.reason) }, visible(event.reason ?? ""));
    return element("li", { "data-type": event.type }, time(event), sign, type, who, reason, node);
  }
}

function place({ shard, id }) {
  return `${shard}:${id}`;
}

function time(event) {
  const ms = event.at_ms ?? event.to_ms ?? Number.parseInt(event.id, 10);
  return element("time", {}, timeOfDay(ms));
}
