/** What can go wrong. What a client raises on purpose is a `PresenceError`. */

import { Code } from "./constants.js";

/** The peer sent something that the protocol forbids. */
export class ProtocolError extends Error {
  override readonly name: string = "ProtocolError";
  /** The packet's kind and id, as far as they could be read; null otherwise. */
  kind: number | bigint | null = null;
  id: number | bigint | null = null;

  /** `code`: what a server would refuse it with, PROTOCOL_ERROR or TOO_LARGE. */
  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

/** Base of all errors that a client hands out. */
export class PresenceError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** An argument breaks a rule of the protocol; nothing was sent. */
export class EncodeError extends PresenceError {}

/** The first attempt found no server: no connection, no answer, or none that makes sense. */
export class Unreachable extends PresenceError {}

/** The first attempt got no token from the program; `cause` is what went wrong there. */
export class NoToken extends PresenceError {
  constructor(override readonly cause: unknown) {
    super(`no token: ${String(cause)}`);
  }
}

/** One request failed; the client goes on. */
export class RequestError extends PresenceError {}

/** Not logged in at the moment, so nothing was sent. */
export class NotConnected extends RequestError {}

/** The connection broke before the answer came: the request may or may not have been carried out. */
export class ConnectionLost extends RequestError {}

/** No answer came in time: the request may or may not have been carried out. */
export class RequestTimeout extends RequestError {}

/** What a server's error or goodbye says. */
export interface Refusal {
  /** A reason code; one that `Code` does not know is possible. */
  readonly code: number;
  /** The code's name. */
  readonly reason: string;
  /** For people; may be empty. */
  readonly message: string;
  /** So long another try is pointless; null if the server did not say. */
  readonly retryAfterMs: number | null;
}

function describe(refusal: Refusal): string {
  return `${refusal.reason} (${refusal.code})` + (refusal.message && `: ${refusal.message}`);
}

/** The server answered a request with an error. */
export class RequestFailed extends RequestError {
  constructor(readonly refusal: Refusal) {
    super(describe(refusal));
  }

  get code(): number {
    return this.refusal.code;
  }
}

/** This server does not serve that kind of request (313). */
export class Unsupported extends RequestFailed {}

/** The user whom a message was for has no session (314). */
export class RecipientOffline extends RequestFailed {}

/**
 * The user whom a message was for has lost its connection, and has not returned yet (317). It may until
 * `refusal.retryAfterMs` is over; nothing was delivered.
 */
export class RecipientDisconnected extends RequestFailed {}

/** The client has ended and does not come back by itself. */
export class Ended extends PresenceError {
  constructor(readonly refusal: Refusal) {
    super(describe(refusal));
  }

  get code(): number {
    return this.refusal.code;
  }
}

/** The server refused the login. */
export class LoginRefused extends Ended {}

/** The same device of the same user has logged in elsewhere (300). */
export class Replaced extends Ended {}

/** Surely not carried out: the server is at its limits (404), or this client asks too often (311). */
export class Busy extends RequestFailed {}

/** The server broke off in the middle (403): the request may or may not have been carried out. */
export class OutcomeUnknown extends RequestFailed {}

/** The error for an error reply to a request. */
export function requestFailed(refusal: Refusal): RequestFailed {
  switch (refusal.code) {
    case Code.UNSUPPORTED:
      return new Unsupported(refusal);
    case Code.RECIPIENT_OFFLINE:
      return new RecipientOffline(refusal);
    case Code.RECIPIENT_DISCONNECTED:
      return new RecipientDisconnected(refusal);
    case Code.BUSY:
    case Code.RATE_LIMITED:
      return new Busy(refusal);
    case Code.SERVER_ERROR:
      return new OutcomeUnknown(refusal);
    default:
      return new RequestFailed(refusal);
  }
}

/** The error for a logged-in connection that ended for good. */
export function ended(refusal: Refusal): Ended {
  return refusal.code === Code.REPLACED ? new Replaced(refusal) : new Ended(refusal);
}
