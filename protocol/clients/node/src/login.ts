/** The login of a client, and changes to it. */

import { encode, HEADER_BYTES } from "./codec.js";
import { FRAME_LIMIT_BEFORE_LOGIN_BYTES, Kind, SERVER_FRAME_LIMIT_BYTES, VERSION } from "./constants.js";
import { EncodeError } from "./errors.js";

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
  readonly meta?: object | undefined;
  /** As `meta`, but for the application's backend only. */
  readonly private?: object | undefined;
  /** The initial status; `online` if left out. */
  readonly status?: Status | undefined;
  /**
   * Whether the app is in the background: the server holds changes of watched users, and sends the latest of each
   * behind the client's next keepalive or request. Messages still come immediately.
   */
  readonly quiet?: boolean | undefined;
  /** When the status ends and the one from before returns, Unix ms by the server's clock; never if left out. */
  readonly untilMs?: number | undefined;
}

export type Status = "online" | "away" | "busy" | "dnd" | "invisible";

/** What can change while online and for later logins; fields left out stay as they are. */
export type LoginChange = Pick<
  Identity,
  "meta" | "private" | "status" | "untilMs" | "token" | "idleTimeoutMs" | "quiet"
>;

/**
 * The login as last granted; later logins carry the same.
 *
 * What one login cannot carry follows it in an `update`: `meta` and `private` that do not fit, and a status with
 * an end, where another status than online returns after it.
 */
export class Login {
  private lastingStatus: Status; // the last one without an end
  private readonly leftOut = new Set<keyof Identity>(); // what the latest login did not carry

  /**
   * @param tokenComesLater whether a token is set before each login, and may be missing now.
   * @throws EncodeError the login breaks a rule of the protocol.
   */
  constructor(
    private identity: Identity,
    private readonly tokenComesLater: boolean,
  ) {
    this.lastingStatus = identity.untilMs === undefined ? (identity.status ?? "online") : "online";
    this.check({});
  }

  /** The newest token; null if the client has none. */
  get token(): string | null {
    return this.identity.token ?? null;
  }

  /** Returns what later logins carry of a change that the server keeps with the user. */
  withoutPrivacy(change: LoginChange): LoginChange {
    if (change.status !== "invisible") {
      return change;
    }
    return { ...change, status: this.identity.status === "invisible" ? "online" : undefined };
  }

  /** @throws EncodeError the login with this change would break a rule of the protocol. */
  check(change: LoginChange): void {
    const { token = this.tokenComesLater ? "-" : undefined, ...rest } = withChange(this.identity, change);
    loginFrame({ ...rest, token }, SERVER_FRAME_LIMIT_BYTES);
    loginFrame({ ...rest, token, meta: undefined, private: undefined }); // they may follow the login
  }

  /**
   * Changes what later logins carry.
   *
   * @throws EncodeError a field breaks a rule of the protocol; nothing was changed.
   */
  change(change: LoginChange): void {
    this.check(change);
    this.identity = withChange(this.identity, change);
    if (change.status !== undefined && change.untilMs === undefined) {
      this.lastingStatus = change.status;
    }
  }

  /** The server has granted a change. With the longest names even a login without `meta` may be too long for it. */
  granted(change: LoginChange): void {
    try {
      this.change(change);
    } catch (error) {
      if (!(error instanceof EncodeError)) {
        throw error;
      }
    }
  }

  /**
   * Returns the login to send now; what it leaves out is in `rest` until the next one.
   *
   * @param timeMs the server's clock, Unix milliseconds; null if unknown.
   */
  frame(timeMs: number | null): Uint8Array {
    const login: SentLogin = { ...this.identity, confirms: true };
    this.leftOut.clear();
    if (login.untilMs !== undefined) {
      const isOver = timeMs !== null && login.untilMs <= timeMs;
      const hides = login.status === "invisible" && this.lastingStatus !== "invisible";
      // After the end of a login's own status `online` follows. Nobody may be shown before hiding.
      if (isOver || !(hides || this.lastingStatus === "online")) {
        if (!isOver) {
          this.leftOut.add("status").add("untilMs");
        }
        login.untilMs = undefined;
        login.status = this.lastingStatus === "online" ? undefined : this.lastingStatus;
      }
    }
    for (const name of ["private", "meta"] as const) {
      if (login[name] !== undefined && !fits(login)) {
        this.leftOut.add(name);
        login[name] = undefined;
      }
    }
    if (!fits(login)) {
      login.confirms = undefined; // with the longest names there is no room for it
    }
    login.batch = true;
    if (!fits(login)) {
      login.batch = undefined; // it saves bytes, and is not worth another packet
    }
    return loginFrame(login);
  }

  /** Returns the change that completes the latest login, with what is granted now; null if nothing is missing. */
  rest(): LoginChange | null {
    const fields = [...this.leftOut].map((name) => [name, this.identity[name]] as const);
    const given = fields.filter(([, value]) => value !== undefined);
    return given.length > 0 ? (Object.fromEntries(given) as LoginChange) : null;
  }

  /**
   * The program sends an update: `rest` must not overtake it with what was granted before.
   *
   * Returns the fields that `rest` does not have any more; `complete` puts them back if the update changes nothing.
   */
  supersede(change: LoginChange): (keyof Identity)[] {
    const names = Object.keys(change) as (keyof LoginChange)[];
    return names.filter((name) => change[name] !== undefined && this.leftOut.delete(name));
  }

  complete(names: readonly (keyof Identity)[]): void {
    names.forEach((name) => this.leftOut.add(name));
  }
}

/** A login as it is sent. */
type SentLogin = { -readonly [Name in keyof Identity]: Identity[Name] } & {
  confirms?: true | undefined;
  batch?: true | undefined;
};

function fits(login: SentLogin): boolean {
  return loginFrame(login, SERVER_FRAME_LIMIT_BYTES).length - HEADER_BYTES <= FRAME_LIMIT_BEFORE_LOGIN_BYTES;
}

function withChange(login: Identity, change: LoginChange): Identity {
  return {
    ...login,
    token: change.token ?? login.token,
    meta: change.meta ?? login.meta,
    private: change.private ?? login.private,
    idleTimeoutMs: change.idleTimeoutMs ?? login.idleTimeoutMs,
    status: change.status ?? login.status,
    quiet: change.quiet ?? login.quiet,
    untilMs: change.status === undefined ? login.untilMs : change.untilMs,
  };
}

/** @throws EncodeError the login breaks a rule of the protocol. */
function loginFrame(
  { idleTimeoutMs, untilMs, ...rest }: SentLogin,
  limitBytes = FRAME_LIMIT_BEFORE_LOGIN_BYTES,
): Uint8Array {
  const idle_timeout = idleTimeoutMs === undefined ? undefined : idleTimeoutMs / 1000;
  const { uid, device, deviceClass, token, meta, private: secret, status, quiet, confirms, batch } = rest;
  const shown = { meta, private: secret, status, until_ms: untilMs, quiet: quiet || undefined };
  const says = { v: VERSION, confirms, batch };
  const payload = { uid, device, class: deviceClass, token, idle_timeout, ...shown, ...says };
  return encode(Kind.LOGIN, LOGIN_ID, payload, limitBytes);
}
