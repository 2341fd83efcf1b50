/** Connections over TCP, with or without TLS. */

import { connect as connectTcp, isIP } from "node:net";
import { connect as connectTls, type ConnectionOptions, createSecureContext, type TLSSocket } from "node:tls";

import type { Connection, ConnectionEvents, Connector } from "../connector.js";

/** The address of a server. */
export interface Endpoint {
  /** Host name or IP address. */
  readonly host: string;
  readonly port: number;
  /** Use TLS: true, or options for `tls.connect`. */
  readonly tls?: boolean | ConnectionOptions | undefined;
}

// Of the 10 s in which a connection must be made. Node gives each address of a name but the last this long, and
// by default only 250 ms: too short for a slow path, whose other address may not work at all.
const ADDRESS_TIMEOUT_MS = 2500;
// Each resumed TLS session gives a new ticket, so that a client that returns often would never see whether the server
// still has a valid certificate. RFC 8446, section 4.6.1, recommends a limit.
const MAX_UNVERIFIED_MS = 86_400_000;

/**
 * What a client uses if it is given `host` and `port`. Of several addresses it takes the first that answers. Over TLS
 * it resumes the session of the connection before, if the server still has the keys of its ticket.
 */
export class TcpConnector implements Connector {
  private readonly address: { readonly host: string; readonly port: number };
  private readonly tls: ConnectionOptions | null;
  private session: Buffer | undefined; // of a connection whose certificate was verified, or that resumed one
  private verifiedAt = 0; // when the server last showed its certificate, by the clock of `performance`

  /** @throws TypeError, RangeError an argument is wrong. */
  constructor({ host, port, tls = false }: Endpoint) {
    if (typeof host !== "string" || !host) {
      throw new TypeError("host must be a string that is not empty");
    }
    if (typeof port !== "number") {
      throw new TypeError("port must be a number");
    }
    if (!Number.isInteger(port) || port < 1 || port > 65_535) {
      throw new RangeError(`port must be a whole number from 1 to 65535, not ${port}`);
    }
    this.address = { host, port };
    this.tls = tls === false ? null : checkedTls(tls);
  }

  connect(events: ConnectionEvents): Connection {
    const address = {
      ...this.address,
      autoSelectFamily: true,
      autoSelectFamilyAttemptTimeout: ADDRESS_TIMEOUT_MS,
    };
    const name = isIP(address.host) ? {} : { servername: address.host };
    const socket = this.tls ? this.secure({ ...address, ...name, ...this.tls }) : connectTcp(address);
    let reason = "the server closed it";
    socket.setNoDelay(true);
    socket.once(this.tls ? "secureConnect" : "connect", () => events.opened());
    socket.on("data", (bytes: Buffer) => events.received(bytes));
    socket.on("error", (error) => {
      reason = messageOf(error);
    });
    socket.once("close", () => events.closed(reason));
    return {
      write: (bytes) => void socket.write(bytes),
      destroy: () => void socket.destroy(),
    };
  }

  private secure(options: ConnectionOptions): TLSSocket {
    if (performance.now() - this.verifiedAt > MAX_UNVERIFIED_MS) {
      this.session = undefined;
    }
    const socket = connectTls({ session: this.session, ...options });
    socket.once("secureConnect", () => {
      if (!socket.isSessionReused()) {
        this.verifiedAt = performance.now();
      }
    });
    socket.on("session", (session: Buffer) => {
      this.session = session;
    });
    socket.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code?.startsWith("ERR_SSL")) {
        this.session = undefined; // should it be the reason, the next attempt succeeds without it
      }
    });
    return socket;
  }
}

/** Returns the options with their certificates and keys read, which shows whether these can be. */
function checkedTls(tls: unknown): ConnectionOptions {
  if (tls === true) {
    return {};
  }
  if (typeof tls !== "object" || tls === null || Array.isArray(tls)) {
    throw new TypeError("tls must be a boolean, or options for tls.connect");
  }
  const options: ConnectionOptions = tls;
  try {
    return { ...options, secureContext: options.secureContext ?? createSecureContext(options) };
  } catch (error) {
    throw new TypeError(`tls: ${messageOf(error)}`, { cause: error });
  }
}

/** Returns why it failed; if several addresses did, each one's reason. */
function messageOf(error: unknown): string {
  if (error instanceof AggregateError) {
    return [...new Set(error.errors.map(messageOf))].join("; ");
  }
  return error instanceof Error ? error.message : String(error);
}
