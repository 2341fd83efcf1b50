/** Errors. Every error that the client throws on purpose is a `PresenceError`. */

import { Code } from "./constants.js";

/** The peer broke a rule of the protocol. */
export class ProtocolError extends Error {
  /** Kind and id of the packet; null if unreadable. */
  kind: number | bigint | null = null;
  id: number | bigint | null = null;

  /** @param code what a server would refuse it with: PROTOCOL_ERROR or TOO_LARGE. */
  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

/** Base class of the client's errors. */
export class PresenceError extends Error {}

/** An argument breaks a rule of the protocol; nothing was sent. */
export class EncodeError extends PresenceError {}

/** The first attempt failed: no connection, no answer, or an invalid one. */
export class Unreachable extends PresenceError {}

/** The first attempt got no token from the program; `cause` is its error. */
export class NoToken extends PresenceError {
  constructor(override readonly cause: unknown) {
    super(`no token: ${String(cause)}`);
  }
}

/** The contents of an error or goodbye packet. */
export interface Refusal {
  /** A reason code, perhaps unknown to `Code`. */
  readonly code: number;
  /** The code's name. */
  readonly reason: string;
  /** For people; may be empty. */
  readonly message: string;
  /** How long to wait before another try; null if the server named no time. */
  readonly retryAfterMs: number | null;
}

function describe({ code, reason, message }: Refusal): string {
  return message || `${reason} (${code})`;
}

/** One request failed; the client goes on. */
export class RequestError extends PresenceError {}

/** Not logged in at the moment, so nothing was sent. */
export class NotConnected extends RequestError {}

/** The request may or may not have been carried out: a message sent again may be delivered twice. */
export class Uncertain extends RequestError {}

/** The connection broke before the answer. */
export class ConnectionLost extends Uncertain {}

/** No answer in time. */
export class RequestTimeout extends Uncertain {}

/** The server failed while carrying out the request (403). `message`: for people, as of all errors. */
export class ServerFailed extends Uncertain implements Refusal {
  readonly code: number;
  readonly reason: string;
  readonly retryAfterMs: number | null;

  constructor(refusal: Refusal) {
    super(describe(refusal));
    ({ code: this.code, reason: this.reason, retryAfterMs: this.retryAfterMs } = refusal);
  }
}

/** The server answered a request with an error: nothing was done. */
export class RequestFailed extends RequestError implements Refusal {
  readonly code: number;
  readonly reason: string;
  readonly retryAfterMs: number | null;

  constructor(refusal: Refusal) {
    super(describe(refusal));
    ({ code: this.code, reason: this.reason, retryAfterMs: this.retryAfterMs } = refusal);
  }
}

/** This server does not support that kind of request (313). */
export class Unsupported extends RequestFailed {}

/** The recipient of a message has no session (314). */
export class RecipientOffline extends RequestFailed {}

/** More than the server allows, such as watches on one connection (315). */
export class LimitReached extends RequestFailed {}

/**
 * The recipient of a message has lost its connection and has not returned yet (317). It may return until
 * `retryAfterMs`.
 */
export class RecipientDisconnected extends RequestFailed {}

/** This user may not see the recipient of a message, or be in a room (318). */
export class NotAllowed extends RequestFailed {}

/** The server is at its limits (404), or this client sends too many requests (311). */
export class Busy extends RequestFailed {}

/** The client has ended, and does not reconnect by itself. */
export class Ended extends PresenceError implements Refusal {
  readonly code: number;
  readonly reason: string;
  readonly retryAfterMs: number | null;

  constructor(refusal: Refusal) {
    super(describe(refusal));
    ({ code: this.code, reason: this.reason, retryAfterMs: this.retryAfterMs } = refusal);
  }
}

/** The server refused the login. */
export class LoginRefused extends Ended {}

/** The same device of the same user has logged in elsewhere (300). */
export class Replaced extends Ended {}

/** An operator ended the user's sessions (301). */
export class Kicked extends Ended {}

/** The user has too many sessions, and this one made room for a newer one (304). */
export class SessionLimit extends Ended {}

/** An operator keeps the user or this device out, and the ban has no end (305). */
export class Banned extends Ended {}

const NAMED = {
  Banned,
  Busy,
  ConnectionLost,
  EncodeError,
  Ended,
  Kicked,
  LimitReached,
  LoginRefused,
  NoToken,
  NotAllowed,
  NotConnected,
  PresenceError,
  ProtocolError,
  RecipientDisconnected,
  RecipientOffline,
  Replaced,
  RequestError,
  RequestFailed,
  RequestTimeout,
  ServerFailed,
  SessionLimit,
  Uncertain,
  Unreachable,
  Unsupported,
};

// As text, because bundlers shorten the names of classes.
for (const [name, { prototype }] of Object.entries(NAMED)) {
  prototype.name = name;
}

const FAILED: ReadonlyMap<number, new (refusal: Refusal) => RequestFailed | ServerFailed> = new Map([
  [Code.UNSUPPORTED, Unsupported],
  [Code.RECIPIENT_OFFLINE, RecipientOffline],
  [Code.TOO_LARGE, LimitReached],
  [Code.RECIPIENT_DISCONNECTED, RecipientDisconnected],
  [Code.NOT_ALLOWED, NotAllowed],
  [Code.BUSY, Busy],
  [Code.RATE_LIMITED, Busy],
  [Code.SERVER_ERROR, ServerFailed],
] as const);

const ENDED: ReadonlyMap<number, new (refusal: Refusal) => Ended> = new Map([
  [Code.REPLACED, Replaced],
  [Code.KICKED, Kicked],
  [Code.SESSION_LIMIT, SessionLimit],
  [Code.BANNED, Banned],
] as const);

/** Returns the error for an error reply to a request. */
export function requestFailed(refusal: Refusal): RequestFailed | ServerFailed {
  return new (FAILED.get(refusal.code) ?? RequestFailed)(refusal);
}

/** Returns the error for a logged-in connection that the server ended for good. */
export function ended(refusal: Refusal): Ended {
  return new (ENDED.get(refusal.code) ?? Ended)(refusal);
}

/** Returns the pause that the server asked for with an error; null if it did not. */
export function retryAfterMs(error: PresenceError): number | null {
  return error instanceof RequestFailed || error instanceof ServerFailed ? error.retryAfterMs : null;
}
