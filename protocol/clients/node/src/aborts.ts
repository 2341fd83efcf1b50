/** Abort signals, which many calls may share. */

/** The callbacks of one signal, behind one listener: Node warns of a leak from the eleventh listener on. */
class Aborts {
  private readonly callbacks = new Set<() => void>();

  constructor(private readonly signal: AbortSignal) {}

  add(callback: () => void): void {
    if (this.callbacks.size === 0) {
      this.signal.addEventListener("abort", this.aborted);
    }
    this.callbacks.add(callback);
  }

  delete(callback: () => void): void {
    if (this.callbacks.delete(callback) && this.callbacks.size === 0) {
      this.signal.removeEventListener("abort", this.aborted);
    }
  }

  private readonly aborted = (): void => {
    for (const callback of this.callbacks) {
      this.delete(callback);
      callback();
    }
  };
}

const aborts = new WeakMap<AbortSignal, Aborts>();

/** Calls back once when the signal is aborted, not if it is already; returns a function that prevents it. */
export function onAbort(signal: AbortSignal | undefined, callback: () => void): () => void {
  if (!signal) {
    return () => undefined;
  }
  const own = aborts.get(signal) ?? new Aborts(signal);
  aborts.set(signal, own);
  own.add(callback);
  return () => own.delete(callback);
}

/** @throws TypeError it is no signal. */
export function checkSignal(signal: unknown): void {
  if (signal !== undefined && typeof (signal as AbortSignal | null)?.throwIfAborted !== "function") {
    throw new TypeError("signal must be an AbortSignal");
  }
}

/** @throws TypeError it is no signal; or what it was aborted with. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  checkSignal(signal);
  signal?.throwIfAborted();
}
