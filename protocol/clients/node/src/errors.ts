/** Errors. Every error that the client throws on purpose is a `PresenceError`. */

import { Code } from "./constants.js";

/** The peer broke a rule of the protocol. */
export class ProtocolError extends Error {
  override readonly name: string = "ProtocolError";
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
export class PresenceError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

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

/** One request failed; the client goes on. */
export class RequestError extends PresenceError {}

/** Not logged in at the moment, so nothing was sent. */
export class NotConnected extends RequestError {}

/** The connection broke before the answer: the request may or may not have been carried out. */
export class ConnectionLost extends RequestError {}

/** No answer in time: the request may or may not have been carried out. */
export class RequestTimeout extends RequestError {}

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

/** This server does not support that kind of request (313). */
export class Unsupported extends RequestFailed {}

/** The recipient of a message has no session (314). */
export class RecipientOffline extends RequestFailed {}

/**
 * The recipient of a message has lost its connection and has not returned yet (317). It may return until
 * `refusal.retryAfterMs`; nothing was delivered.
 */
export class RecipientDisconnected extends RequestFailed {}

/** The client has ended and does not reconnect by itself. */
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

/** The recipient of a message may not be seen by this user (318). */
export class NotAllowed extends RequestFailed {}

/** An operator keeps the user or this device out, and the ban has no end (305). */
export class Banned extends Ended {}

/** Not carried out: the server is at its limits (404), or this client sends too many requests (311). */
export class Busy extends RequestFailed {}

/** The server failed while carrying out the request (403): it may or may not have been carried out. */
export class OutcomeUnknown extends RequestFailed {}

/** Returns the error for an error reply to a request. */
export function requestFailed(refusal: Refusal): RequestFailed {
  switch (refusal.code) {
    case Code.UNSUPPORTED:
      return new Unsupported(refusal);
    case Code.RECIPIENT_OFFLINE:
      return new RecipientOffline(refusal);
    case Code.RECIPIENT_DISCONNECTED:
      return new RecipientDisconnected(refusal);
    case Code.NOT_ALLOWED:
      return new NotAllowed(refusal);
    case Code.BUSY:
    case Code.RATE_LIMITED:
      return new Busy(refusal);
    case Code.SERVER_ERROR:
      return new OutcomeUnknown(refusal);
    default:
      return new RequestFailed(refusal);
  }
}

/** Returns the error for a logged-in connection that the server ended for good. */
export function ended(refusal: Refusal): Ended {
  switch (refusal.code) {
    case Code.REPLACED:
      return new Replaced(refusal);
    case Code.BANNED:
      return new Banned(refusal);
    default:
      return new Ended(refusal);
  }
}
