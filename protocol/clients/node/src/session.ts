/** One logged-in connection as the client sees it: its beats, its requests, and what comes unasked. */

import { encode, type Packet } from "./codec.js";
import { Code, FRAME_LIMIT_BYTES, Kind } from "./constants.js";
import { type PresenceError, type Refusal, requestFailed, RequestTimeout } from "./errors.js";
import type { Beats, Chance } from "./pacing.js";
import { delivered, milliseconds, presenceChanged, type Push } from "./pushes.js";
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

/** From the login's answer to the end of the connection. */
export class Session {
  /** An error after which a server closes, if it came last. */
  refusal: Refusal | null = null;
  private readonly requests = new Map<number, { readonly kind: number; readonly due: number }>(); // by id

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
    for (const { due } of this.requests.values()) {
      deadline = Math.min(deadline, due);
    }
    return deadline;
  }

  /**
   * Send a request and return its id.
   *
   * @throws EncodeError the packet breaks a rule of the protocol; nothing was sent.
   */
  request(kind: number, payload: Readonly<Record<string, unknown>>, timeoutMs: number, now: number): number {
    const id = this.nextId();
    this.send(encode(kind, id, payload, FRAME_LIMIT_BYTES));
    this.requests.set(id, { kind, due: now + timeoutMs });
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

  /** Give up requests whose time is over. */
  expire(now: number): Caused {
    const late = [...this.requests].filter(([, { due }]) => now >= due);
    return late.map(([id]) => this.answer(id, new RequestTimeout("no answer came in time")));
  }

  /** The connection has ended: nothing more will be answered. */
  fail(error: PresenceError): Caused {
    return [...this.requests.keys()].map((id) => this.answer(id, error));
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
    const tooMany = refusal?.code === Code.TOO_LARGE && this.requests.get(id)?.kind === Kind.WATCH;
    if (refusal && ENDS_CONNECTION.has(refusal.code) && !tooMany) {
      this.refusal = refusal;
    }
    if (id === this.beats.asked) {
      this.beats.answered(now);
    } else if (this.requests.has(id)) {
      return [this.answer(id, refusal ? requestFailed(refusal) : packet.payload)];
    }
    return []; // the answer to a request that was given up
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
