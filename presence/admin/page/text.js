// Figures and texts as people read them. No look at the document.

export const NOTHING = "–";
const numbers = new Intl.NumberFormat("en-GB");
const INVISIBLE = /[\p{C}\p{Zl}\p{Zp}]/gu;

/** What strangers wrote, with every character that could hide, or turn the line around, spelled out. */
export function visible(text) {
  return String(text).replace(INVISIBLE, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function count(value) {
  return isNumber(value) ? numbers.format(Math.round(value)) : NOTHING;
}

/** A rate: with a decimal as long as it is small. */
export function rate(value) {
  if (!isNumber(value)) return NOTHING;
  return value > 0 && value < 9.95 ? value.toFixed(1) : count(value);
}

/** "1 session", "3 sessions". */
export function several(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 99.5 ? size.toFixed(1) : count(size)} ${units[unit]}`;
}

/** A length of time: "0.4 s", "12 s", "3 min 05 s", "2 h 07 min", "4 d 3 h". */
export function duration(seconds, decimals = 0) {
  if (!isNumber(seconds)) return NOTHING;
  const whole = Math.floor(seconds);
  if (seconds < 60) return `${decimals ? seconds.toFixed(decimals) : whole} s`;
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

export function milliseconds(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const ms = seconds * 1000;
  return `${ms > 0 && ms < 9.95 ? ms.toFixed(1) : count(ms)} ms`;
}

export function percent(part) {
  if (!isNumber(part)) return NOTHING;
  const value = part * 100;
  if (value > 99.9 && value < 100) return "> 99.9 %";
  return `${value >= 10 && value < 99 ? Math.round(value) : Number(value.toFixed(1))} %`;
}

/** The time of day, in the reader's zone. */
export function timeOfDay(ms, options = { hour: "2-digit", minute: "2-digit", second: "2-digit" }) {
  return isNumber(ms) ? new Date(ms).toLocaleTimeString("en-GB", options) : NOTHING;
}

/** Time of day, and the date too unless it is today. */
export function moment(ms) {
  if (!isNumber(ms)) return NOTHING;
  const day = new Date(ms);
  if (day.toDateString() === new Date().toDateString()) return timeOfDay(ms);
  return `${day.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${timeOfDay(ms)}`;
}

const REASONS = {
  login: "logged in",
  returned: "registered again, after a sweep or after Redis lost data",
  away: "went away",
  back: "came back",
  updated: "changed their status or meta",
  logout: "logged out",
  background: "the app went to the background and logged out",
  closed: "the connection was lost, and the client did not return within the grace period",
  idle_timeout: "silent: no complete packet within the idle time-out",
  slow_consumer: "read too slowly",
  replaced: "the device logged in elsewhere",
  kicked: "kicked by an operator",
  auth_expired: "the token expired without a renewal",
  session_limit: "too many sessions of one user",
  protocol_error: "violated the protocol",
  rate_limited: "sent too many packets",
  server_drain: "the server was stopped, and the client did not return",
  server_restart: "the server was restarted, and the client did not return",
  node_down: "the node died, and the client did not return elsewhere",
  server_error: "internal error of the server",
};

/** A reason code in words; an unknown one as it is. */
export function reasonInWords(reason) {
  return REASONS[reason] ?? visible(reason ?? NOTHING);
}
