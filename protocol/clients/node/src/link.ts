/** Between a machine and the network: a socket and a timer. */

import { connect as connectTcp, type Socket } from "node:net";
import { connect as connectTls, type ConnectionOptions } from "node:tls";

import type { Machine } from "./machine.js";
import type { Caused } from "./session.js";
import type { TokenSource } from "./tokens.js";

const TIMER_MAX_MS = 2 ** 31 - 1; // what setTimeout takes

/** Where to connect to. */
export interface Server {
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

  private fetching: object | null = null; // stands for the call that is under way

  /** @param tell takes what the machine caused, in order; may be called again before it has returned. */
  constructor(
    private readonly machine: Machine,
    private readonly server: Server,
    private readonly source: TokenSource | null,
    private readonly tell: (caused: Caused) => void,
  ) {}

  /** The first attempt begins. */
  begin(): void {
    this.machine.begin(performance.now());
    this.settle();
  }

  /** After anything that moved the machine: hold a connection or none, send, set the timer, tell. */
  settle(caused: Caused = []): void {
    if (this.socket && !this.machine.connected && this.machine.state !== "connecting") {
      this.socket.destroy();
      this.socket = null;
    }
    if (!this.socket && this.machine.state === "connecting") {
      this.socket = this.open();
    }
    if (this.socket && this.machine.connected) {
      const outgoing = this.machine.takeOutgoing();
      if (outgoing.length > 0) {
        this.socket.write(outgoing);
      }
    }
    if (!this.machine.wantsToken) {
      this.fetching = null; // one that is still under way has taken too long
    } else if (this.source && !this.fetching) {
      this.fetching = {};
      void this.fetch(this.source, this.fetching);
    }
    this.setTimer();
    this.tell(caused);
  }

  /** Get a token from the program. */
  private async fetch(source: TokenSource, call: object): Promise<void> {
    await Promise.resolve(); // the program's own code runs when everything here is done
    let token: unknown;
    try {
      token = await source();
    } catch (error) {
      token = error instanceof Error ? error : new Error(String(error));
    }
    if (this.fetching === call) {
      this.fetching = null;
      this.settle(this.machine.fetched(token, performance.now()));
    }
  }

  private open(): Socket {
    const { host, port, tls } = this.server;
    const socket = tls
      ? connectTls({ host, port, ...(tls === true ? {} : tls) })
      : connectTcp({ host, port });
    let why = "the server closed it";
    const ifCurrent = (move: () => Caused): void => {
      if (this.socket === socket) {
        this.settle(move());
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
      why = error.message;
    });
    socket.once("close", () => {
      ifCurrent(() => {
        this.socket = null;
        return this.machine.disconnected(why, performance.now());
      });
    });
    return socket;
  }

  private setTimer(): void {
    clearTimeout(this.timer as NodeJS.Timeout);
    clearImmediate(this.timer as NodeJS.Immediate);
    this.timer = null;
    if (this.machine.state === "ended") {
      return;
    }
    const inMs = Math.max(0, Math.ceil(this.machine.deadline - performance.now()));
    this.timer = setTimeout(
      () => {
        // First what lies in the socket is read: an answer in time is one, however busy the program was.
        this.timer = setImmediate(() => {
          this.settle(this.machine.tick(performance.now()));
        });
      },
      Math.min(inMs, TIMER_MAX_MS),
    );
  }
}
