/** Keepalives, and the detection of a dead server. Time (ms) and randomness are arguments. */

import type { Chance } from "./environment.js";

export const KEEPALIVE_SHARE = 0.4; // of the idle time-out
const KEEPALIVE_JITTER = 0.1; // each is up to this share of the interval early, never late
const MIN_KEEPALIVE_INTERVAL_MS = 20; // lower bound, whatever the server asks for
// Each keepalive asks for an answer. A dead server is then detected within two intervals, 0.8 of the idle
// time-out, so a client whose path broke is back before it counts as offline. With 3 it would take four.
export const ASK_EVERY = 1;
export const PROBE_TIMEOUT_MS = 5000; // for an answer when the connection is in doubt: a radio that has just woken up

/**
 * The keepalives of one logged-in connection.
 *
 * The first is sent at a random time in the first interval, so that clients that connected together do not
 * send together. The first of every `askEvery` keepalives asks for an answer; after it something must arrive
 * within an interval, or the server counts as dead. A dead server is therefore detected after at most
 * `askEvery + 1` intervals.
 */
export class Keepalives {
  /** When the next keepalive is due. */
  nextAt: number;
  /** When the server counts as dead; infinite while no answer is due. */
  deadAt = Infinity;
  /** Id of the keepalive that awaits an answer. */
  unansweredId: number | null = null;
  /** Round trip of the last answered keepalive; null before one. */
  roundTripMs: number | null = null;
  private intervalMs: number;
  private grantedMs: number;
  private questionSentAt = 0;
  private sent = 0;
  private probes = false; // the connection is in doubt

  /** @param now when the login was answered. */
  constructor(
    intervalMs: number,
    private readonly askEvery: number,
    now: number,
    chance: Chance,
  ) {
    this.intervalMs = this.grantedMs = Math.max(MIN_KEEPALIVE_INTERVAL_MS, intervalMs);
    this.nextAt = now + this.intervalMs * chance();
  }

  /** From now on keepalives are sent at this interval, which the server has granted. */
  setInterval(intervalMs: number, now: number): void {
    this.intervalMs = this.grantedMs = Math.max(MIN_KEEPALIVE_INTERVAL_MS, intervalMs);
    this.nextAt = Math.min(this.nextAt, now + this.intervalMs);
  }

  /** The same, unless the present interval is shorter, until the server decides. */
  shortenInterval(intervalMs: number, now: number): void {
    this.intervalMs = Math.max(MIN_KEEPALIVE_INTERVAL_MS, Math.min(this.intervalMs, intervalMs));
    this.nextAt = Math.min(this.nextAt, now + this.intervalMs);
  }

  /** The server has refused another interval. */
  restoreInterval(now: number): void {
    this.setInterval(this.grantedMs, now);
  }

  /**
   * Counts a keepalive that is sent now; returns whether it should carry an id.
   *
   * The next is due an interval from now: missed keepalives are not made up for.
   */
  countSent(now: number, chance: Chance): boolean {
    const asks = (this.probes || this.sent % this.askEvery === 0) && this.unansweredId === null;
    this.sent += 1;
    this.nextAt = now + this.intervalMs * (1 - KEEPALIVE_JITTER * chance());
    return asks;
  }

  /**
   * A keepalive is due now, whose answer must arrive within `PROBE_TIMEOUT_MS`; if one is unanswered already, nothing
   * is due but its answer, in that time.
   */
  beginProbe(now: number): void {
    this.probes = true;
    if (this.unansweredId === null) {
      this.nextAt = now;
    } else {
      this.deadAt = Math.min(this.deadAt, now + this.answerMs);
    }
  }

  /** The keepalive just counted carries this id. */
  expectAnswer(id: number, now: number): void {
    this.unansweredId = id;
    this.questionSentAt = now;
    this.deadAt = now + this.answerMs;
  }

  /** Bytes were received: the server is alive, although the answer may follow other packets. */
  noteReceived(now: number): void {
    if (this.unansweredId !== null) {
      this.deadAt = now + this.intervalMs;
    }
  }

  /** The answer to a keepalive was received. */
  noteAnswered(now: number): void {
    this.roundTripMs = now - this.questionSentAt;
    this.unansweredId = null;
    this.deadAt = Infinity;
    this.probes = false;
  }

  private get answerMs(): number {
    return this.probes ? Math.min(PROBE_TIMEOUT_MS, this.intervalMs) : this.intervalMs;
  }
}
