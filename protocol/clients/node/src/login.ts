/** The login of a client, and changes to it. */

import { encode, HEADER_BYTES } from "./codec.js";
import {
  FRAME_LIMIT_BEFORE_LOGIN_BYTES,
  Kind,
  ROOMS_MAX,
  SERVER_FRAME_LIMIT_BYTES,
  VERSION,
} from "./constants.js";
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
  /** The rooms that this device is in, at most 16; `joined` has those that the server has let it into. */
  readonly rooms?: readonly string[] | undefined;
  /** When the status ends and the one from before returns, Unix ms by the server's clock; never if left out. */
  readonly untilMs?: number | undefined;
}

export type Status = "online" | "away" | "busy" | "dnd" | "invisible";

/** What can change while online and for later logins; fields left out stay as they are. */
export type LoginChange = Pick<
  Identity,
  "meta" | "private" | "status" | "untilMs" | "token" | "idleTimeoutMs" | "quiet" | "rooms"
>;

/**
 * What an update changes. The device is then in `rooms`, or by default in those from before, without those of `leave`,
 * and in those of `join`.
 */
export interface Update extends LoginChange {
  readonly join?: readonly string[] | undefined;
  readonly leave?: readonly string[] | undefined;
}

/** What `rest` and `roomsToJoin` do not have any more: an update may replace it. */
export interface Superseded {
  readonly fields: readonly (keyof Identity)[];
  readonly rooms: readonly string[];
}

/**
 * The login as last granted; later logins carry the same.
 *
 * What one login cannot carry follows it in an `update`: `meta`, `private` and rooms that do not fit, and a status
 * with an end, where another status than online returns after it.
 *
 * The rooms of the login are those that the program wants; the server may have left out some that the token does not
 * allow.
 */
export class Login {
  private lastingStatus: Status; // the last one without an end
  /** The rooms that the session is in, as the server has said last; null if it has none. */
  joined: readonly string[] | null = null;
  private readonly leftOut = new Set<keyof Identity>(); // what the latest login did not carry
  private readonly roomsLeftOut = new Set<string>(); // rooms that it did not carry

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
    loginFrame({ ...rest, token, meta: undefined, private: undefined, rooms: undefined }); // they may follow the login
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
    this.roomsLeftOut.clear();
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
      this.rooms.forEach((room) => this.roomsLeftOut.add(room)); // last: leaving them for a moment is seen
      login.rooms = undefined;
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

  /** The rooms that the latest login did not carry, and that the program still wants. */
  roomsToJoin(): string[] {
    return this.rooms.filter((room) => this.roomsLeftOut.has(room));
  }

  private get rooms(): readonly string[] {
    return this.identity.rooms ?? [];
  }

  /**
   * Returns the rooms that the program wants after a granted update; undefined: as before.
   *
   * Those that the session is not in are left out if there are too many for a login.
   *
   * @param joined of the answer; undefined if the server has no rooms.
   */
  roomsAfter(update: Update, joined: readonly string[] | undefined): readonly string[] | undefined {
    if (joined === undefined || !changesRooms(update)) {
      return undefined;
    }
    const { rooms = this.rooms, join = [], leave = [] } = update;
    const wanted = [...new Set([...rooms.filter((room) => !leave.includes(room)), ...join])];
    const isIn = (room: string): boolean => joined.includes(room);
    return [...wanted.filter(isIn), ...wanted.filter((room) => !isIn(room))].slice(0, ROOMS_MAX);
  }

  /**
   * The program sends an update: what completes the login must not overtake it with what was granted before.
   *
   * `complete` puts back what is returned if the update changes nothing.
   */
  supersede({ leave = [], ...change }: Update): Superseded {
    const names = Object.keys(change) as (keyof LoginChange)[];
    const left = change.rooms === undefined ? leave : [...this.roomsLeftOut];
    return {
      fields: names.filter((name) => change[name] !== undefined && this.leftOut.delete(name)),
      rooms: left.filter((room) => this.roomsLeftOut.delete(room)),
    };
  }

  /** Returns whether anything was put back. */
  complete({ fields, rooms }: Superseded): boolean {
    fields.forEach((name) => this.leftOut.add(name));
    rooms.forEach((room) => this.roomsLeftOut.add(room));
    return fields.length + rooms.length > 0;
  }
}

/** Whether an update is about rooms. */
export function changesRooms({ rooms, join, leave }: Update): boolean {
  return (rooms ?? join ?? leave) !== undefined;
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
    rooms: change.rooms ?? login.rooms,
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
  const rooms = rest.rooms?.length ? rest.rooms : undefined;
  const shown = { meta, private: secret, status, until_ms: untilMs, quiet: quiet || undefined, rooms };
  const says = { v: VERSION, confirms, batch };
  const payload = { uid, device, class: deviceClass, token, idle_timeout, ...shown, ...says };
  return encode(Kind.LOGIN, LOGIN_ID, payload, limitBytes);
}
