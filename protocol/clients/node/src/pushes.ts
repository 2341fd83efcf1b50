/** What a client hands out without being asked: messages, others' presence, its own connection. */

import type { Packet } from "./codec.js";
import type { RequestFailed } from "./errors.js";
import type { Value, ValueMap } from "./values.js";

const KEEPALIVE_SHARE = 0.4; // of the idle time-out, for a server that does not tell how often to beat
const DEFAULT_IDLE_TIMEOUT_MS = 30_000; // and for one that tells neither

/** Logged in: for the first time, or again. */
export interface Connected {
  readonly type: "connected";
  /** The server's name for this session, as in its logs and events. */
  readonly session: string;
  /** After so much silence the server ends the session. */
  readonly idleTimeoutMs: number;
  /** Between two beats, as the server wants them. */
  readonly keepaliveMs: number;
  /** The server's clock, Unix milliseconds; null if it did not tell. */
  readonly timeMs: number | null;
  /** Whether this client was online before. */
  readonly again: boolean;
}

/** The connection is lost, or an attempt to come back failed; the client tries again by itself. */
export interface Disconnected {
  readonly type: "disconnected";
  /**
   * The server's reason, or `closed` (it closed, or the network did), `unreachable` (no connection),
   * `no_token` (the program has given none), `login_timeout` (no answer to the login), `dead_server` (no
   * answer to a beat), `bad_server` (its bytes break the protocol).
   */
  readonly reason: string;
  /** For people; may be empty. */
  readonly message: string;
  /** Until the next attempt. */
  readonly retryInMs: number;
  /** The server's code; null where the client noticed by itself. */
  readonly code: number | null;
}

/** The server has announced that it closes the connection; what follows from that comes next. */
export interface Goodbye {
  readonly type: "goodbye";
  readonly code: number;
  readonly reason: string;
  /** Whether the client comes back (then `disconnected` follows) or has ended. */
  readonly reconnect: boolean;
  readonly retryAfterMs: number | null;
  readonly message: string;
}

/** A message from another user. */
export interface Delivered {
  readonly type: "message";
  readonly from: string;
  readonly body: Value;
  /** When the server took it, Unix milliseconds. */
  readonly atMs: number;
}

/** A user's presence. */
export interface UserState {
  /** `online`, `away`, `offline` or `unknown`; treat any other as `unknown`. */
  readonly status: string;
  /** When it began, Unix milliseconds; null if not told. */
  readonly sinceMs: number | null;
  /** Last sign of life; null while online, or if not told. */
  readonly lastSeenMs: number | null;
  /** Of the event that led to it; null if not told. */
  readonly id: string | null;
  /** As the user set it. */
  readonly meta: ValueMap;
}

/** A watched user's state has changed. */
export interface PresenceChanged {
  readonly type: "presence";
  readonly uid: string;
  readonly state: UserState;
  /**
   * Name of the code that caused it; `meanwhile` for what had changed when the client came back from a lost
   * connection: what lay between is not told.
   */
  readonly reason: string;
}

export const MEANWHILE = "meanwhile";

/**
 * After a return the server refused to go on with a watch: of these users no more changes come. What
 * passes, a busy server, say, is no reason: then the client tries again by itself.
 */
export interface WatchEnded {
  readonly uids: readonly string[];
  readonly error: RequestFailed;
}

export type Push = Connected | Disconnected | Goodbye | Delivered | PresenceChanged;

/** Return the state that a map of the protocol describes; it was checked when it was read. */
export function parseUserState(map: ValueMap): UserState {
  return {
    status: map["status"] as string,
    sinceMs: toNumberOrNull(map["since_ms"]),
    lastSeenMs: toNumberOrNull(map["last_seen_ms"]),
    id: (map["id"] ?? null) as string | null,
    meta: (map["meta"] ?? {}) as ValueMap,
  };
}

/** Return the states of an answer by uid. A uid may be any string, so this is a Map and no object. */
export function parseUserStates(payload: ValueMap): Map<string, UserState> {
  const states = (payload["presence"] ?? {}) as { [uid: string]: ValueMap };
  return new Map(Object.entries(states).map(([uid, state]) => [uid, parseUserState(state)]));
}

/** Return what the answer to a login tells. @param again whether the client was online before. */
export function parseConnected(payload: ValueMap, again: boolean): Connected {
  const idleTimeoutMs = secondsToMs(payload["idle_timeout"]) ?? DEFAULT_IDLE_TIMEOUT_MS;
  const keepaliveMs = secondsToMs(payload["keepalive"]) ?? KEEPALIVE_SHARE * idleTimeoutMs;
  const session = (payload["session"] ?? "") as string;
  const timeMs = toNumberOrNull(payload["time_ms"]);
  return { type: "connected", session, idleTimeoutMs, keepaliveMs, timeMs, again };
}

export function parseDelivered({ payload }: Packet): Delivered {
  const from = payload["from"] as string;
  return { type: "message", from, body: payload["body"] as Value, atMs: Number(payload["at_ms"]) };
}

export function parsePresenceChanged({ payload }: Packet): PresenceChanged {
  const { uid, reason } = payload as { uid: string; reason: string };
  return { type: "presence", uid, state: parseUserState(payload), reason };
}

export function parseGoodbye({ payload }: Packet): Goodbye {
  const {
    reason,
    reconnect,
    message = "",
  } = payload as { reason: string; reconnect: boolean; message?: string };
  const code = Number(payload["code"]);
  return {
    type: "goodbye",
    code,
    reason,
    reconnect,
    retryAfterMs: secondsToMs(payload["retry_after"]),
    message,
  };
}

/** Return seconds of the protocol in milliseconds. */
export function secondsToMs(seconds: Value | undefined): number | null {
  return seconds === undefined ? null : Number(seconds) * 1000;
}

function toNumberOrNull(value: Value | undefined): number | null {
  return value === undefined || value === null ? null : Number(value);
}
