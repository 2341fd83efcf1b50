/** Between a machine and the network: a socket and a timer. */

import { connect as connectTcp, type Socket } from "node:net";
import { connect as connectTls, type ConnectionOptions } from "node:tls";

import type { ClientMachine } from "./machine.js";
import type { Effects } from "./session.js";
import type { TokenSource } from "./tokens.js";

const MAX_TIMER_MS = 2 ** 31 - 1; // what setTimeout takes

/** Where to connect to. */
export interface Endpoint {
  /** Name or address. */
  readonly host: string;
  readonly port: number;
  /** For a server behind TLS: true, or what `tls.connect` takes. */
  readonly tls?: boolean | ConnectionOptions;
}

/** Keeps a machine connected as it wants to be, and hands on what it causes. */
export class Link {
  private socket: Socket | null = null;
  private timer: NodeJS.Timeout | NodeJS.Immediate | null = null;

  private pendingFetch: object | null = null; // stands for the call that is under way

  /** @param onEffects takes what the machine caused, in order; may be called again before it has returned. */
  constructor(
    private readonly machine: ClientMachine,
    private readonly endpoint: Endpoint,
    private readonly tokenSource: TokenSource | null,
    private readonly onEffects: (effects: Effects) => void,
  ) {}

  /** The first attempt begins. */
  start(): void {
    this.machine.beginAttempt(performance.now());
    this.update();
  }

  /** After anything that moved the machine: hold a connection or none, send, set the timer, tell. */
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
      this.pendingFetch = null; // one that is still under way has taken too long
    } else if (this.tokenSource && !this.pendingFetch) {
      this.pendingFetch = {};
      void this.fetchToken(this.tokenSource, this.pendingFetch);
    }
    this.scheduleTick();
    this.onEffects(effects);
  }

  /** Get a token from the program. */
  private async fetchToken(source: TokenSource, fetch: object): Promise<void> {
    await Promise.resolve(); // the program's own code runs when everything here is done
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
    const socket = tls
      ? connectTls({ host, port, ...(tls === true ? {} : tls) })
      : connectTcp({ host, port });
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
    this.timer = setTimeout(
      () => {
        // First what lies in the socket is read: an answer in time is one, however busy the program was.
        this.timer = setImmediate(() => {
          this.update(this.machine.tick(performance.now()));
        });
      },
      Math.min(delayMs, MAX_TIMER_MS),
    );
  }
}
