/** Restores watches on a new connection. */

import { mayReconnect } from "./constants.js";
import { RequestFailed, RequestTimeout } from "./errors.js";
import type { WatchEnded } from "./pushes.js";
import { Backoff, type Chance } from "./reconnect.js";
import { batches, type WatchedUsers } from "./watches.js";

/**
 * Repeats each watch request until it is granted or refused for good. A server that is busy, fails or does
 * not answer is asked again with growing pauses.
 */
export class Resubscription {
  private backoff = new Backoff();
  private readonly timers = new Set<NodeJS.Timeout>();

  /**
   * @param watch sends a request; rejects if the server does not grant it.
   * @param onWatchEnded receives users whom the server does not let the client watch again.
   */
  constructor(
    private readonly watches: WatchedUsers,
    private readonly watch: (uids: readonly string[]) => Promise<void>,
    private readonly onWatchEnded: (event: WatchEnded) => void,
    private readonly chance: Chance,
  ) {}

  /** A new connection is logged in. */
  start(): void {
    this.stop();
    this.backoff = new Backoff();
    this.add(this.watches.states().keys());
  }

  /** Ask for these users, again. */
  add(uids: Iterable<string>): void {
    for (const batch of batches(uids)) {
      this.request(batch);
    }
  }

  /** The connection is lost, or the client has ended. */
  stop(): void {
    this.timers.forEach(clearTimeout);
    this.timers.clear();
  }

  private request(batch: readonly string[]): void {
    const uids = batch.filter((uid) => this.watches.has(uid));
    if (uids.length > 0) {
      this.watch(uids).catch((error: unknown) => this.requestFailed(uids, error));
    }
  }

  private requestFailed(uids: readonly string[], error: unknown): void {
    if (error instanceof RequestFailed && !mayReconnect(error.code)) {
      this.watches.remove(uids);
      this.onWatchEnded({ uids, error });
    } else if (error instanceof RequestFailed || error instanceof RequestTimeout) {
      const retryAfterMs = error instanceof RequestFailed ? error.refusal.retryAfterMs : null;
      const timer = setTimeout(
        () => {
          this.timers.delete(timer);
          this.request(uids);
        },
        this.backoff.nextMs(this.chance, 0, retryAfterMs),
      );
      this.timers.add(timer);
    } // else the connection is lost, and the next one starts again
  }
}
