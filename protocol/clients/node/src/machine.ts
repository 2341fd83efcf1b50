/**
 * The protocol of a client as a state machine: no I/O, and time and randomness are arguments.
 *
 * A shell moves the bytes. It connects while the state is "connecting", reads and writes while `connected` is
 * true, closes the connection as soon as it is false, and calls `tick` at `deadline`. It must read all
 * received bytes before that call, or an answer that arrived in time would count as missing. Each input
 * returns its effects, in order; `takeOutgoing` returns the bytes to send. While `wantsToken` is true, the
 * shell asks the program for a token, one call at a time, and passes the result to `tokenFetched`.
 *
 *     idle → fetching a token → connecting → logging in → online → logging out → ended
 *                   ↑ ↓            ↑ ↓          ↓          ↓
 *            waiting to return ←───┴─┴──────────┴──────────┘        and from any of these to ended
 *
 * One passage from left to right is a run; its last effect is its `End`. After it another may begin, with the same
 * login, tokens, watches and counters. Without a token function the second state is left out.
 */

import { concat } from "./bytes.js";
import { encode, type Packet } from "./codec.js";
import { Code, FRAME_LIMIT_BYTES, Kind } from "./constants.js";
import { Decoder } from "./decoder.js";
import type { Chance } from "./environment.js";
import {
  ConnectionLost,
  Ended,
  ended,
  LoginRefused,
  NotConnected,
  PresenceError,
  ProtocolError,
  type Refusal,
} from "./errors.js";
import { ASK_EVERY, Keepalives } from "./keepalives.js";
import { type Identity, Login, LOGIN_ID, type LoginChange } from "./login.js";
import { LoginToken, TOKEN_TIMEOUT_MS } from "./login-token.js";
import { parseConnected, parseGoodbye, parseRefusal } from "./pushes.js";
import { type Loss, RECONNECT_FIRST_MS, ReconnectPolicy } from "./reconnect.js";
import { type Effects, Session } from "./session.js";

export const CONNECT_TIMEOUT_MS = 10_000; // name, TCP, TLS; a lost SYN is repeated after 1, 3 and 7 s
export const LOGIN_TIMEOUT_MS = 6000; // the server refuses a login left unread for 5 s
export const LOGOUT_TIMEOUT_MS = 2000;

/** `idle`: before the first `connect`. */
export type State =
  | "idle"
  | "fetching a token"
  | "connecting"
  | "logging in"
  | "online"
  | "logging out"
  | "waiting to return"
  | "ended";

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
  state: State = "idle";
  readonly login: Login;
  /** Why the last run has ended; null before, and after the program's logout or disconnect. */
  error: PresenceError | null = null;
  readonly reconnectPolicy: ReconnectPolicy;
  private readonly fetchesTokens: boolean;
  private readonly askEvery: number;
  private readonly chance: Chance;
  private decoder = new Decoder();
  private stateDeadline = Infinity; // used in all states except online
  private notBefore = 0; // while it waits to return: the server has asked for so long a wait
  private lastId = LOGIN_ID;
  private logoutId: number | null = null;
  private outgoing: Uint8Array[] = [];
  private session: Session | null = null;
  private readonly token: LoginToken;
  private clockOffsetMs: number | null = null; // from `now` to Unix ms by the last server's clock

  /** @throws EncodeError the login breaks a rule of the protocol. */
  constructor(login: Identity, options: MachineOptions = {}) {
    this.fetchesTokens = options.fetchesTokens ?? false;
    this.login = new Login(login, this.fetchesTokens);
    this.askEvery = options.askEvery ?? ASK_EVERY;
    this.chance = options.chance ?? Math.random;
    const onRenewed = options.onTokenRenewed ?? ((): void => undefined);
    const clock = (now: number): number | null => this.serverTimeMs(now);
    this.token = new LoginToken(this.login, this.fetchesTokens, clock, this.chance, onRenewed);
    this.reconnectPolicy = new ReconnectPolicy(options.persistent ?? true, this.chance);
  }

  // Queries of the shell

  /** Whether the shell should hold a connection. */
  get connected(): boolean {
    return this.state === "logging in" || this.state === "online" || this.state === "logging out";
  }

  /** Whether to ask the program for a token now, unless a call is already running. */
  get wantsToken(): boolean {
    return this.token.wanted;
  }

  /** When to call `tick`; infinite before and after a run. */
  get deadline(): number {
    if (this.state === "online" && this.session) {
      return Math.min(this.session.deadline, this.token.dueAt);
    }
    if (this.state === "logging out" && this.session) {
      return Math.min(this.stateDeadline, this.session.requestsDueAt);
    }
    return this.isOver ? Infinity : this.stateDeadline;
  }

  /** Whether there is no run. */
  get isOver(): boolean {
    return this.state === "idle" || this.state === "ended";
  }

  /** The clock of the last server, Unix milliseconds; null if unknown. */
  serverTimeMs(now: number): number | null {
    return this.clockOffsetMs === null ? null : now + this.clockOffsetMs;
  }

  /** Round trip of the last answered keepalive on this connection; null before one. */
  get roundTripMs(): number | null {
    return this.session?.keepalives.roundTripMs ?? null;
  }

  /** Why the last run has ended. */
  endError(): PresenceError {
    const message = "this client was logged out or disconnected";
    return this.error ?? new Ended({ code: Code.LOGOUT, reason: "logout", message, retryAfterMs: null });
  }

  /** The error of requests while the client is not online. */
  whyNotOnline(): PresenceError {
    return this.state === "ended" ? this.endError() : new NotConnected(`${this.state}: nothing was sent`);
  }

  /** Returns the bytes to send on the current connection, and clears them. */
  takeOutgoing(): Uint8Array {
    const bytes = concat(this.outgoing);
    this.outgoing = [];
    return bytes;
  }

  // Inputs of the shell

  /** The server has granted an update of the program: later logins carry it. */
  granted({ token, ...change }: LoginChange, now: number): void {
    this.login.granted(change);
    if (token !== undefined) {
      this.token.granted(token, now);
    }
  }

  /** Begins a run, if there is none. `now` is in monotonic milliseconds, always of the same clock. */
  begin(now: number): void {
    if (this.isOver) {
      this.error = null;
      this.logoutId = null;
      this.reconnectPolicy.begin();
      this.token.begin();
      this.beginAttempt(now);
    }
  }

  private beginAttempt(now: number): void {
    if (this.fetchesTokens) {
      this.state = "fetching a token";
      this.token.beginLogin(now);
      this.stateDeadline = this.token.dueAt;
    } else {
      this.state = "connecting";
      this.stateDeadline = now + CONNECT_TIMEOUT_MS;
    }
  }

  /** The program returned a token, or failed with an Error; ignored if no token is wanted any more. */
  tokenFetched(token: unknown, now: number): Effects {
    if (!this.wantsToken) {
      return [];
    }
    const loss = this.token.offer(token, now);
    if (loss) {
      return this.connectionLost(loss, now);
    }
    if (this.session) {
      return [];
    }
    this.state = "connecting";
    this.stateDeadline = now + CONNECT_TIMEOUT_MS;
    return [];
  }

  /** The connection is established: log in, unless the run has ended in the meantime. */
  established(now: number): Effects {
    if (this.state !== "connecting") {
      return [];
    }
    this.decoder = new Decoder();
    this.outgoing = [this.login.frame(this.serverTimeMs(now))];
    this.state = "logging in";
    this.stateDeadline = now + LOGIN_TIMEOUT_MS;
    return [];
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
      this.session?.sendConfirmations();
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

  /**
   * The device may have slept, or its network changed: what the machine knows of the connection may be outdated. It
   * asks the server for a sign of life; if it waits to return, it does so within the time of a first attempt.
   */
  wake(now: number): void {
    if (this.state === "online") {
      this.session?.probe(now, this.chance);
    } else if (this.state === "waiting to return") {
      const at = Math.max(now, this.notBefore) + RECONNECT_FIRST_MS * this.chance();
      this.stateDeadline = Math.min(this.stateDeadline, at);
    }
  }

  /** Acts on time-outs; does nothing before the deadline. */
  tick(now: number): Effects {
    if (this.state === "online" && this.session) {
      return this.tickOnline(this.session, now);
    }
    const expired = this.state === "logging out" ? (this.session?.expireRequests(now) ?? []) : [];
    if (now < this.stateDeadline) {
      return expired;
    }
    switch (this.state) {
      case "waiting to return":
        this.beginAttempt(now);
        return [];
      case "fetching a token":
        return this.tokenFetched(new Error(`none came within ${TOKEN_TIMEOUT_MS / 1000} s`), now);
      case "connecting":
        return this.timedOut("unreachable", "connection", CONNECT_TIMEOUT_MS, now);
      case "logging in":
        return this.timedOut("login_timeout", "answer to the login", LOGIN_TIMEOUT_MS, now);
      case "logging out":
        return [...expired, ...this.end(null)];
      default:
        return [];
    }
  }

  /**
   * Sends a request and returns its id; one `RequestResult` follows. `retries`: see `Session.request`.
   *
   * @throws NotConnected not logged in now.
   * @throws PresenceError why the last run has ended, for example Ended.
   * @throws EncodeError the packet breaks a rule of the protocol.
   */
  request(
    kind: number,
    payload: Readonly<Record<string, unknown>>,
    timeoutMs: number,
    now: number,
    retries = false,
  ): number {
    if (this.state !== "online" || !this.session) {
      throw this.whyNotOnline();
    }
    return this.session.request(kind, payload, timeoutMs, now, { retries });
  }

  /** @throws EncodeError the request breaks a rule of the protocol. */
  check(kind: number, payload: Readonly<Record<string, unknown>>): void {
    encode(kind, Number.MAX_SAFE_INTEGER, payload, FRAME_LIMIT_BYTES);
  }

  /** The program does not wait for the answer to a request any more. */
  abandon(id: number, now: number): Effects {
    return this.session?.abandon(id, now) ?? [];
  }

  /**
   * Sends a logout: the user is offline as soon as the server reads it. A `RequestResult` follows, and the end.
   *
   * @throws NotConnected, EncodeError as `request`; the run goes on.
   */
  logOut(reason: "logout" | "background" | undefined, now: number): number {
    this.logoutId = this.request(Kind.LOGOUT, { reason }, LOGOUT_TIMEOUT_MS, now);
    this.token.stop();
    if (this.session) {
      this.session.isLeaving = true;
    }
    this.state = "logging out";
    this.stateDeadline = now + LOGOUT_TIMEOUT_MS;
    return this.logoutId;
  }

  /** Ends the run without a logout: the user is offline after the server's grace for lost connections. */
  disconnect(): Effects {
    return this.isOver ? [] : this.end(null);
  }

  // Transitions

  private handlePacket(packet: Packet, now: number): Effects {
    if (packet.kind === Kind.GOODBYE) {
      return this.handleGoodbye(packet, now);
    }
    const joined = packet.payload["joined"] as string[] | undefined;
    if (packet.kind === Kind.OK && (!this.session || joined)) {
      this.login.joined = joined ?? null;
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
    this.clockOffsetMs = push.timeMs === null ? null : push.timeMs - now;
    this.token.loginGranted(this.session, now);
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
    this.token.tick(now);
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
    const failure = new LoginRefused(refusal);
    const triesAnotherToken = refusal.code === Code.AUTH_FAILED && this.token.loginRefused(failure);
    const loss = { ...refusal, failure };
    return this.reconnectOrEnd(
      loss,
      this.reconnectPolicy.loginRefused(loss, reconnect, triesAnotherToken),
      now,
    );
  }

  /** Waits for `outcome` milliseconds before the next attempt, or ends with that error. */
  private reconnectOrEnd(loss: Loss, outcome: number | PresenceError, now: number): Effects {
    const { reason, message, code = null } = loss;
    if (outcome instanceof PresenceError) {
      return this.end(outcome);
    }
    const effects = this.dropConnection(new ConnectionLost(message || reason));
    this.state = "waiting to return";
    this.stateDeadline = now + outcome;
    this.notBefore = now + (loss.retryAfterMs ?? 0);
    return [...effects, { type: "disconnected", reason, message, retryInMs: outcome, code }];
  }

  private end(error: PresenceError | null): Effects {
    const loggingOut = this.state === "logging out";
    this.state = "ended";
    this.error = error;
    const lost = new ConnectionLost("the connection broke during the logout");
    return [...this.dropConnection(loggingOut ? lost : this.endError()), { type: "end", error }];
  }

  private dropConnection(error: PresenceError): Effects {
    const session = this.session;
    this.session = null;
    this.outgoing = [];
    this.token.stop();
    return session?.failRequests(error) ?? [];
  }
}
