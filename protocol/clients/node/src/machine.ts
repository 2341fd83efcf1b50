/**
 * What a client sends when, and what an answer means: no I/O, and time and chance are arguments.
 *
 * A shell moves the bytes. It connects while the state is "connecting", reads and writes while `connected`,
 * closes the connection as soon as it no longer is, and calls `tick` when `deadline` has come (after it has
 * read what lies there: an answer that came in time must not be taken for one that did not come). Each input
 * returns what it caused, in order; `takeOutgoing` returns what is to be sent. While `wantsToken`, the shell
 * asks the program for one, once at a time, and calls `fetched` with what came of it.
 *
 *     fetching a token → connecting → logging in → online → logging out → ended
 *            ↑ ↓            ↑ ↓          ↓          ↓
 *          waiting ←────────┴─┴──────────┴──────────┘        and from any state to ended
 */

import type { Packet } from "./codec.js";
import { Code, Kind } from "./constants.js";
import { Decoder } from "./decoder.js";
import {
  ConnectionLost,
  Ended,
  ended,
  NoToken,
  NotConnected,
  PresenceError,
  ProtocolError,
} from "./errors.js";
import { type Identity, Login, LOGIN_ID } from "./login.js";
import { ASK_EVERY, Beats } from "./keepalives.js";
import { connected, goodbye } from "./pushes.js";
import { Renewal, TOKEN_TIMEOUT_MS } from "./renewal.js";
import { type Chance, type Loss, Returning } from "./reconnect.js";
import { type Caused, refusalOf, Session } from "./session.js";
import { given, leftMs } from "./tokens.js";

export const CONNECT_TIMEOUT_MS = 10_000; // name, TCP, TLS; a SYN that got lost is repeated after 1, 3, 7 s
export const LOGIN_TIMEOUT_MS = 6000; // a server refuses a login that lay unread for 5 s
export const LOGOUT_TIMEOUT_MS = 2000;

export type State =
  | "fetching a token"
  | "connecting"
  | "logging in"
  | "online"
  | "logging out"
  | "waiting"
  | "ended";

export interface MachineOptions {
  /** Whether a first attempt that fails is repeated like any later one. */
  readonly persistent?: boolean;
  /** Whether the program is asked for a token before each login, and before one ends. */
  readonly fetches?: boolean;
  /** One of so many beats asks for an answer. */
  readonly askEvery?: number;
  readonly chance?: Chance;
}

/** One client, from its first attempt to its end. */
export class Machine {
  state: State;
  /** What it logs in with. */
  readonly login: Login;
  /** Why it has ended; null while it has not, and after its own logout or close. */
  error: PresenceError | null = null;
  /** How often it came online, and how often it had to come back. */
  readonly returns: Returning;
  private readonly fetches: boolean;
  private readonly askEvery: number;
  private readonly chance: Chance;
  private decoder = new Decoder();
  private due = Infinity; // of the state; online has the session's times instead
  private lastId = LOGIN_ID;
  private logoutId: number | null = null;
  private outgoing: Uint8Array[] = [];
  private session: Session | null = null;
  private renewal: Renewal | null = null; // beside each session
  private offsetMs: number | null = null; // from `now` to Unix ms by the clock of the last server

  /** @throws EncodeError the login breaks a rule of the protocol. */
  constructor(login: Identity, options: MachineOptions = {}) {
    this.fetches = options.fetches ?? false;
    this.login = new Login(login, this.fetches);
    this.askEvery = options.askEvery ?? ASK_EVERY;
    this.chance = options.chance ?? Math.random;
    this.returns = new Returning(options.persistent ?? true, this.fetches, this.chance);
    this.state = this.fetches ? "fetching a token" : "connecting";
  }

  // What the shell asks

  /** Whether the shell should hold a connection. */
  get connected(): boolean {
    return this.state === "logging in" || this.state === "online" || this.state === "logging out";
  }

  /** Whether the program is to be asked for a token now, unless that is under way already. */
  get wantsToken(): boolean {
    const online = this.state === "online";
    return online ? (this.renewal?.wanted ?? false) : this.state === "fetching a token";
  }

  /** When `tick` is to be called; infinite after the end. */
  get deadline(): number {
    if (this.state === "online" && this.session) {
      return Math.min(this.session.deadline, this.renewal?.due ?? Infinity);
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
    this.state = this.fetches ? "fetching a token" : "connecting";
    this.due = now + (this.fetches ? TOKEN_TIMEOUT_MS : CONNECT_TIMEOUT_MS);
  }

  /** The program gave a token, or failed to (then an Error); one that is not wanted any more is passed over. */
  fetched(token: unknown, now: number): Caused {
    if (!this.wantsToken) {
      return [];
    }
    if (this.renewal) {
      this.renewal.take(token, now);
      return [];
    }
    const failure = this.returns.refusal;
    const stale = failure && this.stale(token, now);
    if (failure && stale) {
      return this.lose({ reason: "no_token", message: stale, failure }, now);
    }
    try {
      this.login.change({ token: given(token) });
    } catch (error) {
      const failure = new NoToken(error);
      return this.lose({ reason: "no_token", message: failure.message, failure }, now);
    }
    this.state = "connecting";
    this.due = now + CONNECT_TIMEOUT_MS;
    return [];
  }

  /** The connection stands: log in. */
  established(now: number): void {
    this.decoder = new Decoder();
    this.outgoing = [this.login.frame()];
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
      caused.push(...this.lose({ reason: "bad_server", message: error.message }, now));
    }
    return caused;
  }

  /** The connection ended, or could not be made; `message` says why, for people. */
  disconnected(message: string, now: number): Caused {
    if (this.state === "connecting") {
      return this.lose({ reason: "unreachable", message }, now);
    }
    if (!this.connected) {
      return [];
    }
    if (this.session?.refusal) {
      return this.end(ended(this.session.refusal));
    }
    return this.lose({ reason: "closed", message }, now);
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
        this.begin(now);
        return [];
      case "fetching a token":
        return this.fetched(new Error(`none came within ${TOKEN_TIMEOUT_MS / 1000} s`), now);
      case "connecting":
        return this.late("unreachable", "connection", CONNECT_TIMEOUT_MS, now);
      case "logging in":
        return this.late("login_timeout", "answer to the login", LOGIN_TIMEOUT_MS, now);
      case "logging out":
        return [...this.settled(this.session?.expire(now) ?? [], now), ...this.end(null)];
      default:
        return [];
    }
  }

  /**
   * Send a request; its `Answer` comes later, exactly once. With `retries` a message waits for a recipient
   * who may return, see `Session.request`.
   *
   * @returns the id that the answer will carry.
   * @throws NotConnected not logged in now.
   * @throws Ended over for good.
   * @throws EncodeError the packet breaks a rule of the protocol.
   */
  request(
    kind: number,
    payload: Readonly<Record<string, unknown>>,
    timeoutMs: number,
    now: number,
    retries = false,
  ): number {
    if (this.state === "ended") {
      throw this.over();
    }
    if (this.state !== "online" || !this.session) {
      throw new NotConnected(`${this.state}: nothing was sent`);
    }
    return this.session.request(kind, payload, timeoutMs, now, retries);
  }

  /**
   * Send the logout: the user is offline as soon as the server reads it. Its `Answer` comes later.
   *
   * @throws NotConnected not logged in now. The client has ended all the same; if the server still holds a session
   *   of an earlier connection, that one ends by itself.
   * @throws Ended over already.
   */
  logOut(reason: "logout" | "background" | undefined, now: number): number {
    try {
      this.logoutId = this.request(Kind.LOGOUT, { reason }, LOGOUT_TIMEOUT_MS, now);
    } catch (error) {
      if (error instanceof NotConnected && this.state !== "logging out") {
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

  // What follows

  /** Why a token need not be tried after one was refused; null if it may be a fresh one. */
  private stale(token: unknown, now: number): string | null {
    if (token === this.login.token) {
      return "the token is the one that the server has refused";
    }
    const left = typeof token === "string" && this.offsetMs !== null ? leftMs(token, now + this.offsetMs) : null;
    return left !== null && left <= 0 ? "the token has expired" : null;
  }

  private take(packet: Packet, now: number): Caused {
    if (packet.kind === Kind.GOODBYE) {
      return this.takeGoodbye(packet, now);
    }
    if (!this.session) {
      return this.takeLoginAnswer(packet, now);
    }
    const caused = this.settled(this.session.take(packet, now), now);
    if (caused.some((each) => each.type === "answer" && each.id === this.logoutId)) {
      caused.push(...this.end(null));
    }
    return caused;
  }

  private takeLoginAnswer({ kind, id, payload }: Packet, now: number): Caused {
    if (kind === Kind.ERROR) {
      const refusal = refusalOf(payload);
      return this.leave(refusal, this.returns.refused(refusal, null), now);
    }
    if (kind !== Kind.OK || id !== LOGIN_ID) {
      return [];
    }
    const push = connected(payload, this.returns.logins > 0);
    const beats = new Beats(push.keepaliveMs, this.askEvery, now, this.chance);
    this.session = new Session(
      beats,
      now,
      () => (this.lastId += 1),
      (frame) => this.outgoing.push(frame),
    );
    const token = this.fetches ? this.login.token : null;
    this.offsetMs = push.timeMs === null ? null : push.timeMs - now;
    this.renewal = new Renewal(this.session, token, push.timeMs, this.chance, (fresh) => {
      this.login.change({ token: fresh });
    });
    this.state = "online";
    this.returns.online();
    return [push];
  }

  private takeGoodbye(packet: Packet, now: number): Caused {
    const push = goodbye(packet);
    const refusal = refusalOf(packet.payload);
    if (this.state === "logging out") {
      return [push, ...this.end(null)];
    }
    if (!this.session) {
      return [push, ...this.leave(refusal, this.returns.refused(refusal, push.reconnect), now)];
    }
    return [push, ...(push.reconnect ? this.lose(refusal, now) : this.end(ended(refusal)))];
  }

  private live(session: Session, now: number): Caused {
    const caused = this.settled(session.expire(now), now);
    this.renewal?.tick(now);
    if (now >= session.beats.deadAt) {
      const message = "the server did not answer a beat in time";
      return [...caused, ...this.lose({ reason: "dead_server", message }, now)];
    }
    session.beat(now, this.chance);
    return caused;
  }

  private settled(caused: Caused, now: number): Caused {
    return this.renewal?.settle(caused, now) ?? caused;
  }

  private late(reason: string, what: string, timeoutMs: number, now: number): Caused {
    return this.lose({ reason, message: `no ${what} within ${timeoutMs / 1000} s` }, now);
  }

  /** The connection is no more, or could not be had. */
  private lose(loss: Loss, now: number): Caused {
    const verdict = this.returns.lost(loss, this.session ? now - this.session.since : 0);
    return this.state === "logging out" ? this.end(null) : this.leave(loss, verdict, now);
  }

  /** Come back after so long, or end. */
  private leave({ reason, message, code = null }: Loss, verdict: number | PresenceError, now: number): Caused {
    if (verdict instanceof PresenceError) {
      return this.end(verdict);
    }
    const caused = this.drop(new ConnectionLost(message || reason));
    this.state = "waiting";
    this.due = now + verdict;
    return [...caused, { type: "disconnected", reason, message, retryInMs: verdict, code }];
  }

  private end(error: PresenceError | null): Caused {
    const lost = this.state === "logging out";
    this.state = "ended";
    this.error = error;
    return this.drop(lost ? new ConnectionLost("the connection broke during the logout") : this.over());
  }

  private drop(error: PresenceError): Caused {
    const { session, renewal } = this;
    this.session = this.renewal = null;
    const failed = session?.fail(error) ?? [];
    return renewal?.withoutOwn(failed) ?? failed;
  }
}
