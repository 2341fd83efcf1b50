/** The login of a client, and changes to it. */

import { encode } from "./codec.js";
import { FRAME_LIMIT_BEFORE_LOGIN_BYTES, Kind, VERSION } from "./constants.js";
import type { ValueMap } from "./values.js";

export const LOGIN_ID = 1;

/** The contents of a login. */
export interface Identity {
  /** The user; may be left out if a token names it. */
  readonly uid?: string | undefined;
  /** Which of the user's devices; the default device if left out. */
  readonly device?: string | undefined;
  /** What the device is, such as phone or web; the server may limit sessions by it. */
  readonly deviceClass?: string | undefined;
  /** Proof of identity, if the server requires it. */
  readonly token?: string | undefined;
  /** A request; the server decides, and `connected` has the result. */
  readonly idleTimeoutMs?: number | undefined;
  /** Shown to others with the user's state; at most 256 bytes packed. */
  readonly meta?: ValueMap | undefined;
  /** As `meta`, but for the application's backend only. */
  readonly private?: ValueMap | undefined;
  /** The initial status; `online` if left out. */
  readonly status?: Status | undefined;
  /** When the status ends, Unix milliseconds by the server's clock; never if left out. */
  readonly untilMs?: number | undefined;
}

export type Status = "online" | "away" | "busy" | "dnd" | "invisible";

/** What can change while online and for later logins; fields left out stay as they are. */
export interface Change {
  /** An empty map removes the meta. */
  readonly meta?: ValueMap | undefined;
  /** As `meta`. */
  readonly private?: ValueMap | undefined;
  readonly status?: Status | undefined;
  /** When the status ends and the one from before returns, Unix milliseconds by the server's clock. */
  readonly untilMs?: number | undefined;
  /** A new token, before the old one expires. */
  readonly token?: string | undefined;
  /** Another idle time-out; the server decides, and keepalives follow. */
  readonly idleTimeoutMs?: number | undefined;
}

/** The login as last granted; later logins carry the same. */
export class Login {
  /**
   * @param tokenComesLater whether a token is set before each login, and may be missing now.
   * @throws EncodeError the login breaks a rule of the protocol.
   */
  constructor(
    private identity: Identity,
    private readonly tokenComesLater: boolean,
  ) {
    this.check({});
  }

  /** The newest token; null if the client has none. */
  get token(): string | null {
    return this.identity.token ?? null;
  }

  /** @throws EncodeError the login with this change would break a rule of the protocol. */
  check(change: Change): void {
    const { token = this.tokenComesLater ? "-" : undefined, ...rest } = withChange(this.identity, change);
    loginFrame({ ...rest, token });
  }

  /**
   * Changes what later logins carry.
   *
   * @throws EncodeError a field breaks a rule of the protocol; nothing was changed.
   */
  change(change: Change): void {
    this.check(change);
    this.identity = withChange(this.identity, change);
  }

  frame(): Uint8Array {
    return loginFrame(this.identity);
  }
}

function withChange(login: Identity, change: Change): Identity {
  return {
    ...login,
    token: change.token ?? login.token,
    meta: change.meta ?? login.meta,
    private: change.private ?? login.private,
    idleTimeoutMs: change.idleTimeoutMs ?? login.idleTimeoutMs,
    status: change.status ?? login.status,
    untilMs: change.status === undefined ? login.untilMs : change.untilMs,
  };
}

/** @throws EncodeError the login breaks a rule of the protocol. */
function loginFrame({ idleTimeoutMs, untilMs, ...rest }: Identity): Uint8Array {
  const idle_timeout = idleTimeoutMs === undefined ? undefined : idleTimeoutMs / 1000;
  const { uid, device, deviceClass, token, meta, private: secret, status } = rest;
  const shown = { meta, private: secret, status, until_ms: untilMs };
  const payload = { uid, device, class: deviceClass, token, idle_timeout, ...shown, v: VERSION };
  return encode(Kind.LOGIN, LOGIN_ID, payload, FRAME_LIMIT_BEFORE_LOGIN_BYTES);
}
