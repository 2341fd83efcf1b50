/** Connects a `ClientMachine` to the network: one socket and one timer. */

import { connect as connectTcp, isIP, type Socket } from "node:net";
import { connect as connectTls, type ConnectionOptions } from "node:tls";

import type { ClientMachine } from "./machine.js";
import type { Effects } from "./session.js";
import type { TokenSource } from "./tokens.js";

export const MAX_TIMER_MS = 2 ** 31 - 1; // the maximum of setTimeout
const BUSY_MS = 20; // a timer that is so late shows that the program was busy

/** The address of a server. */
export interface Endpoint {
  /** Host name or IP address. */
  readonly host: string;
  readonly port: number;
  /** Use TLS: true, or options for `tls.connect`. */
  readonly tls?: boolean | ConnectionOptions;
}

/** Keeps a machine connected as its state demands, and passes on its effects. */
export class Link {
  private socket: Socket | null = null;
  private timer: NodeJS.Timeout | NodeJS.Immediate | null = null;
  private pendingFetch: object | null = null; // identifies the current call

  /** @param onEffects receives effects in order; may be called again before it has returned. */
  constructor(
    private readonly machine: ClientMachine,
    private readonly endpoint: Endpoint,
    private readonly tokenSource: TokenSource | null,
    private readonly onEffects: (effects: Effects) => void,
  ) {}

  /** Starts the first attempt. */
  start(): void {
    this.machine.beginAttempt(performance.now());
    this.update();
  }

  /** Synchronizes with the machine after every input: socket, outgoing bytes, token, timer, effects. */
  update(effects: Effects = []): void {
    if (this.socket && !this.machine.connected && this.machine.state !== "connecting") {
      this.socket.destroy();
      this.socket = null;
    }
    if (!this.socket && this.machine.state === "connecting") {
      this.socket = this.openSocket();
    }
    if (this.socket && this.machine.connected) {
      const outgoing = this.machine.takeOutgoing();
      if (outgoing.length > 0) {
        this.socket.write(outgoing);
      }
    }
    if (!this.machine.wantsToken) {
      this.pendingFetch = null; // a call that is still running took too long
    } else if (this.tokenSource && !this.pendingFetch) {
      this.pendingFetch = {};
      void this.fetchToken(this.tokenSource, this.pendingFetch);
    }
    this.scheduleTick();
    this.onEffects(effects);
  }

  private async fetchToken(source: TokenSource, fetch: object): Promise<void> {
    await Promise.resolve(); // run the program's function after this update
    let token: unknown;
    try {
      token = await source();
    } catch (error) {
      token = error instanceof Error ? error : new Error(String(error));
    }
    if (this.pendingFetch === fetch) {
      this.pendingFetch = null;
      this.update(this.machine.tokenFetched(token, performance.now()));
    }
  }

  private openSocket(): Socket {
    const { host, port, tls } = this.endpoint;
    const address = { host, port, autoSelectFamily: true }; // of several addresses the first that answers
    const name = isIP(host) ? {} : { servername: host };
    const socket = tls ? connectTls({ ...address, ...name, ...(tls === true ? {} : tls) }) : connectTcp(address);
    let closeReason = "the server closed it";
    const ifCurrent = (input: () => Effects): void => {
      if (this.socket === socket) {
        this.update(input());
      }
    };
    socket.setNoDelay(true);
    socket.once(tls ? "secureConnect" : "connect", () => {
      ifCurrent(() => {
        this.machine.established(performance.now());
        return [];
      });
    });
    socket.on("data", (bytes: Buffer) => {
      ifCurrent(() => this.machine.received(bytes, performance.now()));
    });
    socket.on("error", (error) => {
      closeReason = error.message;
    });
    socket.once("close", () => {
      ifCurrent(() => {
        this.socket = null;
        return this.machine.disconnected(closeReason, performance.now());
      });
    });
    return socket;
  }

  private scheduleTick(): void {
    clearTimeout(this.timer as NodeJS.Timeout);
    clearImmediate(this.timer as NodeJS.Immediate);
    this.timer = null;
    if (this.machine.state === "ended") {
      return;
    }
    const delayMs = Math.max(0, Math.ceil(this.machine.deadline - performance.now()));
    // Read the socket first: an answer that arrived in time counts even if the program was busy. The system may
    // need a moment to hand over what it has received meanwhile.
    const readFirst = (): void => {
      this.timer = setImmediate(() => {
        this.update(this.machine.tick(performance.now()));
      });
    };
    this.timer = setTimeout(
      () => {
        if (performance.now() - this.machine.deadline > BUSY_MS) {
          this.timer = setTimeout(readFirst, BUSY_MS);
        } else {
          readFirst();
        }
      },
      Math.min(delayMs, MAX_TIMER_MS),
    );
  }
}
