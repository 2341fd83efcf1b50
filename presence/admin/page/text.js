// Formats numbers and texts. Does not use the document.

export const NO_VALUE = "–";
const numbers = new Intl.NumberFormat("en-GB");
// As in presence/common/text.py: what shows nothing, or joins the letter before it.
const UNMARKED = /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800\u{13441}\u{13442}\u{16fe4}\u{1d159}]|(?! )\p{Zs}/u;
const JOINING = /[\p{M}\u1161-\u1175\u11a8-\u11c2]/u;
const CODE = /\\u\{([0-9a-f]{1,6})\}/g;

/**
 * Text of clients, in which two different names never look the same, apart from letters that look alike: what is
 * invisible or could reverse the line is replaced by its code, and so are combining marks, and characters with
 * another canonical form, if the text is not in normal form C. Names have no braces, so none contains a code.
 */
export function escapeInvisible(value) {
  const text = String(value);
  const isComposed = text.normalize("NFC") === text;
  const isHidden = (char) => UNMARKED.test(char) || (!isComposed && (JOINING.test(char) || char.normalize("NFC") !== char));
  return Array.from(text, (char) => (isHidden(char) ? `\\u{${char.codePointAt(0).toString(16)}}` : char)).join("");
}

/** The name that `escapeInvisible` shows as this text. */
export function unescapeName(text) {
  return text.replace(CODE, (code, hex) => (Number.parseInt(hex, 16) <= 0x10ffff ? String.fromCodePoint(Number.parseInt(hex, 16)) : code));
}

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function count(value) {
  return isNumber(value) ? numbers.format(Math.round(value)) : NO_VALUE;
}

/** A rate; below 10 with one decimal. */
export function rate(value) {
  if (!isNumber(value)) return NO_VALUE;
  return value > 0 && value < 9.95 ? value.toFixed(1) : count(value);
}

/** "1 session", "3 sessions". */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function bytes(value) {
  if (!isNumber(value)) return NO_VALUE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 99.5 ? size.toFixed(1) : count(size)} ${units[unit]}`;
}

/** A duration: "0.4 s", "12 s", "3 min 05 s", "2 h 07 min", "4 d 3 h". */
export function duration(seconds, decimals = 0) {
  if (!isNumber(seconds)) return NO_VALUE;
  const whole = Math.floor(seconds);
  if (seconds < 60) return `${decimals ? seconds.toFixed(decimals) : whole} s`;
  const twoDigits = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${twoDigits(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${twoDigits(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

export function milliseconds(seconds) {
  if (!isNumber(seconds)) return NO_VALUE;
  const ms = seconds * 1000;
  return `${ms > 0 && ms < 9.95 ? ms.toFixed(1) : count(ms)} ms`;
}

export function percent(fraction) {
  if (!isNumber(fraction)) return NO_VALUE;
  const value = fraction * 100;
  if (value > 99.9 && value < 100) return "> 99.9 %";
  return `${value >= 10 && value < 99 ? Math.round(value) : Number(value.toFixed(1))} %`;
}

/** The time of day in the browser's time zone. */
export function timeOfDay(ms, options = { hour: "2-digit", minute: "2-digit", second: "2-digit" }) {
  return isNumber(ms) ? new Date(ms).toLocaleTimeString("en-GB", options) : NO_VALUE;
}

/** The time of day, with the date unless it is today. */
export function dateTime(ms) {
  if (!isNumber(ms)) return NO_VALUE;
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
  rooms: "is in other rooms",
  logout: "logged out",
  background: "the app went to the background and logged out",
  closed: "the connection was lost, and the client did not return within the grace period",
  idle_timeout: "silent: no complete packet within the idle time-out",
  slow_consumer: "read too slowly",
  replaced: "the device logged in elsewhere",
  kicked: "kicked by an operator",
  auth_expired: "the token expired without a renewal",
  session_limit: "too many sessions of one user",
  banned: "banned by an operator",
  protocol_error: "violated the protocol",
  rate_limited: "sent too many packets",
  server_drain: "the server was stopped, and the client did not return",
  server_restart: "the server was restarted, and the client did not return",
  node_down: "the node died, and the client did not return elsewhere",
  server_error: "internal error of the server",
};

/** A description of a reason; an unknown reason is returned as it is. */
export function describeReason(reason) {
  return REASONS[reason] ?? escapeInvisible(reason ?? NO_VALUE);
}
