/** Constants of protocol version 1: kinds, reason codes and limits, as in SPEC.md. */

export const VERSION = 1;

/** Packet kinds. Clients send those below 64, servers those from 64. */
export const Kind = {
  LOGIN: 1,
  MESSAGE: 2,
  KEEPALIVE: 3,
  LOGOUT: 4,
  QUERY: 5,
  WATCH: 6,
  UNWATCH: 7,
  UPDATE: 8,
  OK: 64,
  ERROR: 65,
  PRESENCE: 66,
  DELIVER: 67,
  GOODBYE: 68,
  CHANGES: 69,
  ROOMS: 70,
} as const;

/** Reason codes of errors, goodbyes and presence packets. A server may know more. */
export const Code = {
  LOGIN: 1,
  RETURNED: 2,
  AWAY: 3,
  BACK: 4,
  UPDATED: 5,
  WATCHED: 6,
  REMOVED: 7,
  ROOMS: 8,
  LOGOUT: 100,
  BACKGROUND: 101,
  CLOSED: 200,
  IDLE_TIMEOUT: 201,
  SLOW_CONSUMER: 202,
  REPLACED: 300,
  KICKED: 301,
  AUTH_EXPIRED: 302,
  AUTH_FAILED: 303,
  SESSION_LIMIT: 304,
  BANNED: 305,
  PROTOCOL_ERROR: 310,
  RATE_LIMITED: 311,
  LOGIN_TIMEOUT: 312,
  UNSUPPORTED: 313,
  RECIPIENT_OFFLINE: 314,
  TOO_LARGE: 315,
  NOT_LOGGED_IN: 316,
  RECIPIENT_DISCONNECTED: 317,
  NOT_ALLOWED: 318,
  SERVER_DRAIN: 400,
  SERVER_RESTART: 401,
  NODE_DOWN: 402,
  SERVER_ERROR: 403,
  BUSY: 404,
} as const;

const KNOWN_CODES: ReadonlySet<number> = new Set(Object.values(Code));
const RECONNECT_CODES: ReadonlySet<number> = new Set([
  Code.CLOSED,
  Code.IDLE_TIMEOUT,
  Code.SLOW_CONSUMER,
  Code.AUTH_EXPIRED,
  Code.RATE_LIMITED,
  Code.LOGIN_TIMEOUT,
  Code.RECIPIENT_DISCONNECTED,
  Code.SERVER_DRAIN,
  Code.SERVER_RESTART,
  Code.NODE_DOWN,
  Code.SERVER_ERROR,
  Code.BUSY,
]);

/** Whether a client may reconnect by itself after this code. True for an unknown code. */
export function mayReconnect(code: number): boolean {
  return RECONNECT_CODES.has(code) || !KNOWN_CODES.has(code);
}

// Frame lengths, without the four bytes of the length itself.
export const FRAME_LIMIT_BEFORE_LOGIN_BYTES = 1024;
export const FRAME_LIMIT_BYTES = 16_384;
export const SERVER_FRAME_LIMIT_BYTES = 262_144;

export const UIDS_MAX = 500;
export const UID_MAX_BYTES = 128;
export const DEVICE_MAX_BYTES = 64;
export const CLASS_MAX_BYTES = 32;
export const ROOM_MAX_BYTES = 64;
export const ROOMS_MAX = 16; // of a session
export const WATCHED_ROOMS_MAX = 64; // of a request, and of a connection
export const NAMES_MAX = 8; // in a list of them
export const META_MAX_BYTES = 256; // in the shortest MessagePack encoding
export const META_TEXT_MAX_BYTES = 512; // as JSON text
export const META_DEPTH_MAX = 8; // nested containers, including meta itself
export const TOKEN_MAX_BYTES = 768;
export const PASS_MAX_BYTES = 4096;
export const CONFIRM_MAX_S = 30;
export const DEPTH_MAX = 12; // nested containers, including the payload
