/** One logged-in connection: keepalives, requests and pushes. */

import { encode, type Packet } from "./codec.js";
import { Code, FRAME_LIMIT_BYTES, Kind, UIDS_MAX } from "./constants.js";
import {
  ConnectionLost,
  NotConnected,
  PresenceError,
  RecipientDisconnected,
  type Refusal,
  requestFailed,
  RequestTimeout,
  Uncertain,
} from "./errors.js";
import { KEEPALIVE_SHARE, type Keepalives } from "./keepalives.js";
import { MessageLines, type Moves } from "./message-lines.js";
import {
  parseDelivered,
  parsePresenceChanges,
  parseRefusal,
  parseRoomRows,
  type Push,
  type RoomRow,
} from "./pushes.js";
import type { Chance } from "./environment.js";
import type { Value, ValueMap } from "./values.js";

/** The result of a request: the payload of its ok, or an error. Each request has exactly one. */
export interface RequestResult {
  readonly type: "result";
  readonly id: number;
  readonly result: Result;
}

type Result = ValueMap | PresenceError;

/** The last effect of a run. */
export interface End {
  readonly type: "end";
  /** Null after the program's logout or disconnect. */
  readonly error: PresenceError | null;
}

export type Effects = (Push | RoomRow | RequestResult | End)[];

// The server closes after these errors; others, and a 315 to one of these requests, refuse one request.
const FATAL_CODES: ReadonlySet<number> = new Set([Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN]);
const MAY_BE_TOO_LARGE: ReadonlySet<number> = new Set([Kind.WATCH, Kind.QUERY, Kind.UPDATE]);

export const MESSAGE_RETRY_INTERVAL_MS = 1000; // while the recipient may return
export const MIN_MESSAGE_RETRY_MS = 100; // whatever the server asks for
export const MAX_CONFIRMED = UIDS_MAX; // messages in a keepalive

export type AnswerCallback = (result: Result, now: number) => void;

interface PendingRequest {
  readonly id: number;
  readonly kind: number;
  readonly payload: Readonly<Record<string, unknown>>;
  /** When the request times out. */
  readonly deadline: number;
  /** Receives the result of a request that the client makes by itself; null: it becomes an effect. */
  readonly onAnswer: AnswerCallback | null;
  /** Of a message, to be sent later or again as the program has given it. */
  readonly frame: Uint8Array | null;
  /** Whether to send the message again while its recipient may return. */
  readonly retries: boolean;
  /** Whether it has not been sent, because it waits for other messages. */
  isHeld: boolean;
  /** When the pause before the next try is over; null while it awaits its answer, or its turn. */
  resendAt: number | null;
  /** Why it is to be sent again. */
  refusal: PresenceError | null;
}

/** A connection from the answer to its login until its end. */
export class Session {
  /** The error in the last packet, if the server closes after it. */
  refusal: Refusal | null = null;
  /** Whether the logout was sent: nothing that may wait follows it. */
  isLeaving = false;
  private readonly requests = new Map<number, PendingRequest>(); // by id
  private readonly lines = new MessageLines();
  private toConfirm: Value[] = []; // numbers of messages that were received
  private earliest = Infinity; // no request is due before; exact after each `expireRequests`

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

  /** When a keepalive, an answer or a request may be due. */
  get deadline(): number {
    return Math.min(this.keepalives.nextAt, this.keepalives.deadAt, this.earliest);
  }

  /** When a request may be due. */
  get requestsDueAt(): number {
    return this.earliest;
  }

  /**
   * Sends a request and returns its id; a `RequestResult` follows, or `onAnswer` is called instead.
   *
   * With `retries` a message is sent again until its time-out while its recipient may return. Later messages to the
   * same recipient may wait for it: see `MessageLines`.
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
    const deadline = now + timeoutMs;
    const isMessage = kind === Kind.MESSAGE;
    const isHeld = isMessage && !this.lines.join(payload["to"] as string, id, retries, now);
    if (!isHeld) {
      this.send(frame);
    }
    const waiting = { frame: isMessage ? frame : null, isHeld, resendAt: null, refusal: null };
    this.requests.set(id, { id, kind, payload, deadline, onAnswer, retries, ...waiting });
    this.earliest = Math.min(this.earliest, deadline);
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

  /** Asks for a sign of life, which must come soon; an answer that is due already must, too. */
  probe(now: number, chance: Chance): void {
    this.keepalives.beginProbe(now);
    this.sendKeepalive(now, chance);
  }

  /** Confirms the messages that were received, immediately: their senders wait. */
  sendConfirmations(): void {
    while (this.toConfirm.length > 0) {
      const confirmed = this.toConfirm.splice(0, MAX_CONFIRMED);
      if (!this.isLeaving) {
        this.send(encode(Kind.KEEPALIVE, null, { confirmed }));
      }
    }
  }

  /** Times out requests, and sends again messages that are due. */
  expireRequests(now: number): Effects {
    if (now < this.earliest) {
      return [];
    }
    const requests = [...this.requests.values()];
    const expired = requests.filter(({ deadline }) => now >= deadline);
    const effects = expired.flatMap((pending) => this.settle(pending, this.timeOutOf(pending), now));
    for (const pending of requests) {
      if (now < pending.deadline && now >= (pending.resendAt ?? Infinity)) {
        pending.resendAt = null;
        this.sendWaiting(this.lines.pauseIsOver(recipientOf(pending), pending.id));
      }
    }
    // At last: those that wait for it may have timed out, too.
    effects.push(...expired.flatMap((pending) => this.leaveUnanswered(pending, now)));
    this.earliest = Infinity;
    this.requests.forEach((pending) => this.noteDue(pending));
    return effects;
  }

  /** The program does not wait for the answer any more. */
  abandon(id: number, now: number): Effects {
    const pending = this.requests.get(id);
    this.requests.delete(id);
    return pending ? this.leaveUnanswered(pending, now) : [];
  }

  /** Fails all pending requests, except those that the client made by itself. */
  failRequests(error: PresenceError): Effects {
    const requests = [...this.requests.values()].filter(({ onAnswer }) => !onAnswer);
    return requests.map((pending) => ({
      type: "result",
      id: pending.id,
      result: this.failureOf(pending, error),
    }));
  }

  /** Handles any packet except a goodbye. Unknown kinds are ignored. */
  handlePacket(packet: Packet, now: number): Effects {
    this.refusal = null;
    switch (packet.kind) {
      case Kind.OK:
      case Kind.ERROR:
        return this.handleAnswer(packet, now);
      case Kind.DELIVER:
        if (packet.payload["confirm"] !== undefined) {
          this.toConfirm.push(packet.payload["confirm"]);
        }
        return [parseDelivered(packet)];
      case Kind.PRESENCE:
      case Kind.CHANGES:
        return parsePresenceChanges(packet);
      case Kind.ROOMS:
        return parseRoomRows(packet.payload) ?? [];
      default:
        return [];
    }
  }

  private handleAnswer(packet: Packet, now: number): Effects {
    const refusal = packet.kind === Kind.ERROR ? parseRefusal(packet.payload) : null;
    const id = Number(packet.id ?? -1);
    const pending = this.requests.get(id);
    if (refusal && endsConnection(refusal.code, packet, pending)) {
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
      return this.isToBeResent(pending, result, now) ? [] : this.answered(pending, result, now);
    }
    return []; // a keepalive, or a request that timed out
  }

  /** Schedules a refused message to be sent again; returns false if it should not be. */
  private isToBeResent(pending: PendingRequest, result: Result, now: number): boolean {
    if (!pending.retries || !(result instanceof RecipientDisconnected)) {
      return false;
    }
    const wantedMs = Math.min(MESSAGE_RETRY_INTERVAL_MS, result.retryAfterMs ?? 0);
    const at = now + Math.max(MIN_MESSAGE_RETRY_MS, wantedMs);
    if (at >= pending.deadline || !this.lines.refused(recipientOf(pending), pending.id, result)) {
      return false;
    }
    pending.resendAt = at;
    pending.refusal = result;
    this.noteDue(pending);
    return true;
  }

  private answered(pending: PendingRequest, result: Result, now: number): Effects {
    const effects = this.settle(pending, result, now);
    return pending.kind === Kind.MESSAGE ? [...effects, ...this.leaveAnswered(pending, result, now)] : effects;
  }

  private settle({ id, onAnswer }: PendingRequest, result: Result, now: number): Effects {
    this.requests.delete(id);
    onAnswer?.(result, now);
    return onAnswer ? [] : [{ type: "result", id, result }];
  }

  private noteDue({ deadline, resendAt }: PendingRequest): void {
    this.earliest = Math.min(this.earliest, deadline, resendAt ?? Infinity);
  }

  private leaveAnswered(message: PendingRequest, result: Result, now: number): Effects {
    const to = recipientOf(message);
    if (!(result instanceof PresenceError)) {
      return this.move(this.lines.delivered(to, message.id, now), now);
    }
    if (result instanceof Uncertain) {
      return this.move(this.lines.uncertain(to, message.id, true), now);
    }
    this.sendWaiting(this.lines.failed(to, message.id));
    return [];
  }

  private leaveUnanswered(pending: PendingRequest, now: number): Effects {
    const isMessage = pending.kind === Kind.MESSAGE;
    return isMessage ? this.move(this.lines.uncertain(recipientOf(pending), pending.id, false), now) : [];
  }

  /** Sends messages that have waited for another, and fails those that it has overtaken. */
  private move({ toSend, overtaken }: Moves, now: number): Effects {
    this.sendWaiting(toSend);
    return overtaken.flatMap((id) => {
      const pending = this.requests.get(id);
      return pending?.refusal ? this.settle(pending, pending.refusal, now) : [];
    });
  }

  /** Sends messages that have waited, for the first time or again; after a logout they stay unsent. */
  private sendWaiting(ids: readonly number[]): void {
    for (const id of this.isLeaving ? [] : ids) {
      const pending = this.requests.get(id);
      if (pending?.frame) {
        pending.isHeld = false;
        pending.resendAt = pending.refusal = null;
        this.send(pending.frame);
      }
    }
  }

  private timeOutOf(pending: PendingRequest): PresenceError {
    if (!pending.isHeld) {
      return pending.refusal ?? new RequestTimeout("no answer came in time");
    }
    const refusal = this.lines.refusal(recipientOf(pending));
    return refusal ?? new RequestTimeout("not sent: those before it to the same user took too long");
  }

  /** When the connection or the client ends: what was sent may have been carried out, whatever the reason. */
  private failureOf(pending: PendingRequest, error: PresenceError): PresenceError {
    if (!pending.isHeld) {
      const lost = error instanceof ConnectionLost ? error : new ConnectionLost(error.message);
      return pending.refusal ?? lost;
    }
    const notSent = error instanceof ConnectionLost ? new NotConnected(`${error.message}: not sent`) : error;
    return this.lines.refusal(recipientOf(pending)) ?? notSent;
  }
}

function recipientOf({ payload }: PendingRequest): string {
  return payload["to"] as string;
}

/**
 * Whether the server closes after this error; not if a watch, a query or an update is too large. One without its
 * request, which is not waited for any more, can only be about these: the client sends no larger frame.
 */
function endsConnection(code: number, { id }: Packet, pending: PendingRequest | undefined): boolean {
  if (code === Code.TOO_LARGE && id !== null) {
    return pending !== undefined && !MAY_BE_TOO_LARGE.has(pending.kind);
  }
  return FATAL_CODES.has(code);
}
