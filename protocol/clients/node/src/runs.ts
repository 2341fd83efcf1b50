/** What waits for a client to come online. */

import { onAbort, throwIfAborted } from "./aborts.js";
import type { PresenceError } from "./errors.js";
import type { Connected } from "./pushes.js";

/** From a `connect` to the `end`. */
export class Run {
  /** The promise that `connect` returns: settled once. */
  readonly online: Promise<Connected>;
  resolve!: (push: Connected) => void;
  private reject!: (error: PresenceError) => void;

  constructor() {
    this.online = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  /** The run has ended with that error. */
  fail(error: PresenceError): void {
    this.reject(error);
  }

  /** The program has ended the run: if nothing awaits `online`, no error is lost, so it counts as handled. */
  cancel(error: PresenceError): void {
    this.online.catch(() => undefined);
    this.reject(error);
  }
}

interface Waiter {
  readonly run: Run;
  resolve(): void;
  reject(error: unknown): void;
}

/** Calls that wait for the next login of a run, or its end. */
export class Waiters {
  private readonly waiters = new Set<Waiter>();

  wait(run: Run, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      throwIfAborted(signal);
      const leave = (): void => {
        this.waiters.delete(waiter);
        forget();
      };
      const waiter: Waiter = {
        run,
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
      const forget = onAbort(signal, () => waiter.reject(signal?.reason));
    });
  }

  resolve(run: Run): void {
    this.of(run).forEach((waiter) => waiter.resolve());
  }

  reject(run: Run, error: PresenceError): void {
    this.of(run).forEach((waiter) => waiter.reject(error));
  }

  private of(run: Run): Waiter[] {
    return [...this.waiters].filter((waiter) => waiter.run === run);
  }
}
