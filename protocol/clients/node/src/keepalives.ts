/** When to beat and to come back. Time (ms) and chance are arguments: `chance()` is uniform in [0, 1). */

import type { Chance } from "./reconnect.js";

const KEEPALIVE_JITTER = 0.1; // a beat comes up to this share of the interval early, never late
const MIN_KEEPALIVE_INTERVAL_MS = 20; // whatever a server dictates, a client is no flood
// Each beat asks. A server that stops is then noticed within two intervals, 0.8 of the idle time-out, so that
// a client whose path broke is back before it counts as offline. One of three would take four intervals.
export const ASK_EVERY = 1;

/**
 * The beats of one logged-in connection, and whether the server is still there.
 *
 * The first beat comes at a random moment of the first interval, so that clients who came together do not
 * beat together. The first of every `askEvery` beats asks for an answer: after one that asked, something must
 * arrive within an interval, or the server is dead. A server that stops is therefore noticed at most
 * `askEvery + 1` intervals later.
 */
export class Keepalives {
  /** When the next beat is due. */
  nextAt: number;
  /** When the server counts as dead; infinite while no answer is due. */
  deadAt = Infinity;
  /** Id of the beat whose answer is due. */
  unansweredId: number | null = null;
  /** From the last answered beat to its answer; null before one. */
  roundTripMs: number | null = null;
  private readonly intervalMs: number;
  private questionSentAt = 0;
  private sent = 0;

  /** @param now when the login was answered. */
  constructor(
    intervalMs: number,
    private readonly askEvery: number,
    now: number,
    chance: Chance,
  ) {
    this.intervalMs = Math.max(MIN_KEEPALIVE_INTERVAL_MS, intervalMs);
    this.nextAt = now + this.intervalMs * chance();
  }

  /**
   * Count a beat that is sent now; return whether it should carry an id.
   *
   * The next is due an interval from now: beats that were missed are not made up for.
   */
  countSent(now: number, chance: Chance): boolean {
    const asks = this.sent % this.askEvery === 0 && this.unansweredId === null;
    this.sent += 1;
    this.nextAt = now + this.intervalMs * (1 - KEEPALIVE_JITTER * chance());
    return asks;
  }

  /** The beat just counted carries this id. */
  expectAnswer(id: number, now: number): void {
    this.unansweredId = id;
    this.questionSentAt = now;
    this.deadAt = now + this.intervalMs;
  }

  /** Something arrived: whoever sends is alive, though the answer may stand behind other things. */
  noteReceived(now: number): void {
    if (this.unansweredId !== null) {
      this.deadAt = now + this.intervalMs;
    }
  }

  /** The answer to the beat that asked has come. */
  noteAnswered(now: number): void {
    this.roundTripMs = now - this.questionSentAt;
    this.unansweredId = null;
    this.deadAt = Infinity;
  }
}
