/** One logged-in connection as the client sees it: its beats, its requests, and what comes unasked. */

import { encode, type Packet } from "./codec.js";
import { Code, FRAME_LIMIT_BYTES, Kind } from "./constants.js";
import {
  type PresenceError,
  RecipientDisconnected,
  type Refusal,
  requestFailed,
  RequestTimeout,
} from "./errors.js";
import type { Beats } from "./keepalives.js";
import { delivered, milliseconds, presenceChanged, type Push } from "./pushes.js";
import type { Chance } from "./reconnect.js";
import type { ValueMap } from "./values.js";

/** What became of a request: the payload of its ok, or an error. Each request gets exactly one. */
export interface Answer {
  readonly type: "answer";
  readonly id: number;
  readonly result: ValueMap | PresenceError;
}

export type Caused = (Push | Answer)[];

// After these errors the server closes; others, and a 315 to a watch, refuse one request.
const ENDS_CONNECTION: ReadonlySet<number> = new Set([
  Code.PROTOCOL_ERROR,
  Code.TOO_LARGE,
  Code.NOT_LOGGED_IN,
]);

export const RETRY_MS = 1000; // between two attempts to reach a recipient who may return at any moment

interface Pending {
  readonly kind: number;
  readonly payload: Readonly<Record<string, unknown>>;
  /** When its time is over. */
  readonly deadline: number;
  /** Whether a message is sent again to a recipient that has lost its connection. */
  readonly retries: boolean;
  /** When it is to be sent again, and why; null: its answer is awaited. */
  held: Held | null;
}

interface Held {
  readonly againAt: number;
  readonly error: PresenceError;
}

function dueOf({ deadline, held }: Pending): number {
  return held ? Math.min(held.againAt, deadline) : deadline;
}

/** From the login's answer to the end of the connection. */
export class Session {
  /** An error after which a server closes, if it came last. */
  refusal: Refusal | null = null;
  private readonly requests = new Map<number, Pending>(); // by id, in order
  private readonly held = new Map<unknown, Held>(); // by recipient, while messages wait to be sent again

  /**
   * @param since when the login was answered.
   * @param nextId ids of requests; they go on over all connections of a client.
   * @param send takes what is to be sent.
   */
  constructor(
    readonly beats: Beats,
    readonly since: number,
    private readonly nextId: () => number,
    private readonly send: (frame: Uint8Array) => void,
  ) {}

  /** When something is due: a beat, a beat's answer, or a request's. */
  get deadline(): number {
    let deadline = Math.min(this.beats.nextAt, this.beats.deadAt);
    for (const pending of this.requests.values()) {
      deadline = Math.min(deadline, dueOf(pending));
    }
    return deadline;
  }

  /**
   * Send a request and return its id.
   *
   * With `retries` a message is sent again, within its time, while its recipient may return. What follows to
   * the same recipient waits behind it, so that all of it arrives in order.
   *
   * @throws EncodeError the packet breaks a rule of the protocol; nothing was sent.
   */
  request(
    kind: number,
    payload: Readonly<Record<string, unknown>>,
    timeoutMs: number,
    now: number,
    retries = false,
  ): number {
    const id = this.nextId();
    const frame = encode(kind, id, payload, FRAME_LIMIT_BYTES);
    const held = (retries && this.held.get(payload["to"])) || null;
    if (!held) {
      this.send(frame);
    }
    this.requests.set(id, { kind, payload, deadline: now + timeoutMs, retries, held });
    return id;
  }

  /** Send a beat if one is due; return whether. */
  beat(now: number, chance: Chance): boolean {
    if (now < this.beats.nextAt) {
      return false;
    }
    if (this.beats.beat(now, chance)) {
      const id = this.nextId();
      this.beats.ask(id, now);
      this.send(encode(Kind.KEEPALIVE, id));
    } else {
      this.send(encode(Kind.KEEPALIVE, null));
    }
    return true;
  }

  /** Give up requests whose time is over, and send again what is due. */
  expire(now: number): Caused {
    const caused: Caused = [];
    for (const [id, pending] of [...this.requests].filter(([, each]) => now >= dueOf(each))) {
      const { kind, payload, deadline, held } = pending;
      if (now >= deadline) {
        caused.push(this.answer(id, held?.error ?? new RequestTimeout("no answer came in time")));
        continue;
      }
      this.held.delete(payload["to"]);
      pending.held = null;
      this.send(encode(kind, id, payload, FRAME_LIMIT_BYTES));
    }
    return caused;
  }

  /** The connection has ended: nothing more will be answered. */
  fail(error: PresenceError): Caused {
    return [...this.requests].map(([id, { held }]) => this.answer(id, held?.error ?? error));
  }

  /** Take any packet but a goodbye. Kinds that this version does not know are ignored. */
  take(packet: Packet, now: number): Caused {
    this.refusal = null;
    switch (packet.kind) {
      case Kind.OK:
      case Kind.ERROR:
        return this.takeAnswer(packet, now);
      case Kind.DELIVER:
        return [delivered(packet)];
      case Kind.PRESENCE:
        return [presenceChanged(packet)];
      default:
        return [];
    }
  }

  private takeAnswer(packet: Packet, now: number): Caused {
    const refusal = packet.kind === Kind.ERROR ? refusalOf(packet.payload) : null;
    const id = Number(packet.id ?? -1);
    const pending = this.requests.get(id);
    const tooMany = refusal?.code === Code.TOO_LARGE && pending?.kind === Kind.WATCH;
    if (refusal && ENDS_CONNECTION.has(refusal.code) && !tooMany) {
      this.refusal = refusal;
    }
    if (id === this.beats.asked) {
      this.beats.answered(now);
    } else if (pending) {
      const result = refusal ? requestFailed(refusal) : packet.payload;
      return this.hold(pending, result, now) ? [] : [this.answer(id, result)];
    }
    return []; // the answer to a request that was given up
  }

  /** Whether a message is to be sent again; then it waits for that. */
  private hold(pending: Pending, result: ValueMap | PresenceError, now: number): boolean {
    if (!pending.retries || !(result instanceof RecipientDisconnected)) {
      return false;
    }
    const { to } = pending.payload;
    const againAt = this.held.get(to)?.againAt ?? now + Math.min(RETRY_MS, result.refusal.retryAfterMs ?? 0);
    if (againAt >= pending.deadline) {
      return false;
    }
    pending.held = { againAt, error: result };
    this.held.set(to, pending.held);
    return true;
  }

  private answer(id: number, result: ValueMap | PresenceError): Answer {
    this.requests.delete(id);
    return { type: "answer", id, result };
  }
}

/** What an error or a goodbye says. */
export function refusalOf(payload: ValueMap): Refusal {
  return {
    code: Number(payload["code"]),
    reason: payload["reason"] as string,
    message: (payload["message"] ?? "") as string,
    retryAfterMs: milliseconds(payload["retry_after"]),
  };
}
