/** Driving a machine by hand: a clock that is moved, chances that are chosen, a server that is a script. */

import assert from "node:assert/strict";

import {
  Decoder,
  encode,
  type Identity,
  Kind,
  type Packet,
  type PresenceError,
  type ValueMap,
} from "../src/index.js";
import { Machine } from "../src/machine.js";
import type { Push } from "../src/pushes.js";
import type { Caused } from "../src/session.js";

export const KEEPALIVE_MS = 12_000;
export const SERVER_TIME_S = 1_700_000_000;
const TIME_MS = SERVER_TIME_S * 1000;
export const LOGIN_OK = { session: "s-1", idle_timeout: 30, keepalive: 12, time_ms: TIME_MS, v: 1 };

/** A JSON Web Token that nobody has signed. */
export function token(claims: unknown): string {
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  return `${part({ alg: "none" })}.${part(claims)}.c2ln`;
}

export function packet(kind: number, id: number | null, payload: ValueMap = {}): Packet {
  return { kind, id, payload };
}

export class Driven {
  now = 1_000_000;
  chance = 1;
  readonly machine: Machine;
  /** Packets that the machine has sent so far, and when. */
  readonly sent: Packet[] = [];
  readonly sentAt: number[] = [];
  /** What it has handed out so far. */
  readonly pushes: Push[] = [];
  readonly answers = new Map<number, ValueMap | PresenceError>();
  private decoder = new Decoder();

  constructor(options: { persistent?: boolean; fetches?: boolean; askEvery?: number; login?: Identity } = {}) {
    const { login = { uid: "ann", device: "phone" }, ...rest } = options;
    this.machine = new Machine(login, { askEvery: 3, ...rest, chance: () => this.chance });
    this.machine.begin(this.now);
  }

  note(caused: Caused): void {
    for (const each of caused) {
      if (each.type === "answer") {
        assert.ok(!this.answers.has(each.id), "one answer each");
        this.answers.set(each.id, each.result);
      } else {
        this.pushes.push(each);
      }
    }
    this.decoder.feed(this.machine.takeOutgoing());
    for (let sent = this.decoder.next(); sent; sent = this.decoder.next()) {
      this.sent.push(sent);
      this.sentAt.push(this.now);
    }
  }

  establish(): void {
    this.decoder = new Decoder();
    this.machine.established(this.now);
    this.note([]);
  }

  logIn(): void {
    this.establish();
    this.receive(packet(Kind.OK, 1, LOGIN_OK));
    assert.equal(this.machine.state, "online");
  }

  receive(...packets: Packet[]): void {
    const frames = packets.map(({ kind, id, payload }) => encode(kind, id, payload));
    this.note(this.machine.received(Buffer.concat(frames), this.now));
  }

  lose(): void {
    this.note(this.machine.disconnected("broken", this.now));
  }

  /** Let time pass, deadline by deadline; `answering`: as a server that answers each beat that asks. */
  run(ms: number, answering = false): void {
    const end = this.now + ms;
    while (this.machine.deadline <= end) {
      this.now = Math.max(this.now, this.machine.deadline);
      const before = this.sent.length;
      this.note(this.machine.tick(this.now));
      for (const { id } of this.sent.slice(before)) {
        if (answering && id !== null) {
          this.receive(packet(Kind.OK, Number(id)));
        }
      }
    }
    this.now = end;
  }

  ask(kind: number, payload: ValueMap, timeoutMs = 10_000): number {
    const id = this.machine.request(kind, payload, timeoutMs, this.now);
    this.note([]);
    return id;
  }

  /** Send a message that waits for a recipient who may return. */
  send(to: string, body: number, timeoutMs = 10_000): number {
    const id = this.machine.request(Kind.MESSAGE, { to, body }, timeoutMs, this.now, true);
    this.note([]);
    return id;
  }

  get beats(): Packet[] {
    return this.sent.filter(({ kind }) => kind === Kind.KEEPALIVE);
  }
}
