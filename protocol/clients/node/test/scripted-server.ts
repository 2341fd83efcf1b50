/** A server whose answers are written by the test. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";

import { Decoder, encode, Kind, type Packet, type ValueMap } from "../src/index.js";

const TIMEOUT_MS = 5000;

class AsyncQueue<T> {
  private readonly values: T[] = [];
  private readonly waiters: ((value: T) => void)[] = [];

  push(value: T): void {
    const waiter = this.waiters.shift();
    if (waiter) {
      waiter(value);
    } else {
      this.values.push(value);
    }
  }

  async next(what: string): Promise<T> {
    const [value] = this.values.splice(0, 1);
    if (value !== undefined) {
      return value;
    }
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        reject(new Error(`${what} was not received`));
      }, TIMEOUT_MS);
      this.waiters.push((received) => {
        clearTimeout(timer);
        resolve(received);
      });
    });
  }
}

/** The server side of one connection. Keepalives are answered, and not returned by `next`. */
export class Peer {
  ignoresKeepalives = false;
  readonly closed: Promise<unknown>;
  private readonly packets = new AsyncQueue<Packet>();

  constructor(readonly socket: Socket) {
    const decoder = new Decoder();
    this.closed = once(socket, "close");
    socket.on("error", () => undefined);
    socket.on("data", (bytes: Buffer) => {
      decoder.feed(bytes);
      for (let packet = decoder.next(); packet; packet = decoder.next()) {
        if (packet.kind !== Kind.KEEPALIVE) {
          this.packets.push(packet);
        } else if (packet.id !== null && !this.ignoresKeepalives) {
          this.send({ kind: Kind.OK, id: packet.id, payload: {} });
        }
      }
    });
  }

  /** Sends packets in one chunk. */
  send(...packets: Packet[]): void {
    this.socket.write(Buffer.concat(packets.map(({ kind, id, payload }) => encode(kind, id, payload))));
  }

  async next(kind: number): Promise<Packet> {
    const packet = await this.packets.next(`a packet of kind ${kind}`);
    assert.equal(packet.kind, kind);
    return packet;
  }

  /**
   * Grants the next request, which must be of this kind, and returns it; `more` is sent in the same chunk.
   */
  async grant(kind: number, payload: ValueMap = {}, ...more: Packet[]): Promise<Packet> {
    const request = await this.next(kind);
    this.send({ kind: Kind.OK, id: request.id, payload }, ...more);
    return request;
  }

  async refuse(kind: number, code: number, reason: string, more: ValueMap = {}): Promise<Packet> {
    const request = await this.next(kind);
    const payload = { code, reason, message: "", ...more };
    this.send({ kind: Kind.ERROR, id: request.id, payload });
    return request;
  }

  /** Grants the login. `keepalive`: the interval in seconds. */
  async logIn(keepalive = 12, ...more: Packet[]): Promise<Packet> {
    const payload = { session: "s", idle_timeout: keepalive / 0.4, keepalive, time_ms: 1, v: 1 };
    return this.grant(Kind.LOGIN, payload, ...more);
  }
}

export class ScriptedServer {
  private readonly peers = new AsyncQueue<Peer>();
  private readonly sockets = new Set<Socket>();

  private constructor(private readonly server: Server) {
    server.on("connection", (socket) => {
      this.sockets.add(socket);
      this.peers.push(new Peer(socket));
    });
  }

  static async start(): Promise<ScriptedServer> {
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return new ScriptedServer(server);
  }

  get port(): number {
    return (this.server.address() as AddressInfo).port;
  }

  accept(): Promise<Peer> {
    return this.peers.next("a connection");
  }

  stop(): void {
    this.server.close();
    this.sockets.forEach((socket) => socket.destroy());
  }
}
