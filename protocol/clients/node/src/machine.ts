/**
 * What a client sends when, and what an answer means: no I/O, and time and chance are arguments.
 *
 * A shell moves the bytes. It connects while the state is "connecting", reads and writes while `connected`,
 * closes the connection as soon as it no longer is, and calls `tick` when `deadline` has come (after it has
 * read what lies there: an answer that came in time must not be taken for one that did not come). Each input
 * returns what it caused, in order; `takeOutgoing` returns what is to be sent.
 *
 *     connecting → logging in → online → logging out → ended
 *         ↑ ↓          ↓          ↓
 *       waiting ←──────┴──────────┘        and from any state to ended
 */

import { encode, type Packet } from "./codec.js";
import { Code, FRAME_LIMIT_BEFORE_LOGIN_BYTES, Kind, mayReturn, VERSION } from "./constants.js";
import { Decoder } from "./decoder.js";
import {
  ConnectionLost,
  Ended,
  ended,
  LoginRefused,
  Offline,
  type PresenceError,
  ProtocolError,
  type Refusal,
  Unreachable,
} from "./errors.js";
import { ASK_EVERY, Backoff, Beats, type Chance } from "./pacing.js";
import { goodbye, milliseconds } from "./pushes.js";
import { type Caused, refusalOf, Session } from "./session.js";
import type { ValueMap } from "./values.js";

export const CONNECT_TIMEOUT_MS = 10_000; // name, TCP, TLS; a SYN that got lost is repeated after 1, 3, 7 s
export const LOGIN_TIMEOUT_MS = 6000; // a server refuses a login that lay unread for 5 s
export const LOGOUT_TIMEOUT_MS = 2000;
const KEEPALIVE_SHARE = 0.4; // of the idle time-out, for a server that does not tell how often to beat
const IDLE_TIMEOUT_DEFAULT_MS = 30_000; // and for one that tells neither
const LOGIN_ID = 1;

export type State = "connecting" | "logging in" | "online" | "logging out" | "waiting" | "ended";

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

export interface MachineOptions {
  /** Whether a first attempt that fails is repeated like any later one. */
  readonly persistent?: boolean;
  /** One of so many beats asks for an answer. */
  readonly askEvery?: number;
  readonly chance?: Chance;
}

/** One client, from its first attempt to its end. */
export class Machine {
  state: State = "connecting";
  /** Why it has ended; null while it has not, and after its own logout or close. */
  error: PresenceError | null = null;
  /** How often it came online. */
  logins = 0;
  /** How often a connection was lost, or could not be had. */
  losses = 0;
  private readonly persistent: boolean;
  private readonly askEvery: number;
  private readonly chance: Chance;
  private readonly backoff = new Backoff();
  private decoder = new Decoder();
  private due = Infinity; // of the state; online has the session's times instead
  private lastId = LOGIN_ID;
  private login: Identity;
  private logoutId: number | null = null;
  private outgoing: Uint8Array[] = [];
  private session: Session | null = null;

  /** @throws EncodeError the login breaks a rule of the protocol. */
  constructor(login: Identity, options: MachineOptions = {}) {
    loginFrame(login); // refused here if at all
    this.login = login;
    this.persistent = options.persistent ?? true;
    this.askEvery = options.askEvery ?? ASK_EVERY;
    this.chance = options.chance ?? Math.random;
  }

  // What the shell asks

  /** Whether the shell should hold a connection. */
  get connected(): boolean {
    return this.state === "logging in" || this.state === "online" || this.state === "logging out";
  }

  /** When `tick` is to be called; infinite after the end. */
  get deadline(): number {
    if (this.state === "online" && this.session) {
      return this.session.deadline;
    }
    return this.state === "ended" ? Infinity : this.due;
  }

  /** From the last beat that asked to its answer, on this connection; null before one. */
  get roundTripMs(): number | null {
    return this.session?.beats.roundTripMs ?? null;
  }

  /** Return what to throw at those who ask an ended client for something. */
  over(): PresenceError {
    const message = "this client was logged out or closed";
    return this.error ?? new Ended({ code: Code.LOGOUT, reason: "logout", message, retryAfterMs: null });
  }

  /** Return what is to be sent on the present connection, once. */
  takeOutgoing(): Uint8Array {
    const bytes = Buffer.concat(this.outgoing);
    this.outgoing = [];
    return bytes;
  }

  // What the shell tells

  /** The first attempt begins. `now` is monotonic milliseconds; every `now` is of the same clock. */
  begin(now: number): void {
    this.due = now + CONNECT_TIMEOUT_MS;
  }

  /** The connection stands: log in. */
  established(now: number): void {
    this.decoder = new Decoder();
    this.outgoing = [loginFrame(this.login)];
    this.state = "logging in";
    this.due = now + LOGIN_TIMEOUT_MS;
  }

  /** Bytes were read; what follows the end of a connection is dropped. */
  received(bytes: Uint8Array, now: number): Caused {
    const caused: Caused = [];
    this.session?.beats.heard(now);
    try {
      this.decoder.feed(bytes);
      while (this.connected) {
        const packet = this.decoder.next();
        if (!packet) {
          break;
        }
        caused.push(...this.take(packet, now));
      }
    } catch (error) {
      if (!(error instanceof ProtocolError)) {
        throw error;
      }
      caused.push(...this.lose("bad_server", error.message, now));
    }
    return caused;
  }

  /** The connection ended, or could not be made; `message` says why, for people. */
  disconnected(message: string, now: number): Caused {
    if (this.state === "connecting") {
      return this.lose("unreachable", message, now);
    }
    if (!this.connected) {
      return [];
    }
    if (this.session?.refusal) {
      return this.end(ended(this.session.refusal));
    }
    return this.lose("closed", message, now);
  }

  /** Time has passed; harmless before the deadline. */
  tick(now: number): Caused {
    if (this.state === "online" && this.session) {
      return this.live(this.session, now);
    }
    if (now < this.due) {
      return [];
    }
    switch (this.state) {
      case "waiting":
        this.state = "connecting";
        this.due = now + CONNECT_TIMEOUT_MS;
        return [];
      case "connecting":
        return this.lose("unreachable", `no connection within ${CONNECT_TIMEOUT_MS / 1000} s`, now);
      case "logging in":
        return this.lose("login_timeout", `no answer to the login within ${LOGIN_TIMEOUT_MS / 1000} s`, now);
      case "logging out":
        return [...(this.session?.expire(now) ?? []), ...this.end(null)];
      default:
        return [];
    }
  }

  /**
   * Send a request; its `Answer` comes later, exactly once.
   *
   * @returns the id that the answer will carry.
   * @throws Offline not logged in now.
   * @throws Ended over for good.
   * @throws EncodeError the packet breaks a rule of the protocol.
   */
  request(kind: number, payload: Readonly<Record<string, unknown>>, timeoutMs: number, now: number): number {
    if (this.state === "ended") {
      throw this.over();
    }
    if (this.state !== "online" || !this.session) {
      throw new Offline(`${this.state}: nothing was sent`);
    }
    return this.session.request(kind, payload, timeoutMs, now);
  }

  /**
   * Send the logout: the user is offline as soon as the server reads it. Its `Answer` comes later.
   *
   * @throws Offline not logged in now. The client has ended all the same; if the server still holds a session
   *   of an earlier connection, that one ends by itself.
   * @throws Ended over already.
   */
  logOut(reason: "logout" | "background" | undefined, now: number): number {
    try {
      this.logoutId = this.request(Kind.LOGOUT, { reason }, LOGOUT_TIMEOUT_MS, now);
    } catch (error) {
      if (error instanceof Offline && this.state !== "logging out") {
        this.end(null);
      }
      throw error;
    }
    this.state = "logging out";
    this.due = now + LOGOUT_TIMEOUT_MS;
    return this.logoutId;
  }

  /** End without a logout: the user is offline after the server's grace for lost connections. */
  close(): Caused {
    return this.state === "ended" ? [] : this.end(null);
  }

  /** @throws EncodeError logins could not carry the change. */
  check(change: Change): void {
    loginFrame(changed(this.login, change));
  }

  /**
   * Change what later logins carry.
   *
   * @throws EncodeError a part breaks a rule of the protocol; nothing was changed.
   */
  logInWith(change: Change): void {
    this.check(change);
    this.login = changed(this.login, change);
  }

  // What follows

  private take(packet: Packet, now: number): Caused {
    if (packet.kind === Kind.GOODBYE) {
      return this.takeGoodbye(packet, now);
    }
    if (!this.session) {
      return this.takeLoginAnswer(packet, now);
    }
    const caused = this.session.take(packet, now);
    if (caused.some((each) => each.type === "answer" && each.id === this.logoutId)) {
      caused.push(...this.end(null));
    }
    return caused;
  }

  private takeLoginAnswer({ kind, id, payload }: Packet, now: number): Caused {
    if (kind === Kind.ERROR) {
      const refusal = refusalOf(payload);
      return this.refused(refusal, mayReturn(refusal.code), now);
    }
    if (kind !== Kind.OK || id !== LOGIN_ID) {
      return [];
    }
    const idleTimeoutMs = milliseconds(payload["idle_timeout"]) ?? IDLE_TIMEOUT_DEFAULT_MS;
    const keepaliveMs = milliseconds(payload["keepalive"]) ?? KEEPALIVE_SHARE * idleTimeoutMs;
    const beats = new Beats(keepaliveMs, this.askEvery, now, this.chance);
    this.session = new Session(
      beats,
      now,
      () => (this.lastId += 1),
      (frame) => this.outgoing.push(frame),
    );
    this.state = "online";
    this.logins += 1;
    const session = (payload["session"] ?? "") as string;
    const timeMs = payload["time_ms"] === undefined ? null : Number(payload["time_ms"]);
    return [{ type: "connected", session, idleTimeoutMs, keepaliveMs, timeMs, again: this.logins > 1 }];
  }

  private takeGoodbye(packet: Packet, now: number): Caused {
    const push = goodbye(packet);
    const refusal = refusalOf(packet.payload);
    if (this.state === "logging out") {
      return [push, ...this.end(null)];
    }
    if (!this.session) {
      return [push, ...this.refused(refusal, push.reconnect, now)];
    }
    return [push, ...(push.reconnect ? this.leave(refusal, now) : this.end(ended(refusal)))];
  }

  /** A login was refused. */
  private refused(refusal: Refusal, comesBack: boolean, now: number): Caused {
    if (!comesBack || !(this.persistent || this.logins > 0)) {
      return this.end(new LoginRefused(refusal));
    }
    return this.leave(refusal, now);
  }

  private leave({ code, reason, message, retryAfterMs }: Refusal, now: number): Caused {
    return this.lose(reason, message, now, code, retryAfterMs);
  }

  private live(session: Session, now: number): Caused {
    const caused = session.expire(now);
    if (now >= session.beats.deadAt) {
      return [...caused, ...this.lose("dead_server", "the server did not answer a beat in time", now)];
    }
    session.beat(now, this.chance);
    return caused;
  }

  /** The connection is no more; come back after a while. */
  private lose(
    reason: string,
    message: string,
    now: number,
    code: number | null = null,
    retryAfterMs: number | null = null,
  ): Caused {
    this.losses += 1;
    if (this.state === "logging out") {
      return this.end(null);
    }
    if (!this.persistent && this.logins === 0) {
      return this.end(new Unreachable(message || reason));
    }
    const onlineMs = this.session ? now - this.session.since : 0;
    const retryInMs = this.backoff.nextMs(this.chance, onlineMs, retryAfterMs);
    const caused = this.drop(new ConnectionLost(message || reason));
    this.state = "waiting";
    this.due = now + retryInMs;
    return [...caused, { type: "disconnected", reason, message, retryInMs, code }];
  }

  private end(error: PresenceError | null): Caused {
    const lost = this.state === "logging out";
    this.state = "ended";
    this.error = error;
    return this.drop(lost ? new ConnectionLost("the connection broke during the logout") : this.over());
  }

  private drop(error: PresenceError): Caused {
    const session = this.session;
    this.session = null;
    return session?.fail(error) ?? [];
  }
}

function changed(login: Identity, { token, meta, status }: Change): Identity {
  const given = { token: token ?? login.token, meta: meta ?? login.meta, status: status ?? login.status };
  return { ...login, ...given };
}

/** Return the first packet. @throws EncodeError it breaks a rule of the protocol. */
function loginFrame({ uid, device, token, idleTimeoutMs, meta, status }: Identity): Uint8Array {
  const idle_timeout = idleTimeoutMs === undefined ? undefined : idleTimeoutMs / 1000;
  const payload = { uid, device, token, idle_timeout, meta, status, v: VERSION };
  return encode(Kind.LOGIN, LOGIN_ID, payload, FRAME_LIMIT_BEFORE_LOGIN_BYTES);
}
