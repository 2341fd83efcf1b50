/**
 * The protocol of a client as a state machine: no I/O, and time and randomness are arguments.
 *
 * A shell moves the bytes. It connects while the state is "connecting", reads and writes while `connected` is
 * true, closes the connection as soon as it is false, and calls `tick` at `deadline`. It must read all
 * received bytes before that call, or an answer that arrived in time would count as missing. Each input
 * returns its effects, in order; `takeOutgoing` returns the bytes to send. While `wantsToken` is true, the
 * shell asks the program for a token, one call at a time, and passes the result to `tokenFetched`.
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
  NotConnected,
  NoToken,
  PresenceError,
  ProtocolError,
  type Refusal,
} from "./errors.js";
import { ASK_EVERY, Keepalives } from "./keepalives.js";
import { type Identity, Login, LOGIN_ID } from "./login.js";
import { parseConnected, parseGoodbye, parseRefusal } from "./pushes.js";
import { type Chance, type Loss, ReconnectPolicy } from "./reconnect.js";
import { Renewal, TOKEN_TIMEOUT_MS } from "./renewal.js";
import { type Effects, Session } from "./session.js";
import { checkedToken, remainingLifetimeMs } from "./tokens.js";

export const CONNECT_TIMEOUT_MS = 10_000; // name, TCP, TLS; a lost SYN is repeated after 1, 3 and 7 s
export const LOGIN_TIMEOUT_MS = 6000; // the server refuses a login left unread for 5 s
export const LOGOUT_TIMEOUT_MS = 2000;

export type State =
  "fetching a token" | "connecting" | "logging in" | "online" | "logging out" | "waiting" | "ended";

export interface MachineOptions {
  /** Called when the server has accepted a token that the program's function returned while online. */
  readonly onTokenRenewed?: () => void;
  /** Whether a failed first attempt is repeated like any later one. */
  readonly persistent?: boolean;
  /** Whether to ask the program for a token before each login, and before a token expires. */
  readonly fetchesTokens?: boolean;
  /** Every n-th keepalive asks for an answer. */
  readonly askEvery?: number;
  readonly chance?: Chance;
}

/** One client, from its first attempt to its end. */
export class ClientMachine {
  state: State;
  readonly login: Login;
  /** Why the client has ended; null before, and after its own logout or close. */
  error: PresenceError | null = null;
  readonly reconnectPolicy: ReconnectPolicy;
  private readonly fetchesTokens: boolean;
  private readonly onTokenRenewed: () => void;
  private readonly askEvery: number;
  private readonly chance: Chance;
  private decoder = new Decoder();
  private stateDeadline = Infinity; // used in all states except online
  private lastId = LOGIN_ID;
  private logoutId: number | null = null;
  private outgoing: Uint8Array[] = [];
  private session: Session | null = null;
  private renewal: Renewal | null = null; // one per session
  private clockOffsetMs: number | null = null; // from `now` to Unix ms by the last server's clock

  /** @throws EncodeError the login breaks a rule of the protocol. */
  constructor(login: Identity, options: MachineOptions = {}) {
    this.fetchesTokens = options.fetchesTokens ?? false;
    this.onTokenRenewed = options.onTokenRenewed ?? ((): void => undefined);
    this.login = new Login(login, this.fetchesTokens);
    this.askEvery = options.askEvery ?? ASK_EVERY;
    this.chance = options.chance ?? Math.random;
    this.reconnectPolicy = new ReconnectPolicy(options.persistent ?? true, this.fetchesTokens, this.chance);
    this.state = this.fetchesTokens ? "fetching a token" : "connecting";
  }

  // Queries of the shell

  /** Whether the shell should hold a connection. */
  get connected(): boolean {
    return this.state === "logging in" || this.state === "online" || this.state === "logging out";
  }

  /** Whether to ask the program for a token now, unless a call is already running. */
  get wantsToken(): boolean {
    const online = this.state === "online";
    return online ? (this.renewal?.wanted ?? false) : this.state === "fetching a token";
  }

  /** When to call `tick`; infinite after the end. */
  get deadline(): number {
    if (this.state === "online" && this.session) {
      return Math.min(this.session.deadline, this.renewal?.dueAt ?? Infinity);
    }
    return this.state === "ended" ? Infinity : this.stateDeadline;
  }

  /** Round trip of the last answered keepalive on this connection; null before one. */
  get roundTripMs(): number | null {
    return this.session?.keepalives.roundTripMs ?? null;
  }

  /** The error of requests to an ended client. */
  endError(): PresenceError {
    const message = "this client was logged out or closed";
    return this.error ?? new Ended({ code: Code.LOGOUT, reason: "logout", message, retryAfterMs: null });
  }

  /** Returns the bytes to send on the current connection, and clears them. */
  takeOutgoing(): Uint8Array {
    const bytes = Buffer.concat(this.outgoing);
    this.outgoing = [];
    return bytes;
  }

  // Inputs of the shell

  /** Starts an attempt to come online. `now` is in monotonic milliseconds, always of the same clock. */
  beginAttempt(now: number): void {
    this.state = this.fetchesTokens ? "fetching a token" : "connecting";
    this.stateDeadline = now + (this.fetchesTokens ? TOKEN_TIMEOUT_MS : CONNECT_TIMEOUT_MS);
  }

  /** The program returned a token, or failed with an Error; ignored if no token is wanted any more. */
  tokenFetched(token: unknown, now: number): Effects {
    if (!this.wantsToken) {
      return [];
    }
    if (this.renewal) {
      this.renewal.offerToken(token, now);
      return [];
    }
    const failure = this.reconnectPolicy.refusal;
    const whyStale = failure && this.whyStale(token, now);
    if (failure && whyStale) {
      return this.connectionLost({ reason: "no_token", message: whyStale, failure }, now);
    }
    try {
      this.login.change({ token: checkedToken(token) });
    } catch (error) {
      const failure = new NoToken(error);
      return this.connectionLost({ reason: "no_token", message: failure.message, failure }, now);
    }
    this.state = "connecting";
    this.stateDeadline = now + CONNECT_TIMEOUT_MS;
    return [];
  }

  /** The connection is established: log in, unless the client has ended in the meantime. */
  established(now: number): void {
    if (this.state !== "connecting") {
      return;
    }
    this.decoder = new Decoder();
    this.outgoing = [this.login.frame(this.clockOffsetMs === null ? null : now + this.clockOffsetMs)];
    this.state = "logging in";
    this.stateDeadline = now + LOGIN_TIMEOUT_MS;
  }

  /** Bytes were received; those after the end of the connection are dropped. */
  received(bytes: Uint8Array, now: number): Effects {
    const effects: Effects = [];
    this.session?.keepalives.noteReceived(now);
    try {
      this.decoder.feed(bytes);
      while (this.connected) {
        const packet = this.decoder.next();
        if (!packet) {
          break;
        }
        effects.push(...this.handlePacket(packet, now));
      }
    } catch (error) {
      if (!(error instanceof ProtocolError)) {
        throw error;
      }
      effects.push(...this.connectionLost({ reason: "bad_server", message: error.message }, now));
    }
    return effects;
  }

  /** The connection ended or could not be made; `message` says why, for people. */
  disconnected(message: string, now: number): Effects {
    if (this.state === "connecting") {
      return this.connectionLost({ reason: "unreachable", message }, now);
    }
    if (!this.connected) {
      return [];
    }
    if (this.session?.refusal) {
      return this.end(ended(this.session.refusal));
    }
    return this.connectionLost({ reason: "closed", message }, now);
  }

  /** Acts on time-outs; does nothing before the deadline. */
  tick(now: number): Effects {
    if (this.state === "online" && this.session) {
      return this.tickOnline(this.session, now);
    }
    if (now < this.stateDeadline) {
      return [];
    }
    switch (this.state) {
      case "waiting":
        this.beginAttempt(now);
        return [];
      case "fetching a token":
        return this.tokenFetched(new Error(`none came within ${TOKEN_TIMEOUT_MS / 1000} s`), now);
      case "connecting":
        return this.timedOut("unreachable", "connection", CONNECT_TIMEOUT_MS, now);
      case "logging in":
        return this.timedOut("login_timeout", "answer to the login", LOGIN_TIMEOUT_MS, now);
      case "logging out":
        return [...(this.session?.expireRequests(now) ?? []), ...this.end(null)];
      default:
        return [];
    }
  }

  /**
   * Sends a request and returns its id; one `RequestResult` follows. `retries`: see `Session.request`.
   *
   * @throws NotConnected not logged in now.
   * @throws Ended ended for good.
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
      throw this.endError();
    }
    if (this.state !== "online" || !this.session) {
      throw new NotConnected(`${this.state}: nothing was sent`);
    }
    return this.session.request(kind, payload, timeoutMs, now, { retries });
  }

  /**
   * Sends a logout: the user is offline as soon as the server reads it. A `RequestResult` follows.
   *
   * @throws NotConnected not logged in now. The client has ended all the same; a session of an earlier
   *   connection ends by itself.
   * @throws Ended ended before.
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
    this.stateDeadline = now + LOGOUT_TIMEOUT_MS;
    return this.logoutId;
  }

  /** Ends without a logout: the user is offline after the server's grace for lost connections. */
  close(): Effects {
    return this.state === "ended" ? [] : this.end(null);
  }

  // Transitions

  /** Returns why a token is useless after one was refused; null if it may be a new one. */
  private whyStale(token: unknown, now: number): string | null {
    if (token === this.login.token) {
      return "the token is the one that the server has refused";
    }
    if (typeof token !== "string" || this.clockOffsetMs === null) {
      return null;
    }
    const remainingMs = remainingLifetimeMs(token, now + this.clockOffsetMs) ?? Infinity;
    return remainingMs <= 0 ? "the token has expired" : null;
  }

  private handlePacket(packet: Packet, now: number): Effects {
    if (packet.kind === Kind.GOODBYE) {
      return this.handleGoodbye(packet, now);
    }
    if (!this.session) {
      return this.handleLoginAnswer(packet, now);
    }
    const effects = this.session.handlePacket(packet, now);
    if (effects.some((each) => each.type === "result" && each.id === this.logoutId)) {
      effects.push(...this.end(null));
    }
    return effects;
  }

  private handleLoginAnswer({ kind, id, payload }: Packet, now: number): Effects {
    if (kind === Kind.ERROR) {
      return this.loginRefused(parseRefusal(payload), null, now);
    }
    if (kind !== Kind.OK || id !== LOGIN_ID) {
      return [];
    }
    const push = parseConnected(payload, this.reconnectPolicy.logins > 0);
    const keepalives = new Keepalives(push.keepaliveMs, this.askEvery, now, this.chance);
    this.session = new Session(
      keepalives,
      now,
      () => (this.lastId += 1),
      (frame) => this.outgoing.push(frame),
    );
    const token = this.fetchesTokens ? this.login.token : null;
    this.clockOffsetMs = push.timeMs === null ? null : push.timeMs - now;
    this.renewal = new Renewal(this.session, token, push.timeMs, this.chance, (renewed) => {
      this.login.granted({ token: renewed });
      this.onTokenRenewed();
    });
    this.state = "online";
    this.reconnectPolicy.loginGranted();
    return [push];
  }

  private handleGoodbye(packet: Packet, now: number): Effects {
    const push = parseGoodbye(packet);
    const refusal = parseRefusal(packet.payload);
    if (this.state === "logging out") {
      return [push, ...this.end(null)];
    }
    if (!this.session) {
      return [push, ...this.loginRefused(refusal, push.reconnect, now)];
    }
    return [push, ...(push.reconnect ? this.connectionLost(refusal, now) : this.end(ended(refusal)))];
  }

  private tickOnline(session: Session, now: number): Effects {
    const effects = session.expireRequests(now);
    this.renewal?.tick(now);
    if (now >= session.keepalives.deadAt) {
      const message = "the server did not answer a keepalive in time";
      return [...effects, ...this.connectionLost({ reason: "dead_server", message }, now)];
    }
    session.sendKeepalive(now, this.chance);
    return effects;
  }

  private timedOut(reason: string, missing: string, timeoutMs: number, now: number): Effects {
    return this.connectionLost({ reason, message: `no ${missing} within ${timeoutMs / 1000} s` }, now);
  }

  /** The connection was lost or could not be made. */
  private connectionLost(loss: Loss, now: number): Effects {
    const onlineMs = this.session ? now - this.session.onlineSince : 0;
    const outcome = this.reconnectPolicy.connectionLost(loss, onlineMs);
    return this.state === "logging out" ? this.end(null) : this.reconnectOrEnd(loss, outcome, now);
  }

  private loginRefused(refusal: Refusal, reconnect: boolean | null, now: number): Effects {
    return this.reconnectOrEnd(refusal, this.reconnectPolicy.loginRefused(refusal, reconnect), now);
  }

  /** Waits for `outcome` milliseconds before the next attempt, or ends with that error. */
  private reconnectOrEnd(loss: Loss, outcome: number | PresenceError, now: number): Effects {
    const { reason, message, code = null } = loss;
    if (outcome instanceof PresenceError) {
      return this.end(outcome);
    }
    const effects = this.dropConnection(new ConnectionLost(message || reason));
    this.state = "waiting";
    this.stateDeadline = now + outcome;
    return [...effects, { type: "disconnected", reason, message, retryInMs: outcome, code }];
  }

  private end(error: PresenceError | null): Effects {
    const loggingOut = this.state === "logging out";
    this.state = "ended";
    this.error = error;
    const lost = new ConnectionLost("the connection broke during the logout");
    return this.dropConnection(loggingOut ? lost : this.endError());
  }

  private dropConnection(error: PresenceError): Effects {
    const session = this.session;
    this.session = this.renewal = null;
    return session?.failRequests(error) ?? [];
  }
}
