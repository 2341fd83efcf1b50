/**
 * The order of messages to one recipient, which the client keeps although it may send one of them again.
 *
 * The server refuses a message to a user who has lost the connection and may return (317), and the client sends
 * it again. It must not arrive after a later one that has found the user back. So there is a line for each
 * recipient with messages in flight:
 *
 * - The first message goes alone, and the later ones wait for its answer: they are *held*. Any answer but that
 *   refusal releases them, all together. For `STEADY_MS` after a delivery no message goes alone. Nor does one that is
 *   not to be sent again: the answer to a confirmed message may take half a minute.
 * - A refused message waits for its next try, and with it all later ones. It is tried again, alone, when no
 *   message of the line is in flight any more; its delivery releases all others.
 * - A refused message is *overtaken* if a later one, which was in flight with it, is delivered, or perhaps
 *   delivered: it timed out, was abandoned, or the server failed. An overtaken message is not sent again: it has
 *   failed, and the program knows.
 *
 * So the messages that arrive do so in the order of the calls, and a burst to one user costs one round trip more.
 */

import type { PresenceError } from "./errors.js";

/** After a delivery. If a recipient loses the connection and returns sooner, a message fails at worst. */
export const STEADY_MS = 1000;

/** Ids of messages, in order. */
export interface Moves {
  readonly toSend: readonly number[];
  /** Refused, and not to be sent again. */
  readonly overtaken: readonly number[];
}

/** Messages to one recipient, by their ids, which rise in the order of the calls. */
class Line {
  readonly inFlight = new Set<number>();
  /** Of those in flight, the one whose answer the others wait for. */
  alone: number | null = null;
  /** To be sent again, in order. */
  refused: number[] = [];
  /** Not sent yet, in order, later than all others; and whether they may go alone. */
  held = new Map<number, boolean>();
  /** Those of the refused whose pause before the next try is not over. */
  readonly paused = new Set<number>();
  /** The last that was delivered, or perhaps. */
  lastDelivered = 0;
  /** Why those that wait do so, if the server has said it. */
  refusal: PresenceError | null = null;

  /** Returns the first refused message to send it again, if its time has come. */
  firstAgain(): number[] {
    const [id] = this.refused;
    if (id === undefined || this.paused.has(id) || this.inFlight.size > 0) {
      return [];
    }
    this.refused.shift();
    this.alone = id;
    this.inFlight.add(id);
    return [id];
  }

  /** Returns the first messages that were not sent yet, up to one that goes alone. */
  firstHeld(): number[] {
    const found: number[] = [];
    for (const [id, goesAlone] of this.held) {
      this.held.delete(id);
      this.inFlight.add(id);
      found.push(id);
      if (goesAlone) {
        this.alone = id;
        break;
      }
    }
    return found;
  }

  /** Returns all messages that were not sent yet, to send them now. */
  allHeld(): number[] {
    const found = [...this.held.keys()];
    this.held.clear();
    found.forEach((id) => this.inFlight.add(id));
    return found;
  }

  delete(id: number): void {
    if (this.alone === id) {
      this.alone = null;
    }
    this.held.delete(id);
    this.inFlight.delete(id);
    this.takeRefused((each) => each === id);
  }

  /** Notes that a message was delivered, or perhaps; returns the refused ones that it has overtaken. */
  overtake(id: number): number[] {
    this.lastDelivered = Math.max(this.lastDelivered, id);
    return this.takeRefused((each) => each < id);
  }

  /** Removes refused messages, and returns them. */
  takeRefused(isTaken: (id: number) => boolean): number[] {
    const taken = this.refused.filter(isTaken);
    if (taken.length > 0) {
      this.refused = this.refused.filter((id) => !isTaken(id));
      taken.forEach((id) => this.paused.delete(id));
    }
    return taken;
  }
}

/** The lines of all recipients on one connection. */
export class MessageLines {
  private readonly lines = new Map<string, Line>(); // by recipient
  private readonly deliveredAt = new Map<string, number>(); // by recipient, the oldest first

  /**
   * Adds a message; returns whether it is to be sent now.
   *
   * @param retries whether it is to be sent again when it is refused because the recipient may return.
   */
  join(to: string, id: number, retries: boolean, now: number): boolean {
    const line = this.lines.get(to) ?? new Line();
    this.lines.set(to, line);
    if (line.alone !== null || line.refused.length > 0 || line.held.size > 0) {
      line.held.set(id, retries);
      return false;
    }
    line.inFlight.add(id);
    if (retries && now >= (this.deliveredAt.get(to) ?? -Infinity) + STEADY_MS) {
      line.alone = id;
    }
    return true;
  }

  delivered(to: string, id: number, now: number): Moves {
    this.noteDelivery(to, now);
    const line = this.lines.get(to);
    const overtaken = line?.overtake(id) ?? [];
    if (line?.alone === id) {
      const refused = line.takeRefused(() => true); // before this one was sent: the recipient has returned since
      line.held = new Map([...refused.map((each) => [each, true] as const), ...line.held]);
    }
    if (line?.refused.length === 0) {
      line.refusal = null;
    }
    return { toSend: this.leave(to, id, true), overtaken };
  }

  /** The recipient may return; returns false if the message is not to be sent again, because it was overtaken. */
  refused(to: string, id: number, refusal: PresenceError): boolean {
    this.deliveredAt.delete(to);
    const line = this.lines.get(to);
    if (!line || id < line.lastDelivered) {
      return false;
    }
    line.delete(id);
    line.refused.push(id);
    line.refused.sort((one, other) => one - other);
    line.refusal = refusal;
    line.paused.add(id);
    return true;
  }

  /** The pause of a refused message is over: it is sent again as soon as it is the first, and none is in flight. */
  pauseIsOver(to: string, id: number): readonly number[] {
    const line = this.lines.get(to);
    line?.paused.delete(id);
    return line?.firstAgain() ?? [];
  }

  /** A message was answered, and certainly not delivered; it is not to be sent again. */
  failed(to: string, id: number): readonly number[] {
    return this.leave(to, id, true);
  }

  /** A message was perhaps delivered, if it was sent: it timed out or was abandoned, or the server failed. */
  uncertain(to: string, id: number, isAnswered: boolean): Moves {
    const line = this.lines.get(to);
    const overtaken = line?.inFlight.has(id) ? line.overtake(id) : [];
    return { toSend: this.leave(to, id, isAnswered), overtaken };
  }

  /** Why the messages that wait have not been sent, if the server has said so. */
  refusal(to: string): PresenceError | null {
    return this.lines.get(to)?.refusal ?? null;
  }

  /** A message is over; returns those to be sent now. */
  private leave(to: string, id: number, isAnswered: boolean): number[] {
    const line = this.lines.get(to);
    if (!line) {
      return [];
    }
    line.delete(id);
    if (line.refused.length > 0) {
      return line.firstAgain();
    }
    if (line.alone !== null) {
      return [];
    }
    const toSend = isAnswered ? line.allHeld() : line.firstHeld();
    if (line.inFlight.size === 0) {
      this.lines.delete(to);
    }
    return toSend;
  }

  private noteDelivery(to: string, now: number): void {
    this.deliveredAt.delete(to); // to be the last
    this.deliveredAt.set(to, now);
    for (const [each, at] of this.deliveredAt) {
      if (at > now - STEADY_MS) {
        return;
      }
      this.deliveredAt.delete(each);
    }
  }
}
