/** Whether a client comes back after a connection that ended or could not be had, and when. */

import { Code, mayReturn } from "./constants.js";
import { LoginRefused, PresenceError, type Refusal, Unreachable } from "./errors.js";

export type Chance = () => number;

const RECONNECT_FIRST_MS = 1000;
const RECONNECT_MAX_MS = 60_000;
const STABLE_MS = 60_000; // so long online, and the next return is quick again

/**
 * Full jitter: the n-th return since the last stable time, n from 0, waits up to min(60, 2^n) s.
 *
 * The source of the idea: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
 */
export class Backoff {
  private attempts = 0;

  /**
   * Return how long to stay away.
   *
   * @param onlineMs how long the connection that was lost had been logged in.
   * @param retryAfterMs what the server asked for. The jitter comes on top, or all clients that were told the
   *   same would come at the same moment.
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

/** Why a connection ended, or could not be had; what `disconnected` tells. */
export interface Loss {
  readonly reason: string;
  readonly message: string;
  readonly code?: number | null;
  readonly retryAfterMs?: number | null;
  /** What it means for a first attempt that decides; left out, `Unreachable`. */
  readonly failure?: PresenceError;
}

/** What a client has tried so far. Each loss is answered with for how long to stay away, or what ends it. */
export class ReconnectPolicy {
  /** How often it came online. */
  logins = 0;
  /** How often a connection was lost, or could not be had. */
  losses = 0;
  /** Of the token of the last login, if another is to be tried; null without one. */
  refusal: LoginRefused | null = null;
  private readonly backoff = new Backoff();

  /**
   * @param persistent whether a first attempt that fails is repeated like any later one.
   * @param fetchesTokens whether the program may have another token than the one that was refused.
   */
  constructor(
    private readonly persistent: boolean,
    private readonly fetchesTokens: boolean,
    private readonly chance: Chance,
  ) {}

  /** A login was granted. */
  loginGranted(): void {
    this.logins += 1;
    this.refusal = null;
  }

  /** @param onlineMs for how long the connection had been logged in. */
  connectionLost(loss: Loss, onlineMs: number): number | PresenceError {
    this.losses += 1;
    if (!this.persistent && this.logins === 0) {
      return loss.failure ?? new Unreachable(loss.message || loss.reason);
    }
    return this.backoff.nextMs(this.chance, onlineMs, loss.retryAfterMs ?? null);
  }

  /**
   * The server refused the login. A refused token is a reason to ask the program for another. Only the refusal
   * of that one, which is not known to be stale, ends the client.
   *
   * @param reconnect whether it said that the client may return; null: its code decides.
   */
  loginRefused(refusal: Refusal, reconnect: boolean | null): number | PresenceError {
    const failure = new LoginRefused(refusal);
    if (refusal.code === Code.AUTH_FAILED && this.fetchesTokens && !this.refusal) {
      this.losses += 1;
      this.refusal = failure;
      return this.backoff.nextMs(this.chance, 0, refusal.retryAfterMs);
    }
    return (reconnect ?? mayReturn(refusal.code)) ? this.connectionLost({ ...refusal, failure }, 0) : failure;
  }
}
