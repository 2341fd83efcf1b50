/** One logged-in connection: keepalives, requests and pushes. */

import { encode, type Packet } from "./codec.js";
import { Code, FRAME_LIMIT_BYTES, Kind } from "./constants.js";
import {
  type PresenceError,
  RecipientDisconnected,
  type Refusal,
  requestFailed,
  RequestTimeout,
} from "./errors.js";
import { KEEPALIVE_SHARE, type Keepalives } from "./keepalives.js";
import { parseDelivered, parsePresenceChanged, parseRefusal, type Push } from "./pushes.js";
import type { Chance } from "./reconnect.js";
import type { ValueMap } from "./values.js";

/** The result of a request: the payload of its ok, or an error. Each request has exactly one. */
export interface RequestResult {
  readonly type: "result";
  readonly id: number;
  readonly result: Result;
}

type Result = ValueMap | PresenceError;

export type Effects = (Push | RequestResult)[];

// The server closes after these errors; others, and a 315 to a watch or a query, refuse one request.
const FATAL_CODES: ReadonlySet<number> = new Set([Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN]);

export const MESSAGE_RETRY_INTERVAL_MS = 1000; // while the recipient may return
export const MIN_MESSAGE_RETRY_MS = 100; // whatever the server asks for

export type AnswerCallback = (result: Result, now: number) => void;

interface PendingRequest {
  readonly kind: number;
  readonly payload: Readonly<Record<string, unknown>>;
  /** When the request times out. */
  readonly deadline: number;
  /** Whether to resend a message while its recipient may return. */
  readonly retries: boolean;
  /** Receives the result of a request that the client makes by itself; null: it becomes an effect. */
  readonly onAnswer: AnswerCallback | null;
  /** When to resend it, and why; null while it awaits its answer. */
  resend: Resend | null;
}

interface Resend {
  readonly resendAt: number;
  readonly error: PresenceError;
}

function nextActionAt({ deadline, resend }: PendingRequest): number {
  return resend ? Math.min(resend.resendAt, deadline) : deadline;
}

/** A connection from the answer to its login until its end. */
export class Session {
  /** The error in the last packet, if the server closes after it. */
  refusal: Refusal | null = null;
  private readonly requests = new Map<number, PendingRequest>(); // by id
  private readonly resends = new Map<unknown, Resend>(); // by recipient

  /**
   * @param onlineSince when the login was answered.
   * @param nextId returns request ids, shared by all connections of a client.
   * @param send receives the bytes to send.
   */
  constructor(
    readonly keepalives: Keepalives,
    readonly onlineSince: number,
    private readonly nextId: () => number,
    private readonly send: (frame: Uint8Array) => void,
  ) {}

  /** When the next keepalive, answer or request is due. */
  get deadline(): number {
    let deadline = Math.min(this.keepalives.nextAt, this.keepalives.deadAt);
    for (const pending of this.requests.values()) {
      deadline = Math.min(deadline, nextActionAt(pending));
    }
    return deadline;
  }

  /**
   * Sends a request and returns its id; a `RequestResult` follows, or `onAnswer` is called instead.
   *
   * With `retries` a message is sent again until its time-out while its recipient may return. Later messages
   * to the same recipient wait behind it, so that all arrive in order.
   *
   * @throws EncodeError the packet breaks a rule of the protocol; nothing was sent.
   */
  request(
    kind: number,
    payload: Readonly<Record<string, unknown>>,
    timeoutMs: number,
    now: number,
    { retries = false, onAnswer = null }: { retries?: boolean; onAnswer?: AnswerCallback | null } = {},
  ): number {
    const id = this.nextId();
    const frame = encode(kind, id, payload, FRAME_LIMIT_BYTES);
    const resend = (retries && this.resends.get(payload["to"])) || null;
    if (!resend) {
      this.send(frame);
    }
    this.requests.set(id, { kind, payload, deadline: now + timeoutMs, retries, onAnswer, resend });
    const idleTimeout = kind === Kind.UPDATE ? payload["idle_timeout"] : undefined;
    if (typeof idleTimeout === "number") {
      this.keepalives.shortenInterval(KEEPALIVE_SHARE * idleTimeout * 1000, now);
    }
    return id;
  }

  /** Sends a keepalive if one is due. */
  sendKeepalive(now: number, chance: Chance): void {
    if (now < this.keepalives.nextAt) {
      return;
    }
    if (this.keepalives.countSent(now, chance)) {
      const id = this.nextId();
      this.keepalives.expectAnswer(id, now);
      this.send(encode(Kind.KEEPALIVE, id));
    } else {
      this.send(encode(Kind.KEEPALIVE, null));
    }
  }

  /** Times out requests, and resends messages that are due. */
  expireRequests(now: number): Effects {
    const effects: Effects = [];
    for (const [id, pending] of [...this.requests].filter(([, each]) => now >= nextActionAt(each))) {
      const { kind, payload, deadline, resend } = pending;
      if (now >= deadline) {
        const error = resend?.error ?? new RequestTimeout("no answer came in time");
        effects.push(...this.settle(id, error, now));
        continue;
      }
      this.resends.delete(payload["to"]);
      pending.resend = null;
      this.send(encode(kind, id, payload, FRAME_LIMIT_BYTES));
    }
    return effects;
  }

  /** Fails all pending requests, except those that the client made by itself. */
  failRequests(error: PresenceError): Effects {
    const requests = [...this.requests].filter(([, { onAnswer }]) => !onAnswer);
    return requests.map(([id, { resend }]) => ({ type: "result", id, result: resend?.error ?? error }));
  }

  /** Handles any packet except a goodbye. Unknown kinds are ignored. */
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
    const asksForUsers = pending?.kind === Kind.WATCH || pending?.kind === Kind.QUERY;
    if (refusal && FATAL_CODES.has(refusal.code) && !(refusal.code === Code.TOO_LARGE && asksForUsers)) {
      this.refusal = refusal;
    }
    if (id === this.keepalives.unansweredId) {
      this.keepalives.noteAnswered(now);
    } else if (pending) {
      const result = refusal ? requestFailed(refusal) : packet.payload;
      const keepalive = packet.payload["keepalive"];
      if (typeof keepalive === "number") {
        this.keepalives.setInterval(keepalive * 1000, now); // the answer to another idle time-out
      } else if (refusal && pending.kind === Kind.UPDATE && pending.payload["idle_timeout"] !== undefined) {
        this.keepalives.restoreInterval(now);
      }
      return this.scheduleResend(pending, result, now) ? [] : this.settle(id, result, now);
    }
    return []; // a keepalive, or a request that timed out
  }

  /** Schedules a refused message to be sent again; returns false if it should not be. */
  private scheduleResend(pending: PendingRequest, result: Result, now: number): boolean {
    if (!pending.retries || !(result instanceof RecipientDisconnected)) {
      return false;
    }
    const { to } = pending.payload;
    const wantedMs = Math.min(MESSAGE_RETRY_INTERVAL_MS, result.refusal.retryAfterMs ?? 0);
    const delayMs = Math.max(MIN_MESSAGE_RETRY_MS, wantedMs);
    const resendAt = this.resends.get(to)?.resendAt ?? now + delayMs;
    if (resendAt >= pending.deadline) {
      return false;
    }
    pending.resend = { resendAt, error: result };
    this.resends.set(to, pending.resend);
    return true;
  }

  private settle(id: number, result: Result, now: number): Effects {
    const onAnswer = this.requests.get(id)?.onAnswer;
    this.requests.delete(id);
    onAnswer?.(result, now);
    return onAnswer ? [] : [{ type: "result", id, result }];
  }
}
