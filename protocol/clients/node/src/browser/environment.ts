/** The clock and the event loop of browsers, and the life of a page. */

import { type Environment, TIMERS } from "../environment.js";

/** What this uses of a browser's window and document. */
interface Target {
  addEventListener(name: string, listener: () => void): void;
  removeEventListener(name: string, listener: () => void): void;
}

export interface Page {
  /** Undefined in a worker, and in a test if it likes. */
  readonly document?: (Target & { readonly visibilityState: string }) | undefined;
  readonly window: Target;
}

/** Events of the window after which the connection may be dead, or the network back. */
const WAKES = ["online", "offline", "pageshow"];

/**
 * The environment of a client in a page. Nothing but `after` depends on timers: a browser runs those of a hidden page
 * once a minute.
 */
export function browserEnvironment({ window, document }: Page): Environment {
  return {
    ...TIMERS,
    afterInput,
    throwLater: (error) => {
      afterInput(() => {
        throw error;
      });
    },
    onWake: (callback) => {
      const ifShown = (): void => {
        if (document?.visibilityState !== "hidden") {
          callback();
        }
      };
      WAKES.forEach((name) => window.addEventListener(name, callback));
      document?.addEventListener("resume", callback); // a hidden page is resumed now and then
      document?.addEventListener("visibilitychange", ifShown);
      return () => {
        WAKES.forEach((name) => window.removeEventListener(name, callback));
        document?.removeEventListener("resume", callback);
        document?.removeEventListener("visibilitychange", ifShown);
      };
    },
  };
}

interface Port {
  onmessage: () => void;
  postMessage(message: null): void;
  close(): void;
}

/** A message to itself comes behind those that the browser has received by now. */
function afterInput(callback: () => void): () => void {
  const { port1, port2 } = new MessageChannel() as unknown as { readonly port1: Port; readonly port2: Port };
  const prevent = (): void => port1.close();
  port1.onmessage = () => {
    prevent();
    callback();
  };
  port2.postMessage(null);
  return prevent;
}
