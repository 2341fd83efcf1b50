/** A client in virtual time: its clock and timers, and a server without sockets, driven by the test. */

import assert from "node:assert/strict";

import {
  Code,
  type Connection,
  type ConnectionEvents,
  type Connector,
  Decoder,
  encode,
  Kind,
  type Packet,
  type ValueMap,
} from "../src/index.js";
import type { Environment } from "../src/environment.js";
import { LOGIN_OK } from "./driver.js";

interface Timer {
  readonly at: number;
  readonly callback: () => void;
}

export class VirtualTime implements Environment {
  time = 1_000_000;
  readonly timers = new Set<Timer>();
  /** What listeners have thrown. */
  readonly thrown: unknown[] = [];
  /** What is called when the device has slept. */
  readonly sleepers = new Set<() => void>();
  private readonly awaitingInput = new Set<() => void>();

  constructor(readonly chance: () => number = () => 0) {}

  now(): number {
    return this.time;
  }

  after(ms: number, callback: () => void): () => void {
    assert.ok(ms >= 0, `${ms} ms`);
    const timer = { at: this.time + ms, callback };
    this.timers.add(timer);
    return () => void this.timers.delete(timer);
  }

  afterInput(callback: () => void): () => void {
    this.awaitingInput.add(callback);
    return () => void this.awaitingInput.delete(callback);
  }

  onWake(callback: () => void): () => void {
    this.sleepers.add(callback);
    return () => void this.sleepers.delete(callback);
  }

  /** The device has slept. */
  wake(): void {
    this.sleepers.forEach((callback) => callback());
  }

  throwLater(error: unknown): void {
    this.thrown.push(error);
  }

  /** Lets everything happen that takes no time. */
  async settle(): Promise<void> {
    do {
      await new Promise(setImmediate); // all promises that are settled by now
      this.inputRead();
    } while (this.awaitingInput.size > 0);
    await new Promise(setImmediate);
  }

  /** What arrived by now has been read. */
  inputRead(): void {
    for (const callback of [...this.awaitingInput]) {
      if (this.awaitingInput.delete(callback)) {
        callback();
      }
    }
  }

  /** When the next timer is due; infinite if there is none. */
  get nextAt(): number {
    return Math.min(Infinity, ...[...this.timers].map(({ at }) => at));
  }

  /** Advances the clock, timer by timer. */
  async advance(ms: number): Promise<void> {
    const end = this.time + ms;
    await this.settle();
    while (this.nextAt <= end) {
      this.time = Math.max(this.time, this.nextAt);
      this.fireDue();
      await this.settle();
    }
    this.time = end;
  }

  /** Calls back what is due, without letting anything follow. */
  fireDue(): void {
    for (const timer of [...this.timers].sort((one, other) => one.at - other.at)) {
      if (timer.at <= this.time && this.timers.delete(timer)) {
        timer.callback();
      }
    }
  }
}

/** The server's side of a connection. */
export class VirtualPeer implements Connection {
  state: "opening" | "open" | "closed" = "opening";
  /** Packets received, without keepalives. */
  readonly received: Packet[] = [];
  keepalives = 0;
  answersKeepalives = true;
  private readonly decoder = new Decoder();

  constructor(
    private readonly events: ConnectionEvents,
    private readonly onPacket: (packet: Packet, peer: VirtualPeer) => void,
  ) {}

  write(bytes: Uint8Array): void {
    assert.equal(this.state, "open");
    this.decoder.feed(bytes);
    for (let packet = this.decoder.next(); packet; packet = this.decoder.next()) {
      if (packet.kind !== Kind.KEEPALIVE) {
        this.received.push(packet);
        this.onPacket(packet, this);
        continue;
      }
      this.keepalives += 1;
      if (packet.id !== null && this.answersKeepalives) {
        const { id } = packet;
        queueMicrotask(() => this.send({ kind: Kind.OK, id, payload: {} }));
      }
    }
  }

  destroy(): void {
    this.state = "closed";
  }

  open(): void {
    assert.equal(this.state, "opening");
    this.state = "open";
    this.events.opened();
  }

  /** Sends packets in one chunk. */
  send(...packets: Packet[]): void {
    if (this.state === "open") {
      this.events.received(Buffer.concat(packets.map(({ kind, id, payload }) => encode(kind, id, payload))));
    }
  }

  sendBytes(bytes: Uint8Array): void {
    if (this.state === "open") {
      this.events.received(bytes);
    }
  }

  close(reason = "broken"): void {
    if (this.state !== "closed") {
      this.state = "closed";
      this.events.closed(reason);
    }
  }

  /** The packets of a kind received so far. */
  of(kind: number): Packet[] {
    return this.received.filter((packet) => packet.kind === kind);
  }

  /** Takes the next packet, which must be of this kind. */
  take(kind: number): Packet {
    const packet = this.received.shift();
    assert.equal(packet?.kind, kind);
    return packet as Packet;
  }

  grant(kind: number, payload: ValueMap = {}): Packet {
    const packet = this.take(kind);
    this.send({ kind: Kind.OK, id: packet.id, payload });
    return packet;
  }

  refuse(kind: number, code: number, more: ValueMap = {}): Packet {
    const packet = this.take(kind);
    this.send({
      kind: Kind.ERROR,
      id: packet.id,
      payload: { code, reason: nameOf(code), message: "", ...more },
    });
    return packet;
  }

  /** Opens the connection and grants the login. */
  logIn(): Packet {
    this.open();
    return this.grant(Kind.LOGIN, LOGIN_OK);
  }
}

export class VirtualServer implements Connector {
  readonly peers: VirtualPeer[] = [];

  constructor(private readonly onPacket: (packet: Packet, peer: VirtualPeer) => void = () => undefined) {}

  connect(events: ConnectionEvents): Connection {
    const peer = new VirtualPeer(events, (packet, at) => this.onPacket(packet, at));
    this.peers.push(peer);
    return peer;
  }

  /** The newest connection. */
  get peer(): VirtualPeer {
    return this.peers.at(-1) as VirtualPeer;
  }
}

function nameOf(code: number): string {
  return (
    Object.entries(Code)
      .find(([, each]) => each === code)?.[0]
      .toLowerCase() ?? "new"
  );
}
