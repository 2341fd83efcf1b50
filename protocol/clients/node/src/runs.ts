/** What waits for a client to come online. */

import type { PresenceError } from "./errors.js";
import type { Connected } from "./pushes.js";

/** From a `connect` to the `end`. */
export class Run {
  /** The promise that `connect` returns: settled once. */
  readonly online: Promise<Connected>;
  resolve!: (push: Connected) => void;
  reject!: (error: PresenceError) => void;

  constructor() {
    this.online = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

interface Waiter {
  resolve(): void;
  reject(error: unknown): void;
}

/** Calls that wait for the next login, or the end. */
export class Waiters {
  private readonly waiters = new Set<Waiter>();

  wait(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const onAbort = (): void => waiter.reject(signal?.reason);
      const leave = (): void => {
        this.waiters.delete(waiter);
        signal?.removeEventListener("abort", onAbort);
      };
      const waiter: Waiter = {
        resolve: () => {
          leave();
          resolve();
        },
        reject: (error) => {
          leave();
          reject(error);
        },
      };
      this.waiters.add(waiter);
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  resolve(): void {
    [...this.waiters].forEach((waiter) => waiter.resolve());
  }

  reject(error: PresenceError): void {
    [...this.waiters].forEach((waiter) => waiter.reject(error));
  }
}
