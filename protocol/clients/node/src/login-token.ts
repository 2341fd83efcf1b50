/**
 * The token of one client: when to ask the program for one, whether to send it, and which never again.
 *
 * Only a client with a token function is ever out of `idle`:
 *
 *     idle ── a login begins, or a renewal is due ──→ wanted ── a usable token, online ──→ sent
 *       ↑ ↑                                             │                                   │
 *       │ └── a usable token before a login; none, a stale one, a time-out; a lost connection
 *       └──────────── granted, refused, no answer, a lost connection ───────────────────────┘
 *
 * What the next login carries is kept in `Login`. A token that the server has refused, at a login or in an
 * update, is remembered itself: whatever becomes of the tokens after it, it is not sent again.
 */

import { Code, Kind } from "./constants.js";
import type { Chance } from "./environment.js";
import {
  type LoginRefused,
  NoToken,
  PresenceError,
  RequestFailed,
  retryAfterMs,
  Unsupported,
} from "./errors.js";
import type { Login } from "./login.js";
import { Backoff, type Loss } from "./reconnect.js";
import type { Session } from "./session.js";
import { checkedToken, remainingLifetimeMs } from "./tokens.js";
import type { ValueMap } from "./values.js";

export const TOKEN_TIMEOUT_MS = 30_000; // for the program's token function
export const ANSWER_TIMEOUT_MS = 10_000;
const RENEW_SHARE = 0.8; // of the remaining lifetime; the rest is for failing token functions and servers
const RENEW_JITTER = 0.1; // up to this share earlier: clients that logged in together do not renew together
export const MIN_RENEWAL_DELAY_MS = 1000;

/** Returns the server's clock, Unix milliseconds, at `now`; null if unknown. */
export type ServerClock = (now: number) => number | null;

export class LoginToken {
  /** When to call `tick`; infinite while nothing is to be done. */
  dueAt = Infinity;
  private phase: "idle" | "wanted" | "sent" = "idle";
  private session: Session | null = null; // the logged-in connection
  private sentToken = ""; // while `sent`
  private refusedToken: string | null = null; // the last that the server has refused
  private refusal: LoginRefused | null = null; // of the last login, until one is granted
  private trustsClock = true; // false: the clock that tokens are checked by was set meanwhile
  private backoff = new Backoff();

  /**
   * @param fetches whether the program has a token function.
   * @param onRenewed called when the server has accepted a token that the function returned while online.
   */
  constructor(
    private readonly login: Login,
    private readonly fetches: boolean,
    private readonly clock: ServerClock,
    private readonly chance: Chance,
    private readonly onRenewed: () => void,
  ) {}

  /** Whether to ask the program for a token now; ended by `offer`, a time-out or the end of the connection. */
  get wanted(): boolean {
    return this.phase === "wanted";
  }

  /** A run begins: a token refused in an earlier one does not count as its first. */
  begin(): void {
    this.refusal = null;
  }

  /** Asks for the token of a login. */
  beginLogin(now: number): void {
    this.phase = "wanted";
    this.dueAt = now + TOKEN_TIMEOUT_MS;
  }

  /**
   * Takes what the program returned: for the login, or for an update if there is a connection.
   *
   * Returns why there can be no login; null if there can, or if it is not about one.
   */
  offer(token: unknown, now: number): Loss | null {
    if (this.session) {
      this.offerUpdate(this.session, token, now);
      return null;
    }
    this.rest();
    const stale = this.whyStale(token, now);
    if (stale !== null) {
      return { reason: "no_token", message: stale, failure: this.refusal ?? new NoToken(new Error(stale)) };
    }
    try {
      this.login.change({ token: checkedToken(token) });
      return null;
    } catch (error) {
      const failure = new NoToken(error);
      return { reason: "no_token", message: failure.message, failure };
    }
  }

  loginGranted(session: Session, now: number): void {
    this.session = session;
    this.refusal = null;
    this.trustsClock = true;
    this.accepted(now);
  }

  /**
   * The server refused the token of the login. Returns whether to try another: only the refusal of that one
   * ends the client.
   */
  loginRefused(refusal: LoginRefused): boolean {
    const isFirst = this.refusal === null;
    this.refusedToken = this.login.token;
    this.refusal = refusal;
    return this.fetches && isFirst;
  }

  /** The server has taken a token in an update. */
  granted(token: string, now: number): void {
    this.login.granted({ token });
    if ((this.remainingLifetimeMs(token, now) ?? 1) <= 0) {
      this.trustsClock = false;
    }
    this.accepted(now);
  }

  /** Asks for a token when it is time; postpones if the program takes too long. */
  tick(now: number): void {
    if (now < this.dueAt || !this.session) {
      return;
    }
    if (this.wanted) {
      this.postpone(now);
    } else {
      this.beginLogin(now);
    }
  }

  /** The connection is lost or about to be closed, or the attempt to make one has failed. */
  stop(): void {
    this.session = null;
    this.rest();
  }

  private rest(): void {
    this.phase = "idle";
    this.dueAt = Infinity;
  }

  /** Returns why a token is useless; null if it may be good. */
  private whyStale(token: unknown, now: number): string | null {
    if (token !== null && token === this.refusedToken) {
      return "the token is the one that the server has refused";
    }
    // The clock may be wrong, so that it decides only after a refusal.
    const isDoubtful = this.refusal !== null && typeof token === "string" && this.clock(now) !== null;
    return isDoubtful && (this.remainingLifetimeMs(token, now) ?? 1) <= 0 ? "the token has expired" : null;
  }

  /** Sends the token, unless it is invalid, or the server has it or has refused it. */
  private offerUpdate(session: Session, token: unknown, now: number): void {
    if (token === this.login.token || token === this.refusedToken) {
      this.postpone(now);
      return;
    }
    try {
      this.sentToken = checkedToken(token);
      const onAnswer = this.answered.bind(this);
      session.request(Kind.UPDATE, { token: this.sentToken }, ANSWER_TIMEOUT_MS, now, { onAnswer });
      this.phase = "sent";
      this.dueAt = Infinity;
    } catch {
      this.postpone(now); // any error of the program's own code
    }
  }

  private answered(result: ValueMap | PresenceError, now: number): void {
    if (result instanceof Unsupported) {
      this.rest(); // the server checks no tokens
    } else if (result instanceof PresenceError) {
      if (result instanceof RequestFailed && result.code === Code.AUTH_FAILED) {
        this.refusedToken = this.sentToken;
      }
      this.postpone(now, retryAfterMs(result));
    } else {
      this.granted(this.sentToken, now);
      this.onRenewed();
    }
  }

  /** The server has accepted the token that the login has now. */
  private accepted(now: number): void {
    const { token } = this.login;
    this.rest();
    this.backoff = new Backoff();
    if (token === this.refusedToken) {
      this.refusedToken = null;
    }
    const remainingMs = this.fetches && token !== null ? this.remainingLifetimeMs(token, now) : null;
    if (remainingMs !== null) {
      const share = RENEW_SHARE - RENEW_JITTER * this.chance();
      this.dueAt = now + Math.max(MIN_RENEWAL_DELAY_MS, remainingMs * share);
    }
  }

  private postpone(now: number, retryAfterMs: number | null = null): void {
    this.phase = "idle";
    this.dueAt = now + MIN_RENEWAL_DELAY_MS + this.backoff.nextMs(this.chance, 0, retryAfterMs);
  }

  private remainingLifetimeMs(token: string, now: number): number | null {
    return remainingLifetimeMs(token, this.trustsClock ? this.clock(now) : null);
  }
}
