/** What a client logs in with, and how that changes. */

import { encode } from "./codec.js";
import { FRAME_LIMIT_BEFORE_LOGIN_BYTES, Kind, VERSION } from "./constants.js";
import type { ValueMap } from "./values.js";

export const LOGIN_ID = 1;

/** What a client logs in with. */
export interface Identity {
  /** Who is online; may be left out where a token names it. */
  readonly uid?: string | undefined;
  /** Which of the user's devices; left out, the one default device. */
  readonly device?: string | undefined;
  /** Proof of who it is, where the server asks for one. */
  readonly token?: string | undefined;
  /** A wish; the server decides, and `connected` tells. */
  readonly idleTimeoutMs?: number | undefined;
  /** Shown to others with the user's state; at most 256 bytes packed. */
  readonly meta?: ValueMap | undefined;
  /** How others see it from the first moment; left out, `online`. */
  readonly status?: Status | undefined;
}

export type Status = "away" | "online";

/** What can be changed while online, and of later logins; what is left out stays. */
export interface Change {
  /** An empty map removes it. */
  readonly meta?: ValueMap | undefined;
  readonly status?: Status | undefined;
  /** A fresh one, before the old one expires. */
  readonly token?: string | undefined;
}

/** The login as it stands by now: what was granted is also what later logins carry. */
export class Login {
  /**
   * @param tokenComesLater whether a token is put in before each login, and need not be there yet.
   * @throws EncodeError it breaks a rule of the protocol.
   */
  constructor(
    private identity: Identity,
    private readonly tokenComesLater: boolean,
  ) {
    this.check({});
  }

  /** The newest token that the client has. */
  get token(): string | null {
    return this.identity.token ?? null;
  }

  /** @throws EncodeError logins could not carry the change. */
  check(change: Change): void {
    const { token = this.tokenComesLater ? "-" : undefined, ...rest } = withChange(this.identity, change);
    loginFrame({ ...rest, token });
  }

  /**
   * Change what later logins carry.
   *
   * @throws EncodeError a part breaks a rule of the protocol; nothing was changed.
   */
  change(change: Change): void {
    this.check(change);
    this.identity = withChange(this.identity, change);
  }

  /** Return the first packet. */
  frame(): Uint8Array {
    return loginFrame(this.identity);
  }
}

function withChange(login: Identity, { token, meta, status }: Change): Identity {
  const given = { token: token ?? login.token, meta: meta ?? login.meta, status: status ?? login.status };
  return { ...login, ...given };
}

/** Return the first packet. @throws EncodeError it breaks a rule of the protocol. */
function loginFrame({ uid, device, token, idleTimeoutMs, meta, status }: Identity): Uint8Array {
  const idle_timeout = idleTimeoutMs === undefined ? undefined : idleTimeoutMs / 1000;
  const payload = { uid, device, token, idle_timeout, meta, status, v: VERSION };
  return encode(Kind.LOGIN, LOGIN_ID, payload, FRAME_LIMIT_BEFORE_LOGIN_BYTES);
}
