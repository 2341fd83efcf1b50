/** Whether and when a client reconnects after a connection was lost or could not be made. */

import { Code, mayReconnect } from "./constants.js";
import type { Chance } from "./environment.js";
import { type LoginRefused, type PresenceError, type Refusal, Unreachable } from "./errors.js";

export const RECONNECT_FIRST_MS = 1000;
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
  private backoff = new Backoff();
  private wasOnline = false; // in this run

  /** @param persistent whether a failed first attempt is repeated like any later one. */
  constructor(
    private readonly persistent: boolean,
    private readonly chance: Chance,
  ) {}

  /** A run begins. */
  begin(): void {
    this.backoff = new Backoff();
    this.wasOnline = false;
  }

  loginGranted(): void {
    this.logins += 1;
    this.wasOnline = true;
  }

  /** @param onlineMs how long the connection had been logged in. */
  connectionLost(loss: Loss, onlineMs: number): number | PresenceError {
    this.losses += 1;
    if (!this.persistent && !this.wasOnline) {
      return loss.failure ?? new Unreachable(loss.message || loss.reason);
    }
    return this.backoff.nextMs(this.chance, onlineMs, loss.retryAfterMs ?? null);
  }

  /**
   * The server refused the login.
   *
   * @param reconnect whether the server allows a reconnect; null: the code decides.
   * @param triesAnotherToken whether the program is to be asked for another token than the refused one.
   */
  loginRefused(
    loss: Refusal & { readonly failure: LoginRefused },
    reconnect: boolean | null,
    triesAnotherToken: boolean,
  ): number | PresenceError {
    if (triesAnotherToken) {
      this.losses += 1;
      return this.backoff.nextMs(this.chance, 0, loss.retryAfterMs);
    }
    // After some codes a client may return only if the refusal names the time: a ban may have no end.
    const isToldWhen = RETURNS_IF_TOLD_WHEN.has(loss.code) && loss.retryAfterMs !== null;
    const allowed = reconnect ?? (isToldWhen || mayReconnect(loss.code));
    return allowed ? this.connectionLost(loss, 0) : loss.failure;
  }
}
