/** Requests of the client itself: what is restored on a new connection. */

import { mayReconnect } from "./constants.js";
import { RequestFailed, RequestTimeout } from "./errors.js";
import { MAX_TIMER_MS } from "./link.js";
import { Backoff, type Chance } from "./reconnect.js";

/** A request that is repeated until the server grants it, or refuses it for good. */
export interface OwnRequest {
  /** Sends it; rejects if the server does not grant it. Null if it is not needed any more. */
  send(): Promise<unknown> | null;
  /** The server has refused it for good; returns what to request instead. */
  refused(error: RequestFailed): readonly OwnRequest[];
}

/** A server that is busy, fails or does not answer is asked again with growing pauses. */
export class Restoration {
  private backoff = new Backoff();
  private readonly timers = new Set<NodeJS.Timeout>();

  constructor(private readonly chance: Chance) {}

  /** A new connection is logged in. */
  start(requests: readonly OwnRequest[]): void {
    this.stop();
    this.backoff = new Backoff();
    this.add(requests);
  }

  add(requests: readonly OwnRequest[]): void {
    for (const request of requests) {
      request.send()?.catch((error: unknown) => this.failed(request, error));
    }
  }

  /** The connection is lost, or the client has ended. */
  stop(): void {
    this.timers.forEach(clearTimeout);
    this.timers.clear();
  }

  private failed(request: OwnRequest, error: unknown): void {
    if (error instanceof RequestFailed && !mayReconnect(error.code)) {
      this.add(request.refused(error));
    } else if (error instanceof RequestFailed || error instanceof RequestTimeout) {
      const retryAfterMs = error instanceof RequestFailed ? error.refusal.retryAfterMs : null;
      const timer = setTimeout(
        () => {
          this.timers.delete(timer);
          this.add([request]);
        },
        Math.min(this.backoff.nextMs(this.chance, 0, retryAfterMs), MAX_TIMER_MS),
      );
      this.timers.add(timer);
    } // else the connection is lost, and the next one starts again
  }
}
