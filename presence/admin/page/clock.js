// The server's clock as this page knows it.

const MAX_SAMPLES = 60;

/**
 * Each sample has the server's time at which it was taken. The sample with the shortest delay shows the
 * difference of the two clocks best; only those of the last minute count, because the difference may change.
 */
export class ServerClock {
  #differences = [];
  #difference = Date.now() - performance.now();

  observe(serverMs, receivedAt = performance.now()) {
    this.#differences.push(serverMs - receivedAt);
    if (this.#differences.length > MAX_SAMPLES) this.#differences.shift();
    this.#difference = Math.max(...this.#differences);
  }

  /** Forget the times of another server. */
  reset() {
    this.#differences = [];
  }

  /** Unix milliseconds of the server. */
  now(at = performance.now()) {
    return at + this.#difference;
  }
}
