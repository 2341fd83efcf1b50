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
import type { Keepalives } from "./keepalives.js";
import { parseDelivered, secondsToMs, parsePresenceChanged, type Push } from "./pushes.js";
import type { Chance } from "./reconnect.js";
import type { ValueMap } from "./values.js";

/** What became of a request: the payload of its ok, or an error. Each request gets exactly one. */
export interface RequestResult {
  readonly type: "result";
  readonly id: number;
  readonly result: ValueMap | PresenceError;
}

export type Effects = (Push | RequestResult)[];

// After these errors the server closes; others, and a 315 to a watch, refuse one request.
const ENDS_CONNECTION: ReadonlySet<number> = new Set([
  Code.PROTOCOL_ERROR,
  Code.TOO_LARGE,
  Code.NOT_LOGGED_IN,
]);

export const MESSAGE_RETRY_INTERVAL_MS = 1000; // between two attempts to reach a recipient who may return at any moment

interface PendingRequest {
  readonly kind: number;
  readonly payload: Readonly<Record<string, unknown>>;
  /** When its time is over. */
  readonly deadline: number;
  /** Whether a message is sent again to a recipient that has lost its connection. */
  readonly retries: boolean;
  /** When it is to be sent again, and why; null: its answer is awaited. */
  resend: Resend | null;
}

interface Resend {
  readonly resendAt: number;
  readonly error: PresenceError;
}

function nextActionAt({ deadline, resend }: PendingRequest): number {
  return resend ? Math.min(resend.resendAt, deadline) : deadline;
}

/** From the login's answer to the end of the connection. */
export class Session {
  /** An error after which a server closes, if it came last. */
  refusal: Refusal | null = null;
  private readonly requests = new Map<number, PendingRequest>(); // by id, in order
  private readonly resends = new Map<unknown, Resend>(); // by recipient, while messages wait to be sent again

  /**
   * @param onlineSince when the login was answered.
   * @param nextId ids of requests; they go on over all connections of a client.
   * @param send takes what is to be sent.
   */
  constructor(
    readonly keepalives: Keepalives,
    readonly onlineSince: number,
    private readonly nextId: () => number,
    private readonly send: (frame: Uint8Array) => void,
  ) {}

  /** When something is due: a beat, a beat's answer, or a request's. */
  get deadline(): number {
    let deadline = Math.min(this.keepalives.nextAt, this.keepalives.deadAt);
    for (const pending of this.requests.values()) {
      deadline = Math.min(deadline, nextActionAt(pending));
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
    const resend = (retries && this.resends.get(payload["to"])) || null;
    if (!resend) {
      this.send(frame);
    }
    this.requests.set(id, { kind, payload, deadline: now + timeoutMs, retries, resend });
    return id;
  }

  /** Send a beat if one is due; return whether. */
  sendKeepalive(now: number, chance: Chance): boolean {
    if (now < this.keepalives.nextAt) {
      return false;
    }
    if (this.keepalives.countSent(now, chance)) {
      const id = this.nextId();
      this.keepalives.expectAnswer(id, now);
      this.send(encode(Kind.KEEPALIVE, id));
    } else {
      this.send(encode(Kind.KEEPALIVE, null));
    }
    return true;
  }

  /** Give up requests whose time is over, and send again what is due. */
  expireRequests(now: number): Effects {
    const effects: Effects = [];
    for (const [id, pending] of [...this.requests].filter(([, each]) => now >= nextActionAt(each))) {
      const { kind, payload, deadline, resend } = pending;
      if (now >= deadline) {
        effects.push(this.settle(id, resend?.error ?? new RequestTimeout("no answer came in time")));
        continue;
      }
      this.resends.delete(payload["to"]);
      pending.resend = null;
      this.send(encode(kind, id, payload, FRAME_LIMIT_BYTES));
    }
    return effects;
  }

  /** The connection has ended: nothing more will be answered. */
  failRequests(error: PresenceError): Effects {
    return [...this.requests].map(([id, { resend }]) => this.settle(id, resend?.error ?? error));
  }

  /** Take any packet but a goodbye. Kinds that this version does not know are ignored. */
  handlePacket(packet: Packet, now: number): Effects {
    this.refusal = null;
    switch (packet.kind) {
      case Kind.OK:
      case Kind.ERROR:
        return this.handleAnswer(packet, now);
      case Kind.DELIVER:
        return [parseDelivered(packet)];
      case Kind.PRESENCE:
        return [parsePresenceChanged(packet)];
      default:
        return [];
    }
  }

  private handleAnswer(packet: Packet, now: number): Effects {
    const refusal = packet.kind === Kind.ERROR ? parseRefusal(packet.payload) : null;
    const id = Number(packet.id ?? -1);
    const pending = this.requests.get(id);
    const isWatchLimit = refusal?.code === Code.TOO_LARGE && pending?.kind === Kind.WATCH;
    if (refusal && ENDS_CONNECTION.has(refusal.code) && !isWatchLimit) {
      this.refusal = refusal;
    }
    if (id === this.keepalives.unansweredId) {
      this.keepalives.noteAnswered(now);
    } else if (pending) {
      const result = refusal ? requestFailed(refusal) : packet.payload;
      return this.scheduleResend(pending, result, now) ? [] : [this.settle(id, result)];
    }
    return []; // the answer to a request that was given up
  }

  /** Whether a message is to be sent again; then it waits for that. */
  private scheduleResend(pending: PendingRequest, result: ValueMap | PresenceError, now: number): boolean {
    if (!pending.retries || !(result instanceof RecipientDisconnected)) {
      return false;
    }
    const { to } = pending.payload;
    const resendAt =
      this.resends.get(to)?.resendAt ??
      now + Math.min(MESSAGE_RETRY_INTERVAL_MS, result.refusal.retryAfterMs ?? 0);
    if (resendAt >= pending.deadline) {
      return false;
    }
    pending.resend = { resendAt, error: result };
    this.resends.set(to, pending.resend);
    return true;
  }

  private settle(id: number, result: ValueMap | PresenceError): RequestResult {
    this.requests.delete(id);
    return { type: "result", id, result };
  }
}

/** What an error or a goodbye says. */
export function parseRefusal(payload: ValueMap): Refusal {
  return {
    code: Number(payload["code"]),
    reason: payload["reason"] as string,
    message: (payload["message"] ?? "") as string,
    retryAfterMs: secondsToMs(payload["retry_after"]),
  };
}
