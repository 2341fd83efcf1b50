/** A fresh token before the present one ends, on one connection. */

import { Code, Kind } from "./constants.js";
import { PresenceError, RequestFailed, Unsupported } from "./errors.js";
import { Backoff, type Chance } from "./reconnect.js";
import type { Caused, Session } from "./session.js";
import { given, leftMs } from "./tokens.js";

export const TOKEN_TIMEOUT_MS = 30_000; // for whoever makes tokens
export const ANSWER_TIMEOUT_MS = 10_000;
const RENEW_SHARE = 0.8; // of what is left of a token: the rest is for what fails for a while
const RENEW_JITTER = 0.1; // so much of it earlier at most: who logged in together does not renew together
export const RETRY_MIN_MS = 1000;

/** Keeps the token of a logged-in connection fresh, if it can be read when it ends. */
export class Renewal {
  /** When `tick` is to be called; infinite while nothing is to be done. */
  due = Infinity;
  /** Whether the source is to be asked now; `take` ends it, and some time without it. */
  wanted = false;
  private token: string | null = null; // that the server has
  private sent = "";
  private refused: string | null = null;
  private id: number | null = null;
  private backoff = new Backoff();

  /**
   * @param token what the session logged in with; null: nobody makes fresh ones.
   * @param timeMs the server's clock when the login was answered; null if not told.
   * @param granted takes the fresh token that the server has granted.
   */
  constructor(
    private readonly session: Session,
    token: string | null,
    private timeMs: number | null,
    private readonly chance: Chance,
    private readonly granted: (token: string) => void,
  ) {
    if (token !== null) {
      this.hold(token, session.since);
    }
  }

  /** Want a token if it is time; want none any more if the source has taken too long, until later. */
  tick(now: number): void {
    if (now < this.due) {
      return;
    }
    if (this.wanted) {
      this.postpone(now);
    } else {
      this.wanted = true;
      this.due = now + TOKEN_TIMEOUT_MS;
    }
  }

  /** Send the token that was wanted, unless it is none, or the server has it or has refused it. */
  take(token: unknown, now: number): void {
    this.wanted = false;
    if (token === this.token || token === this.refused) {
      this.postpone(now);
      return;
    }
    try {
      this.sent = given(token);
      this.id = this.session.request(Kind.UPDATE, { token: this.sent }, ANSWER_TIMEOUT_MS, now);
      this.due = Infinity;
    } catch {
      this.postpone(now); // of the program's own code, whatever it is
    }
  }

  /** Take out the answer to an own request, and do what it means. */
  settle(caused: Caused, now: number): Caused {
    return caused.filter((each) => {
      if (each.type !== "answer" || each.id !== this.id) {
        return true;
      }
      this.id = null;
      if (each.result instanceof PresenceError) {
        this.notGranted(each.result, now);
      } else {
        this.granted(this.sent);
        if ((this.left(this.sent, now) ?? 1) <= 0) {
          this.timeMs = null; // tokens are judged by another clock, which was set meanwhile
        }
        this.hold(this.sent, now);
      }
      return false;
    });
  }

  /** Take out the failure of an own request: the connection is gone, and the next login has a token. */
  withoutOwn(failed: Caused): Caused {
    return failed.filter((each) => each.type !== "answer" || each.id !== this.id);
  }

  private left(token: string, now: number): number | null {
    return leftMs(token, this.timeMs === null ? null : this.timeMs + now - this.session.since);
  }

  private hold(token: string, now: number): void {
    this.token = token;
    this.backoff = new Backoff();
    const left = this.left(token, now);
    const share = RENEW_SHARE - RENEW_JITTER * this.chance();
    this.due = left === null ? Infinity : now + Math.max(RETRY_MIN_MS, left * share);
  }

  private notGranted(error: PresenceError, now: number): void {
    if (error instanceof Unsupported) {
      this.due = Infinity; // it checks no tokens
      return;
    }
    const refusal = error instanceof RequestFailed ? error.refusal : null;
    if (refusal?.code === Code.AUTH_FAILED) {
      this.refused = this.sent;
    }
    this.postpone(now, refusal?.retryAfterMs);
  }

  private postpone(now: number, retryAfterMs: number | null = null): void {
    this.wanted = false;
    this.due = now + RETRY_MIN_MS + this.backoff.nextMs(this.chance, 0, retryAfterMs);
  }
}
