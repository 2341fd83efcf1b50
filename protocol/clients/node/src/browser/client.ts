/** The client in browsers: connections over WebSocket, and the life of a page. */

import { BaseClient } from "../client.js";
import type { Environment } from "../environment.js";
import type { BaseOptions } from "../options.js";
import { browserEnvironment, type Page } from "./environment.js";

/**
 * The requested idle time-out unless the page requests another. Keepalives are due after 0.4 of it, and a browser
 * may delay the timers of a hidden page by a minute: together 108 s.
 */
const IDLE_TIMEOUT_MS = 120_000;

export type Options = BaseOptions;

/**
 * A client that connects to `url`. When the page is shown or resumed, and when the browser goes online or offline, it
 * checks its connection, and returns soon if it has none.
 */
export class PresenceClient extends BaseClient {
  /**
   * @throws EncodeError the login breaks a rule of the protocol.
   * @throws TypeError, RangeError another option is wrong.
   */
  constructor(options: Options);
  /** @internal For tests in virtual time. */
  constructor(options: Options, environment: Environment);
  constructor({ idleTimeoutMs = IDLE_TIMEOUT_MS, ...options }: Options, environment = thisPage()) {
    super({ ...options, idleTimeoutMs }, environment);
  }
}

function thisPage(): Environment {
  const { document } = globalThis as unknown as Partial<Page>;
  return browserEnvironment({ window: globalThis as unknown as Page["window"], document });
}
