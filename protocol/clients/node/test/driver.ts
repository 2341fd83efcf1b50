/** Drives a `ClientMachine` with a manual clock, chosen random numbers and scripted packets. */

import assert from "node:assert/strict";

import { Code, Decoder, encode, Kind, type Packet, type PresenceError, type ValueMap } from "../src/index.js";
import type { Identity } from "../src/login.js";
import { ClientMachine, type MachineOptions } from "../src/machine.js";
import type { Push, RoomRow } from "../src/pushes.js";
import type { Effects } from "../src/session.js";

export const KEEPALIVE_MS = 12_000;
export const SERVER_TIME_S = 1_700_000_000;
const TIME_MS = SERVER_TIME_S * 1000;
export const LOGIN_OK = { session: "s-1", idle_timeout: 30, keepalive: 12, time_ms: TIME_MS, v: 1 };

/** An unsigned JSON Web Token. */
export function token(claims: unknown): string {
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");
  return `${part({ alg: "none" })}.${part(claims)}.c2ln`;
}

export function packet(kind: number, id: number | null, payload: ValueMap = {}): Packet {
  return { kind, id, payload };
}

export class ClientDriver {
  now = 1_000_000;
  chance = 1;
  readonly machine: ClientMachine;
  /** Packets sent so far, and when. */
  readonly sent: Packet[] = [];
  readonly sentAt: number[] = [];
  readonly pushes: (Push | RoomRow)[] = [];
  /** The errors of the runs that have ended. */
  readonly ends: (PresenceError | null)[] = [];
  readonly results = new Map<number, ValueMap | PresenceError>();
  private decoder = new Decoder();

  constructor(options: Omit<MachineOptions, "chance"> & { login?: Identity } = {}) {
    const { login = { uid: "ann", device: "phone" }, ...rest } = options;
    this.machine = new ClientMachine(login, { askEvery: 3, ...rest, chance: () => this.chance });
    this.machine.begin(this.now);
  }

  apply(effects: Effects): void {
    for (const each of effects) {
      if (each.type === "result") {
        assert.ok(!this.results.has(each.id), "one answer each");
        this.results.set(each.id, each.result);
      } else if (each.type === "end") {
        this.ends.push(each.error);
      } else {
        this.pushes.push(each);
      }
    }
    this.decoder.feed(this.machine.takeOutgoing());
    for (let next = this.decoder.next(); next; next = this.decoder.next()) {
      this.sent.push(next);
      this.sentAt.push(this.now);
    }
  }

  establish(): void {
    this.decoder = new Decoder();
    this.machine.established(this.now);
    this.apply([]);
  }

  logIn(): void {
    this.establish();
    this.receive(packet(Kind.OK, 1, LOGIN_OK));
    assert.equal(this.machine.state, "online");
  }

  receive(...packets: Packet[]): void {
    const frames = packets.map(({ kind, id, payload }) => encode(kind, id, payload));
    this.apply(this.machine.received(Buffer.concat(frames), this.now));
  }

  /** The device has slept. */
  wake(): void {
    this.machine.wake(this.now);
    this.apply([]);
  }

  disconnect(): void {
    this.apply(this.machine.disconnected("broken", this.now));
  }

  /** Advances the clock, deadline by deadline; with `answersKeepalives`, answers each keepalive that asks. */
  advance(ms: number, answersKeepalives = false): void {
    const end = this.now + ms;
    while (this.machine.deadline <= end) {
      this.now = Math.max(this.now, this.machine.deadline);
      const before = this.sent.length;
      this.apply(this.machine.tick(this.now));
      for (const { id } of this.sent.slice(before)) {
        if (answersKeepalives && id !== null) {
          this.receive(packet(Kind.OK, Number(id)));
        }
      }
    }
    this.now = end;
  }

  request(kind: number, payload: ValueMap, timeoutMs = 10_000): number {
    const id = this.machine.request(kind, payload, timeoutMs, this.now);
    this.apply([]);
    return id;
  }

  /** Sends a message that is retried while its recipient may return. */
  sendMessage(to: string, body: number, timeoutMs = 10_000): number {
    const id = this.machine.request(Kind.MESSAGE, { to, body }, timeoutMs, this.now, true);
    this.apply([]);
    return id;
  }

  /** Returns id and body of each message sent since the last call, in one list, and forgets what was sent. */
  takeMessages(): unknown[] {
    return this.sent
      .splice(0)
      .filter(({ kind }) => kind === Kind.MESSAGE)
      .flatMap(({ id, payload }) => [id, payload["body"]]);
  }

  /** The server refuses a message: its recipient has lost the connection and may return. */
  refuseAsDisconnected(id: number, retryAfterS = 4): void {
    const payload = { code: Code.RECIPIENT_DISCONNECTED, reason: "x", message: "no", retry_after: retryAfterS };
    this.receive(packet(Kind.ERROR, id, payload));
  }

  get keepalives(): Packet[] {
    return this.sent.filter(({ kind }) => kind === Kind.KEEPALIVE);
  }
}
