// The server's clock as this page knows it.

const KEPT = 60;

/**
 * Each sample says when it was taken. The one that was on its way for the shortest time tells most about
 * the difference of the two clocks; those of the last minute are compared, so that it may also change.
 */
export class ServerClock {
  #differences = [];
  #difference = Date.now() - performance.now();

  observe(serverMs, arrived = performance.now()) {
    this.#differences.push(serverMs - arrived);
    if (this.#differences.length > KEPT) this.#differences.shift();
    this.#difference = Math.max(...this.#differences);
  }

  /** Forget what another server said. */
  reset() {
    this.#differences = [];
  }

  /** Unix milliseconds of the server. */
  now(at = performance.now()) {
    return at + this.#difference;
  }
}
