/** A fresh token before the present one ends, on one connection. */

import { Code, Kind } from "./constants.js";
import { PresenceError, RequestFailed, Unsupported } from "./errors.js";
import { Backoff, type Chance } from "./reconnect.js";
import type { Effects, Session } from "./session.js";
import { checkedToken, remainingLifetimeMs } from "./tokens.js";

export const TOKEN_TIMEOUT_MS = 30_000; // for whoever makes tokens
export const ANSWER_TIMEOUT_MS = 10_000;
const RENEW_SHARE = 0.8; // of what is left of a token: the rest is for what fails for a while
const RENEW_JITTER = 0.1; // so much of it earlier at most: who logged in together does not renew together
export const MIN_RENEWAL_DELAY_MS = 1000;

/** Keeps the token of a logged-in connection fresh, if it can be read when it ends. */
export class Renewal {
  /** When `tick` is to be called; infinite while nothing is to be done. */
  dueAt = Infinity;
  /** Whether the source is to be asked now; `take` ends it, and some time without it. */
  wanted = false;
  private token: string | null = null; // that the server has
  private sentToken = "";
  private refusedToken: string | null = null;
  private requestId: number | null = null;
  private backoff = new Backoff();

  /**
   * @param token what the session logged in with; null: nobody makes fresh ones.
   * @param timeMs the server's clock when the login was answered; null if not told.
   * @param onRenewed takes the fresh token that the server has granted.
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

  /** Want a token if it is time; want none any more if the source has taken too long, until later. */
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

  /** Send the token that was wanted, unless it is none, or the server has it or has refused it. */
  offerToken(token: unknown, now: number): void {
    this.wanted = false;
    if (token === this.token || token === this.refusedToken) {
      this.postpone(now);
      return;
    }
    try {
      this.sentToken = checkedToken(token);
      this.requestId = this.session.request(Kind.UPDATE, { token: this.sentToken }, ANSWER_TIMEOUT_MS, now);
      this.dueAt = Infinity;
    } catch {
      this.postpone(now); // of the program's own code, whatever it is
    }
  }

  /** Take out the answer to an own request, and do what it means. */
  consumeResult(effects: Effects, now: number): Effects {
    return effects.filter((each) => {
      if (each.type !== "result" || each.id !== this.requestId) {
        return true;
      }
      this.requestId = null;
      if (each.result instanceof PresenceError) {
        this.tokenRejected(each.result, now);
      } else {
        this.onRenewed(this.sentToken);
        if ((this.remainingLifetimeMs(this.sentToken, now) ?? 1) <= 0) {
          this.timeMs = null; // tokens are judged by another clock, which was set meanwhile
        }
        this.tokenAccepted(this.sentToken, now);
      }
      return false;
    });
  }

  /** Take out the failure of an own request: the connection is gone, and the next login has a token. */
  withoutResult(failed: Effects): Effects {
    return failed.filter((each) => each.type !== "result" || each.id !== this.requestId);
  }

  private remainingLifetimeMs(token: string, now: number): number | null {
    return remainingLifetimeMs(
      token,
      this.timeMs === null ? null : this.timeMs + now - this.session.onlineSince,
    );
  }

  private tokenAccepted(token: string, now: number): void {
    this.token = token;
    this.backoff = new Backoff();
    const remainingMs = this.remainingLifetimeMs(token, now);
    const share = RENEW_SHARE - RENEW_JITTER * this.chance();
    this.dueAt = remainingMs === null ? Infinity : now + Math.max(MIN_RENEWAL_DELAY_MS, remainingMs * share);
  }

  private tokenRejected(error: PresenceError, now: number): void {
    if (error instanceof Unsupported) {
      this.dueAt = Infinity; // it checks no tokens
      return;
    }
    const refusal = error instanceof RequestFailed ? error.refusal : null;
    if (refusal?.code === Code.AUTH_FAILED) {
      this.refusedToken = this.sentToken;
    }
    this.postpone(now, refusal?.retryAfterMs);
  }

  private postpone(now: number, retryAfterMs: number | null = null): void {
    this.wanted = false;
    this.dueAt = now + MIN_RENEWAL_DELAY_MS + this.backoff.nextMs(this.chance, 0, retryAfterMs);
  }
}
