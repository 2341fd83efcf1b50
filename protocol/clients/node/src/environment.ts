/** What a client takes from its surroundings, apart from the network. Tests in virtual time bring their own. */

/** Returns a random number, uniform in [0, 1). */
export type Chance = () => number;

export interface Environment {
  /** Monotonic milliseconds. */
  now(): number;
  /** Calls back once, after at least `ms`; returns a function that prevents it. */
  after(ms: number, callback: () => void): () => void;
  /** Calls back once, after all input that has arrived by now; returns a function that prevents it. */
  afterInput(callback: () => void): () => void;
  /** Throws what a listener of the program has thrown, later and outside of the client. */
  throwLater(error: unknown): void;
  /**
   * Calls back whenever the connection may be dead without a sign of it, or the network back: the device has slept, or
   * changed its network. Returns a function that stops it.
   */
  onWake(callback: () => void): () => void;
  /** Source of jitter. */
  readonly chance: Chance;
}

const MAX_TIMER_MS = 2 ** 31 - 1; // the maximum of setTimeout, which takes a longer time for 1 ms

/** What Node and browsers have in common. */
export const TIMERS: Pick<Environment, "now" | "after" | "chance"> = {
  now: () => performance.now(),
  after: (ms, callback) => {
    const timer = setTimeout(callback, Math.min(ms, MAX_TIMER_MS));
    return () => clearTimeout(timer);
  },
  chance: Math.random,
};
