/** The client in Node, which knows TCP and TLS. */

import { BaseClient } from "../client.js";
import type { Environment } from "../environment.js";
import type { BaseOptions } from "../options.js";
import { NODE } from "./environment.js";
import { type Endpoint, TcpConnector } from "./tcp.js";

export interface Options extends BaseOptions, Partial<Endpoint> {}

/** A client that connects to `host` and `port`, or to `url`. */
export class PresenceClient extends BaseClient {
  /**
   * @throws EncodeError the login breaks a rule of the protocol.
   * @throws TypeError, RangeError another option is wrong.
   */
  constructor(options: Options);
  /** @internal For tests in virtual time. */
  constructor(options: Options, environment: Environment);
  constructor(options: Options, environment = NODE) {
    super(withConnector(options), environment);
  }
}

/** @throws TypeError, RangeError `host`, `port` or `tls` is wrong. */
function withConnector({ host, port, tls, ...rest }: Options): BaseOptions {
  if ([host, port, tls].every((option) => option === undefined)) {
    return rest;
  }
  if (rest.connector !== undefined || rest.url !== undefined) {
    throw new TypeError("either a connector, or a url, or host, port and tls");
  }
  return { ...rest, connector: new TcpConnector({ host, port, tls } as Endpoint) };
}
