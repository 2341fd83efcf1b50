/** Token renewal on one connection. */

import { Code, Kind } from "./constants.js";
import { PresenceError, RequestFailed, Unsupported } from "./errors.js";
import { Backoff, type Chance } from "./reconnect.js";
import type { Session } from "./session.js";
import { checkedToken, remainingLifetimeMs } from "./tokens.js";
import type { ValueMap } from "./values.js";

export const TOKEN_TIMEOUT_MS = 30_000; // for the program's token function
export const ANSWER_TIMEOUT_MS = 10_000;
const RENEW_SHARE = 0.8; // of the remaining lifetime; the rest is for failing token functions and servers
const RENEW_JITTER = 0.1; // up to this share earlier: clients that logged in together do not renew together
export const MIN_RENEWAL_DELAY_MS = 1000;

/** Renews the token of a logged-in connection before it expires, if its expiry can be read. */
export class Renewal {
  /** When to call `tick`; infinite while nothing is to be done. */
  dueAt = Infinity;
  /** Whether to ask the program for a token now; ended by `offerToken` or a time-out. */
  wanted = false;
  private token: string | null = null; // that the server has accepted
  private sentToken = "";
  private refusedToken: string | null = null;
  private backoff = new Backoff();

  /**
   * @param token the token of the login; null if the program has no token function.
   * @param timeMs the server's clock when the login was answered; null if unknown.
   * @param onRenewed receives the token that the server has accepted.
   */
  constructor(
    private readonly session: Session,
    token: string | null,
    private timeMs: number | null,
    private readonly chance: Chance,
    private readonly onRenewed: (token: string) => void,
  ) {
    if (token !== null) {
      this.tokenAccepted(token, session.onlineSince);
    }
  }

  /** Asks for a token when it is time; postpones if the program takes too long. */
  tick(now: number): void {
    if (now < this.dueAt) {
      return;
    }
    if (this.wanted) {
      this.postpone(now);
    } else {
      this.wanted = true;
      this.dueAt = now + TOKEN_TIMEOUT_MS;
    }
  }

  /** Sends the token, unless it is invalid, or the server has it or has refused it. */
  offerToken(token: unknown, now: number): void {
    this.wanted = false;
    if (token === this.token || token === this.refusedToken) {
      this.postpone(now);
      return;
    }
    try {
      this.sentToken = checkedToken(token);
      const onAnswer = this.answered.bind(this);
      this.session.request(Kind.UPDATE, { token: this.sentToken }, ANSWER_TIMEOUT_MS, now, { onAnswer });
      this.dueAt = Infinity;
    } catch {
      this.postpone(now); // any error of the program's own code
    }
  }

  private remainingLifetimeMs(token: string, now: number): number | null {
    const serverTimeMs = this.timeMs === null ? null : this.timeMs + now - this.session.onlineSince;
    return remainingLifetimeMs(token, serverTimeMs);
  }

  private tokenAccepted(token: string, now: number): void {
    this.token = token;
    this.backoff = new Backoff();
    const remainingMs = this.remainingLifetimeMs(token, now);
    const share = RENEW_SHARE - RENEW_JITTER * this.chance();
    this.dueAt = remainingMs === null ? Infinity : now + Math.max(MIN_RENEWAL_DELAY_MS, remainingMs * share);
  }

  private answered(result: ValueMap | PresenceError, now: number): void {
    if (result instanceof Unsupported) {
      this.dueAt = Infinity; // the server checks no tokens
    } else if (result instanceof PresenceError) {
      const refusal = result instanceof RequestFailed ? result.refusal : null;
      if (refusal?.code === Code.AUTH_FAILED) {
        this.refusedToken = this.sentToken;
      }
      this.postpone(now, refusal?.retryAfterMs);
    } else {
      this.onRenewed(this.sentToken);
      if ((this.remainingLifetimeMs(this.sentToken, now) ?? 1) <= 0) {
        this.timeMs = null; // the server's clock was set in the meantime
      }
      this.tokenAccepted(this.sentToken, now);
    }
  }

  private postpone(now: number, retryAfterMs: number | null = null): void {
    this.wanted = false;
    this.dueAt = now + MIN_RENEWAL_DELAY_MS + this.backoff.nextMs(this.chance, 0, retryAfterMs);
  }
}
