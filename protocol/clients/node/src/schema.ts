/**
 * The fields of each kind of packet, and their checks.
 *
 * Unknown keys are ignored, so that newer peers can send more. A known key must have the right type; nil does
 * not mean "absent".
 */

import { isLongerThan } from "./bytes.js";
import {
  CLASS_MAX_BYTES,
  CONFIRM_MAX_S,
  Code,
  DEVICE_MAX_BYTES,
  Kind,
  META_DEPTH_MAX,
  META_MAX_BYTES,
  META_TEXT_MAX_BYTES,
  NAMES_MAX,
  PASS_MAX_BYTES,
  ROOM_MAX_BYTES,
  ROOMS_MAX,
  TOKEN_MAX_BYTES,
  UID_MAX_BYTES,
  UIDS_MAX,
  WATCHED_ROOMS_MAX,
} from "./constants.js";
import { ProtocolError } from "./errors.js";
import { isMap, type Raw, type RawMap, WholeFloat } from "./values.js";
import { pack } from "./writer.js";

/** Throws a ProtocolError whose message begins with `name`. */
type Check = (value: Raw, name: string) => void;

/** A required key, unless the key `unless` is present. */
interface Required {
  readonly check: Check;
  readonly unless?: string;
}

type Fields = Readonly<Record<string, Check | Required>>;

const UINT_MAX = 2n ** 64n - 1n;
// C0, DEL and C1 controls, Unicode white space, and braces. (`\s` would also match U+FEFF.)
const FORBIDDEN = /[\x00-\x1f\x7f-\x9f\p{White_Space}{}]/u;

function invalid(name: string, what: string): ProtocolError {
  return new ProtocolError(Code.PROTOCOL_ERROR, `${name} ${what}`);
}

function tooLarge(name: string, what: string): ProtocolError {
  return new ProtocolError(Code.TOO_LARGE, `${name} ${what}`);
}

function boundedText(maxBytes: number, forbidden?: RegExp): Check {
  return (value, name) => {
    if (typeof value !== "string" || !value) {
      throw invalid(name, "must be a string that is not empty");
    }
    if (isLongerThan(value, maxBytes)) {
      throw tooLarge(name, `is longer than ${maxBytes} bytes`);
    }
    if (forbidden?.test(value)) {
      throw invalid(name, "holds a control character, white space, { or }");
    }
  };
}

const uid = boundedText(UID_MAX_BYTES, FORBIDDEN);
const device = boundedText(DEVICE_MAX_BYTES, FORBIDDEN);
const deviceClass = boundedText(CLASS_MAX_BYTES, FORBIDDEN);
const token = boundedText(TOKEN_MAX_BYTES);
const visibilityPass = boundedText(PASS_MAX_BYTES);

function listOf(what: string, check: Check, most: number): Check {
  return (value, name) => {
    if (!Array.isArray(value)) {
      throw invalid(name, `must be a list of ${what}`);
    }
    if (value.length > most) {
      throw tooLarge(name, `holds more than ${most} ${what}`);
    }
    value.forEach((each) => check(each, `an element of ${name}`));
  };
}

const uids = listOf("uids", uid, UIDS_MAX);
const names = listOf("names", deviceClass, NAMES_MAX);
const room = boundedText(ROOM_MAX_BYTES, FORBIDDEN);
const rooms = listOf("rooms", room, ROOMS_MAX);
const watchedRooms = listOf("rooms", room, WATCHED_ROOMS_MAX);

const meta: Check = (value, name) => {
  if (!isMap(value)) {
    throw invalid(name, "must be a map");
  }
  if (nestingDepth(value) > META_DEPTH_MAX) {
    throw invalid(name, `is nested more than ${META_DEPTH_MAX} deep`);
  }
  if (pack(value).length > META_MAX_BYTES) {
    throw tooLarge(name, `takes more than ${META_MAX_BYTES} bytes packed`);
  }
  if (textBytes(value) > META_TEXT_MAX_BYTES) {
    throw tooLarge(name, `takes more than ${META_TEXT_MAX_BYTES} bytes as text`);
  }
};

/** Returns the size of a value as JSON text, counted as SPEC.md says. */
function textBytes(value: Raw): number {
  if (typeof value === "string") {
    return new TextEncoder().encode(JSON.stringify(value).replaceAll("\x7f", "\\u007f")).length;
  }
  if (value instanceof Uint8Array) {
    return '{"$bin":""}'.length + 2 * value.length;
  }
  if (typeof value === "number" && !Number.isInteger(value)) {
    return 24;
  }
  if (Array.isArray(value)) {
    return 2 + Math.max(0, value.length - 1) + value.reduce((sum: number, each) => sum + textBytes(each), 0);
  }
  if (isMap(value)) {
    const entries = Object.entries(value);
    const quoted = entries.length === 1 && entries[0]![0].startsWith("$") ? 1 : 0;
    const inner = entries.reduce((sum, [key, each]) => sum + textBytes(key) + 1 + textBytes(each), 0);
    return 2 + Math.max(0, entries.length - 1) + quoted + inner;
  }
  return String(value).length;
}

/** Returns the number of nested containers; the depth of a frame is already bounded. */
function nestingDepth(value: Raw): number {
  const inner = Array.isArray(value) ? value : isMap(value) ? Object.values(value) : null;
  return inner ? 1 + Math.max(0, ...inner.map(nestingDepth)) : 0;
}

const string: Check = (value, name) => {
  if (typeof value !== "string") {
    throw invalid(name, "must be a string");
  }
};

const boolean: Check = (value, name) => {
  if (typeof value !== "boolean") {
    throw invalid(name, "must be a boolean");
  }
};

const uint: Check = (value, name) => {
  if (!isUint(value)) {
    throw invalid(name, "must be an unsigned integer");
  }
};

const seconds: Check = (value, name) => {
  const number = asNumber(value);
  if (number === null || number <= 0) {
    throw invalid(name, "must be a number above 0");
  }
};

const confirm: Check = (value, name) => {
  const number = asNumber(value);
  if (number === null || number <= 0 || number > CONFIRM_MAX_S) {
    throw invalid(name, `must be a number above 0, of at most ${CONFIRM_MAX_S}`);
  }
};

const uints: Check = (value, name) => {
  if (!Array.isArray(value) || !value.every(isUint)) {
    throw invalid(name, "must be a list of unsigned integers");
  }
  if (value.length > UIDS_MAX) {
    throw tooLarge(name, `holds more than ${UIDS_MAX} numbers`);
  }
};

const delay: Check = (value, name) => {
  const number = asNumber(value);
  if (number === null || number < 0) {
    throw invalid(name, "must be a number of at least 0");
  }
};

const any: Check = () => undefined;

function oneOf(...choices: readonly string[]): Check {
  return (value, name) => {
    if (typeof value !== "string" || !choices.includes(value)) {
      throw invalid(name, `must be ${choices.join(" or ")}`);
    }
  };
}

function orNil(check: Check): Check {
  return (value, name) => {
    if (value !== null) {
      check(value, name);
    }
  };
}

const DEVICE: Fields = {
  device: { check: string },
  status: { check: string },
  since_ms: { check: uint },
  class: string,
  meta,
};

const devices: Check = (value, name) => {
  if (!Array.isArray(value)) {
    throw invalid(name, "must be a list of devices");
  }
  for (const each of value) {
    if (!isMap(each)) {
      throw invalid(name, "has a device that is no map");
    }
    checkFields(each, DEVICE, `a device of ${name}: `);
  }
};

const SHOWN: Fields = {
  status: { check: string }, // any string: a newer status must not end the connection of an older client
  since_ms: orNil(uint),
  last_seen_ms: orNil(uint),
  id: orNil(string),
  meta,
  reason: string,
};

const STATE: Fields = { ...SHOWN, devices };

const states: Check = (value, name) => {
  if (!isMap(value)) {
    throw invalid(name, "must be a map of uids to states");
  }
  const entries = Object.entries(value);
  if (entries.length > UIDS_MAX) {
    throw tooLarge(name, `holds more than ${UIDS_MAX} states`);
  }
  for (const [key, state] of entries) {
    uid(key, `a uid of ${name}`);
    if (!isMap(state)) {
      throw invalid(name, "has a state that is no map");
    }
    checkFields(state, STATE, `a state of ${name}: `);
  }
};

const integer: Check = (value, name) => {
  if (!isInteger(value)) {
    throw invalid(name, "must be an integer");
  }
};

const codeOrName: Check = (value, name) => {
  if (typeof value !== "string" && !isUint(value)) {
    throw invalid(name, "must be an unsigned integer or a string");
  }
};

const ROW: readonly (readonly [string, Check])[] = [
  ["uid", uid],
  ["status", orNil(string)],
  ["code", orNil(codeOrName)],
  ["ms", orNil(uint)],
  ["n", orNil(uint)],
  ["since", orNil(integer)],
  ["seen", orNil(integer)],
  ["meta", orNil(meta)],
  ["devices", orNil(devices)],
];

function row(value: Raw, name: string, hasCode: boolean): void {
  const elements = typeof value === "string" ? [value] : value;
  if (!Array.isArray(elements) || elements.length === 0) {
    throw invalid(name, "has a row that is neither a uid nor an array with one");
  }
  checkElements(elements, ROW, `a row of ${name}`);
  const [, , code = null, ms = null, n = null, since = null, seen = null] = elements;
  if (hasCode && code === null) {
    throw invalid(name, "has a row without a code");
  }
  if ((ms === null) !== (n === null)) {
    throw invalid(name, "has a row with half of an id");
  }
  const sinceMs = since === null ? 0n : asBigInt(ms) + asBigInt(since);
  const lastSeenMs = sinceMs - asBigInt(seen);
  if (sinceMs < 0n || lastSeenMs < 0n || sinceMs > UINT_MAX || lastSeenMs > UINT_MAX) {
    throw invalid(name, "has a row with a time that is no unsigned integer");
  }
}

/** Checks the elements of a row; those of later versions are ignored. */
function checkElements(row: Raw[], checks: readonly (readonly [string, Check])[], name: string): void {
  checks.slice(0, row.length).forEach(([element, check], at) => {
    check(row[at] as Raw, `${element} of ${name}`);
  });
}

/** Returns the exact value of an integer; nil counts as 0. */
function asBigInt(value: Raw): bigint {
  return BigInt((value ?? 0) as number | bigint);
}

function rows(what: string, hasCode: boolean): Check {
  return (value, name) => {
    if (!Array.isArray(value)) {
      throw invalid(name, `must be a list of ${what}`);
    }
    if (value.length > UIDS_MAX) {
      throw tooLarge(name, `holds more than ${UIDS_MAX} rows`);
    }
    value.forEach((each) => row(each, name, hasCode));
  };
}

const ROOM_ROW: readonly (readonly [string, Check])[] = [
  ["room", room],
  ["count", orNil(uint)],
  ["members", uids],
  ["left", uids],
];

const roomRow: Check = (value, name) => {
  if (!Array.isArray(value) || value.length < 2) {
    throw invalid(name, "is no array with a room and a count");
  }
  checkElements(value, ROOM_ROW, name);
};

const roomRows = listOf("room rows", roomRow, WATCHED_ROOMS_MAX);

const status = oneOf("online", "away", "busy", "dnd", "invisible");
const scope = oneOf("session", "user");

const SCHEMA: ReadonlyMap<number | bigint, Fields> = new Map<number | bigint, Fields>([
  [
    Kind.LOGIN,
    {
      uid: { check: uid, unless: "token" },
      device,
      class: deviceClass,
      token,
      idle_timeout: seconds,
      meta,
      private: meta,
      status,
      until_ms: uint,
      scope,
      hide: names,
      quiet: boolean,
      v: uint,
      confirms: boolean,
      batch: boolean,
      rooms,
    },
  ],
  [Kind.MESSAGE, { to: { check: uid }, body: { check: any }, confirm }],
  [Kind.KEEPALIVE, { confirmed: uints }],
  [Kind.LOGOUT, { reason: oneOf("logout", "background") }],
  [Kind.QUERY, { uids: { check: uids }, detail: boolean, rooms: watchedRooms }],
  [
    Kind.WATCH,
    { uids: { check: uids }, detail: boolean, pass: visibilityPass, roster: boolean, rooms: watchedRooms },
  ],
  [Kind.UNWATCH, { uids, roster: boolean, rooms: watchedRooms }],
  [
    Kind.UPDATE,
    {
      meta,
      private: meta,
      token,
      status,
      until_ms: uint,
      scope,
      hide: names,
      idle_timeout: seconds,
      quiet: boolean,
      rooms,
      join: rooms,
      leave: rooms,
    },
  ],
  [
    Kind.OK,
    {
      session: string,
      idle_timeout: seconds,
      keepalive: seconds,
      time_ms: uint,
      v: uint,
      delivered: uint,
      scope: string,
      hide: names,
      confirmed: uint,
      by_app: uint,
      unconfirmed: uint,
      presence: states,
      states: rows("rows", false),
      roster: uint,
      joined: rooms,
      rooms: roomRows,
      later: watchedRooms,
    },
  ],
  [
    Kind.ERROR,
    { code: { check: uint }, reason: { check: string }, message: { check: string }, retry_after: delay },
  ],
  [Kind.PRESENCE, { uid: { check: uid }, ...STATE, reason: { check: string } }],
  [Kind.DELIVER, { from: { check: uid }, body: { check: any }, at_ms: { check: uint }, confirm: uint }],
  [
    Kind.GOODBYE,
    {
      code: { check: uint },
      reason: { check: string },
      reconnect: { check: boolean },
      retry_after: delay,
      message: string,
    },
  ],
  [Kind.CHANGES, { changes: { check: rows("changes", true) } }],
  [Kind.ROOMS, { rooms: { check: roomRows } }],
]);

/**
 * Checks a payload against the schema; unknown kinds may have any payload.
 *
 * @throws ProtocolError a key is missing, has the wrong type, or exceeds a limit (then TOO_LARGE).
 */
export function checkPayload(kind: number | bigint, payload: RawMap): void {
  const fields = SCHEMA.get(kind);
  if (fields) {
    checkFields(payload, fields, "");
    if (fields["rooms"] === watchedRooms && Object.hasOwn(payload, "rooms")) {
      checkRoomsAreAlone(payload);
    }
  }
}

/** A request for rooms is for nothing else: other keys are absent, empty or false. */
function checkRoomsAreAlone(payload: RawMap): void {
  const other = ["uids", "detail", "pass", "roster"].find((name) => {
    const value = payload[name];
    return Array.isArray(value) ? value.length > 0 : Boolean(value);
  });
  if (other !== undefined) {
    throw invalid(other, "must not be given beside rooms");
  }
}

export function isUint(value: Raw): value is number | bigint {
  return isInteger(value) && value >= 0;
}

function isInteger(value: Raw): value is number | bigint {
  return typeof value === "bigint" || (typeof value === "number" && Number.isInteger(value));
}

function asNumber(value: Raw): number | null {
  if (value instanceof WholeFloat) {
    return value.value;
  }
  return typeof value === "number" || typeof value === "bigint" ? Number(value) : null;
}

function checkFields(payload: RawMap, fields: Fields, prefix: string): void {
  for (const [name, field] of Object.entries(fields)) {
    const required = typeof field === "function" ? null : field;
    if (Object.hasOwn(payload, name)) {
      (required ? required.check : (field as Check))(payload[name] as Raw, prefix + name);
    } else if (required && !(required.unless !== undefined && Object.hasOwn(payload, required.unless))) {
      throw invalid(prefix + name, "is missing");
    }
  }
}
