/** Whether and when a client reconnects after a connection was lost or could not be made. */

import { Code, mayReconnect } from "./constants.js";
import { LoginRefused, PresenceError, type Refusal, Unreachable } from "./errors.js";

/** Returns a random number, uniform in [0, 1). */
export type Chance = () => number;

const RECONNECT_FIRST_MS = 1000;
const RECONNECT_MAX_MS = 60_000;
const RETURNS_IF_TOLD_WHEN: ReadonlySet<number> = new Set([Code.BANNED, Code.SESSION_LIMIT]);
const STABLE_MS = 10_000; // after this time online the next reconnect is quick again

/**
 * Full jitter: the n-th attempt since the last stable connection, n from 0, waits up to min(60, 2^n) s.
 *
 * The source of the idea: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
 */
export class Backoff {
  private attempts = 0;

  /**
   * Returns how long to wait before the next attempt.
   *
   * @param onlineMs how long the lost connection had been logged in.
   * @param retryAfterMs what the server asked for. The jitter is added: otherwise all clients given the same
   *   value would return at the same moment.
   */
  nextMs(chance: Chance, onlineMs = 0, retryAfterMs: number | null = null): number {
    if (onlineMs >= STABLE_MS) {
      this.attempts = 0;
    }
    const maxMs = Math.min(RECONNECT_MAX_MS, RECONNECT_FIRST_MS * 2 ** Math.min(this.attempts, 16));
    this.attempts += 1;
    return (retryAfterMs ?? 0) + maxMs * chance();
  }
}

/** Why a connection was lost or could not be made; see `Disconnected`. */
export interface Loss {
  readonly reason: string;
  readonly message: string;
  readonly code?: number | null;
  readonly retryAfterMs?: number | null;
  /** The error if the first attempt must succeed; `Unreachable` if left out. */
  readonly failure?: PresenceError;
}

/** Decides after each loss how long to wait (ms), or which error ends the client. */
export class ReconnectPolicy {
  /** Logins granted. */
  logins = 0;
  /** Connections lost, and failed attempts. */
  losses = 0;
  /** The refusal of the last token, if another token is to be tried. */
  refusal: LoginRefused | null = null;
  private readonly backoff = new Backoff();

  /**
   * @param persistent whether a failed first attempt is repeated like any later one.
   * @param fetchesTokens whether the program may have another token than the refused one.
   */
  constructor(
    private readonly persistent: boolean,
    private readonly fetchesTokens: boolean,
    private readonly chance: Chance,
  ) {}

  loginGranted(): void {
    this.logins += 1;
    this.refusal = null;
  }

  /** @param onlineMs how long the connection had been logged in. */
  connectionLost(loss: Loss, onlineMs: number): number | PresenceError {
    this.losses += 1;
    if (!this.persistent && this.logins === 0) {
      return loss.failure ?? new Unreachable(loss.message || loss.reason);
    }
    return this.backoff.nextMs(this.chance, onlineMs, loss.retryAfterMs ?? null);
  }

  /**
   * The server refused the login. After a refused token the program is asked for another. Only the refusal of
   * that one, if it is not known to be stale, ends the client.
   *
   * @param reconnect whether the server allows a reconnect; null: the code decides.
   */
  loginRefused(refusal: Refusal, reconnect: boolean | null): number | PresenceError {
    const failure = new LoginRefused(refusal);
    if (refusal.code === Code.AUTH_FAILED && this.fetchesTokens && !this.refusal) {
      this.losses += 1;
      this.refusal = failure;
      return this.backoff.nextMs(this.chance, 0, refusal.retryAfterMs);
    }
    // After some codes a client may return only if the refusal names the time: a ban may have no end.
    const isToldWhen = RETURNS_IF_TOLD_WHEN.has(refusal.code) && refusal.retryAfterMs !== null;
    const allowed = reconnect ?? (isToldWhen || mayReconnect(refusal.code));
    return allowed ? this.connectionLost({ ...refusal, failure }, 0) : failure;
  }
}
