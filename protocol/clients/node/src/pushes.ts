/** What the client reports without a request: messages, presence of others, its own connection. */

import { KEEPALIVE_SHARE } from "./keepalives.js";
import type { Packet } from "./codec.js";
import { Code, Kind } from "./constants.js";
import type { Refusal } from "./errors.js";
import type { Value, ValueMap } from "./values.js";

const DEFAULT_IDLE_TIMEOUT_MS = 30_000; // if the server names none
const REASONS = new Map<number, string>(Object.entries(Code).map(([name, code]) => [code, name.toLowerCase()]));

/** Logged in, for the first time or again. */
export interface Connected {
  readonly type: "connected";
  /** The server's name for this session, as in its logs and events. */
  readonly session: string;
  /** The server ends the session after this long without a packet. */
  readonly idleTimeoutMs: number;
  /** Interval of keepalives that the server asks for. */
  readonly keepaliveMs: number;
  /** The server's clock, Unix milliseconds; null if unknown. */
  readonly timeMs: number | null;
  /** Whether this client was online before. */
  readonly again: boolean;
}

/** The connection is lost, or an attempt to reconnect failed; the client tries again by itself. */
export interface Disconnected {
  readonly type: "disconnected";
  /**
   * The server's reason, or `closed` (it closed, or the network did), `unreachable` (no connection),
   * `no_token` (the program returned none), `login_timeout` (no answer to the login), `dead_server` (no
   * answer to a keepalive), `bad_server` (its bytes break the protocol).
   */
  readonly reason: string;
  /** For people; may be empty. */
  readonly message: string;
  /** Time until the next attempt. */
  readonly retryInMs: number;
  /** The server's code; null if the client detected the loss. */
  readonly code: number | null;
}

/** The server has announced that it closes the connection; the consequence follows as another event. */
export interface Goodbye {
  readonly type: "goodbye";
  readonly code: number;
  readonly reason: string;
  /** Whether the client reconnects (then `disconnected` follows) or has ended. */
  readonly reconnect: boolean;
  readonly retryAfterMs: number | null;
  readonly message: string;
}

/** A message from another user. */
export interface Delivered<Body = unknown> {
  readonly type: "message";
  /** The uid of its sender. */
  readonly sender: string;
  /** As it was sent: what the sender's program makes of it, which nothing here has checked. */
  readonly body: Body;
  /** When the server received it, Unix milliseconds. */
  readonly atMs: number;
}

/** What became of a message whose recipients were asked to confirm it. */
export interface Receipt {
  /** Sessions to whose connections it was handed, at least 1. */
  readonly delivered: number;
  /** Of these, those that certainly have it. */
  readonly confirmed: number;
  /** Of the confirmed, those whose app has received it; of the others the kernel has, or a proxy's. */
  readonly byApp: number;
  /** The rest of the delivered; all, if the server is older. */
  readonly unconfirmed: number;
}

/** A user's presence. */
export interface UserState {
  /** `online`, `away`, `busy`, `dnd`, `offline`, `unknown` or `not_allowed`; treat any other as `unknown`. */
  readonly status: string;
  /** When this status began, Unix milliseconds; null if unknown. */
  readonly sinceMs: number | null;
  /** Last sign of life; null while online, or if unknown. */
  readonly lastSeenMs: number | null;
  /** Id of the event that led to this state; null if unknown. */
  readonly id: string | null;
  readonly meta: ValueMap;
  /** Why the user is offline: the name of a code; null if unknown, or not offline. */
  readonly reason: string | null;
  /** By name; null if not asked for, or not known. */
  readonly devices: readonly DeviceState[] | null;
}

/** A device of a user who is online. */
export interface DeviceState {
  /** Empty: the default one. */
  readonly device: string;
  /** As of `UserState`. */
  readonly status: string;
  /** When it logged in, Unix milliseconds. */
  readonly sinceMs: number;
  /** What it is, as it says: phone, web; null if it does not. */
  readonly deviceClass: string | null;
  readonly meta: ValueMap;
}

/** A watched user's state has changed. */
export interface PresenceChanged {
  readonly type: "presence";
  readonly uid: string;
  readonly state: UserState;
  /**
   * Name of the code that caused it; `watched` for the first state of a user given to `watchNowait`, or added to
   * the roster; `removed`, as is the status, for a user who was taken off the roster and is not watched any more;
   * `meanwhile` for a change found after a reconnect: intermediate states are not reported.
   */
  readonly reason: string;
}

export const MEANWHILE = "meanwhile";
export const WATCHED = "watched";
export const REMOVED = "removed";

/**
 * The server refused a watch that no call waits for: no more changes of these users follow. Temporary failures,
 * such as a busy server, do not cause it: then the client tries again by itself.
 */
export interface WatchEnded {
  readonly type: "watchEnded";
  readonly uids: readonly string[];
  readonly code: number;
  readonly reason: string;
  /** For people. */
  readonly message: string;
}

/** Who is in a room. */
export interface RoomState {
  /** How many users are in it; those who are invisible do not count. */
  readonly count: number;
  /**
   * Their uids, without those whom this client may not see. Null if they are not shown: the operator or the token
   * does not allow it, or they are too many.
   */
  readonly members: readonly string[] | null;
}

/** A watched room has changed. */
export interface RoomChanged {
  readonly type: "room";
  readonly room: string;
  /** Null: this client may not watch it any more, or the server has no rooms; no more changes of it follow. */
  readonly state: RoomState | null;
  /** The members who are new since the last known state; empty unless both states have `members`. */
  readonly joined: readonly string[];
  /** Those who are not there any more. */
  readonly left: readonly string[];
}

/** What the server says of a room. */
export interface RoomRow {
  readonly type: "row";
  readonly room: string;
  /** Null: it may not be watched any more. */
  readonly count: number | null;
  /** All members, or the new ones if `left` is there; null if they are not shown. */
  readonly members: readonly string[] | null;
  /** Who is not a member any more; null if `members` are all. */
  readonly left: readonly string[] | null;
}

/** In an iterator, in the place of elements that were dropped because the program did not read. */
export interface Dropped {
  readonly type: "dropped";
  readonly kind: "messages" | "presence" | "rooms" | "connection";
  readonly count: number;
}

/** What the server, or the machine, reports without a request. */
export type Push = Connected | Disconnected | Goodbye | Delivered | PresenceChanged;

export function parseUserState(map: ValueMap): UserState {
  return {
    status: map["status"] as string,
    sinceMs: toNumberOrNull(map["since_ms"]),
    lastSeenMs: toNumberOrNull(map["last_seen_ms"]),
    id: (map["id"] ?? null) as string | null,
    meta: (map["meta"] ?? {}) as ValueMap,
    reason: map["status"] === "offline" ? ((map["reason"] ?? null) as string | null) : null,
    devices: map["devices"] === undefined ? null : (map["devices"] as ValueMap[]).map(parseDeviceState),
  };
}

function parseDeviceState(map: ValueMap): DeviceState {
  return {
    device: map["device"] as string,
    status: map["status"] as string,
    sinceMs: Number(map["since_ms"]),
    deviceClass: (map["class"] ?? null) as string | null,
    meta: (map["meta"] ?? {}) as ValueMap,
  };
}

export function parseReceipt(payload: ValueMap): Receipt {
  const [delivered, confirmed, byApp] = ["delivered", "confirmed", "by_app"].map((name) =>
    Number(payload[name] ?? 0),
  ) as [number, number, number];
  return { delivered, confirmed, byApp, unconfirmed: Math.max(0, delivered - confirmed) };
}

/**
 * Returns the states in an answer, by uid; those of an older server are in `presence`. A Map, because a uid may be
 * any string.
 */
export function parseUserStates(payload: ValueMap): Map<string, UserState> {
  const states = Object.entries((payload["presence"] ?? {}) as { [uid: string]: ValueMap });
  const rows = ((payload["states"] ?? []) as readonly Value[]).map(parseRow);
  return new Map([...states, ...rows].map(([uid, state]) => [uid, parseUserState(state)]));
}

/** Returns the user of a row, and the state as an older server sends it. */
export function parseRow(row: Value): [uid: string, state: ValueMap] {
  const elements = typeof row === "string" ? [row] : (row as readonly Value[]);
  const [uid, status, code, ms, n, since, seen, meta, devices] = elements.map((each) => each ?? undefined);
  const sinceMs = since === undefined ? null : Number(ms ?? 0) + Number(since);
  const state = {
    status: status ?? "offline",
    since_ms: sinceMs,
    last_seen_ms: seen === undefined ? null : (sinceMs ?? 0) - Number(seen),
    id: ms === undefined ? null : `${ms as bigint}-${n as bigint}`,
    meta: meta ?? {},
    reason: code === undefined ? null : (REASONS.get(Number(code)) ?? String(code as string | number)),
  };
  return [uid as string, devices === undefined ? state : { ...state, devices }];
}

/** Returns the rows in an answer, or in a packet of kind `ROOMS`; null if there are none. */
export function parseRoomRows(payload: ValueMap): RoomRow[] | null {
  const rows = payload["rooms"] as readonly (readonly Value[])[] | undefined;
  return rows?.map(parseRoomRow) ?? null;
}

function parseRoomRow([room, count, members, left]: readonly Value[]): RoomRow {
  return {
    type: "row",
    room: room as string,
    count: toNumberOrNull(count),
    members: (members ?? null) as readonly string[] | null,
    left: (left ?? null) as readonly string[] | null,
  };
}

/** @param again whether the client was online before. */
export function parseConnected(payload: ValueMap, again: boolean): Connected {
  const idleTimeoutMs = secondsToMs(payload["idle_timeout"]) ?? DEFAULT_IDLE_TIMEOUT_MS;
  const keepaliveMs = secondsToMs(payload["keepalive"]) ?? KEEPALIVE_SHARE * idleTimeoutMs;
  const session = (payload["session"] ?? "") as string;
  const timeMs = toNumberOrNull(payload["time_ms"]);
  return { type: "connected", session, idleTimeoutMs, keepaliveMs, timeMs, again };
}

export function parseDelivered({ payload }: Packet): Delivered {
  const sender = payload["from"] as string;
  return { type: "message", sender, body: payload["body"], atMs: Number(payload["at_ms"]) };
}

/** Returns the changes in a packet of either kind that has some, in order. */
export function parsePresenceChanges({ kind, payload }: Packet): PresenceChanged[] {
  const states: (readonly [string, ValueMap])[] =
    kind === Kind.CHANGES
      ? (payload["changes"] as readonly Value[]).map(parseRow)
      : [[payload["uid"] as string, payload]];
  return states.map(([uid, state]) => {
    return { type: "presence", uid, state: parseUserState(state), reason: state["reason"] as string };
  });
}

export function parseGoodbye({ payload }: Packet): Goodbye {
  return { type: "goodbye", ...parseRefusal(payload), reconnect: payload["reconnect"] as boolean };
}

/** Returns the contents of an error or goodbye packet. */
export function parseRefusal(payload: ValueMap): Refusal {
  return {
    code: Number(payload["code"]),
    reason: payload["reason"] as string,
    message: (payload["message"] ?? "") as string,
    retryAfterMs: secondsToMs(payload["retry_after"]),
  };
}

function secondsToMs(seconds: Value | undefined): number | null {
  return seconds === undefined ? null : Number(seconds) * 1000;
}

function toNumberOrNull(value: Value | undefined): number | null {
  return value === undefined || value === null ? null : Number(value);
}
