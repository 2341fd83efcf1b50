/** Watching anew, on a new connection, whom the client watched on the one before. */

import { mayReturn } from "./constants.js";
import { RequestFailed, RequestTimeout } from "./errors.js";
import { Backoff, type Chance } from "./reconnect.js";
import type { WatchEnded } from "./pushes.js";
import { lists, type Watches } from "./watches.js";

/**
 * Asks for each list of users until it is granted, or refused for good. A server that is busy, fails or does
 * not answer is asked again, less and less often.
 */
export class Rewatching {
  private backoff = new Backoff();
  private readonly timers = new Set<NodeJS.Timeout>();

  /**
   * @param watch sends a request; rejects if it is not granted.
   * @param ended takes those who may not be watched again.
   */
  constructor(
    private readonly watches: Watches,
    private readonly watch: (uids: readonly string[]) => Promise<void>,
    private readonly ended: (event: WatchEnded) => void,
    private readonly chance: Chance,
  ) {}

  /** A new connection has logged in. */
  begin(): void {
    this.stop();
    this.backoff = new Backoff();
    for (const uids of lists(this.watches.known().keys())) {
      this.ask(uids);
    }
  }

  /** The connection is gone, or the client over. */
  stop(): void {
    this.timers.forEach(clearTimeout);
    this.timers.clear();
  }

  private ask(list: readonly string[]): void {
    const uids = list.filter((uid) => this.watches.has(uid));
    if (uids.length > 0) {
      this.watch(uids).catch((error: unknown) => {
        this.refused(uids, error);
      });
    }
  }

  private refused(uids: readonly string[], error: unknown): void {
    if (error instanceof RequestFailed && !mayReturn(error.code)) {
      this.watches.remove(uids);
      this.ended({ uids, error });
    } else if (error instanceof RequestFailed || error instanceof RequestTimeout) {
      const retryAfterMs = error instanceof RequestFailed ? error.refusal.retryAfterMs : null;
      const timer = setTimeout(
        () => {
          this.timers.delete(timer);
          this.ask(uids);
        },
        this.backoff.nextMs(this.chance, 0, retryAfterMs),
      );
      this.timers.add(timer);
    } // else the connection is lost: the next one begins anew
  }
}
