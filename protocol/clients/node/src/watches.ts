/**
 * Whom a client watches, what it knows of them, and what is news. No I/O.
 *
 * A watch ends with its connection, so a client that has come back watches again. The snapshot that answers
 * is compared with what was known: ids decide, so nothing is told twice and nothing older after newer.
 */

import { isDeepStrictEqual } from "node:util";

import { FRAME_LIMIT_BYTES, UIDS_MAX } from "./constants.js";
import { MEANWHILE, type PresenceChanged, type UserState } from "./pushes.js";

// In the frame of a watch: its array, kind, id, map and key, the list's header, and the header of each uid.
const FRAME_OVERHEAD_BYTES = 32;
const UID_HEADER_BYTES = 2;

interface Watch {
  /** Null until the first answer. */
  state: UserState | null;
  /** The request that asked for it last. */
  request: number;
}

export class WatchedUsers {
  private readonly watches = new Map<string, Watch>();
  private requests = 0;

  /** Somebody asks to watch these; return the request's number. */
  requestSent(uids: Iterable<string>): number {
    const request = (this.requests += 1);
    for (const uid of uids) {
      this.watches.set(uid, { state: this.watches.get(uid)?.state ?? null, request });
    }
    return request;
  }

  /** The request was not granted: whom it alone would have brought is not watched; return who that is. */
  requestFailed(request: number): string[] {
    const dropped = [...this.watches].filter(([, watch]) => watch.request === request && !watch.state);
    const uids = dropped.map(([uid]) => uid);
    this.remove(uids);
    return uids;
  }

  /** A snapshot has come. Return what is new in it of those who were known already. */
  applySnapshot(states: ReadonlyMap<string, UserState>): PresenceChanged[] {
    const changes: PresenceChanged[] = [];
    for (const [uid, state] of states) {
      const watch = this.watches.get(uid);
      if (!watch) {
        continue; // unwatched since
      }
      if (watch.state && differs(state, watch.state)) {
        watch.state = state;
        changes.push({ type: "presence", uid, state, reason: MEANWHILE });
      } else if (!watch.state?.id) {
        watch.state = state; // the first one, or the same, which by now may have an id
      }
    }
    return changes;
  }

  /** A push has come; return whether it is news of somebody who is watched. */
  applyChange({ uid, state }: PresenceChanged): boolean {
    const watch = this.watches.get(uid);
    if (!watch || (watch.state && !isNewer(state, watch.state))) {
      return false;
    }
    watch.state = state;
    return true;
  }

  /** Watch these no more; left out: nobody. */
  remove(uids?: Iterable<string>): void {
    for (const uid of uids ?? [...this.watches.keys()]) {
      this.watches.delete(uid);
    }
  }

  has(uid: string): boolean {
    return this.watches.has(uid);
  }

  /** The newest states of those whose first answer has come. */
  states(): Map<string, UserState> {
    const states = new Map<string, UserState>();
    for (const [uid, { state }] of this.watches) {
      if (state) {
        states.set(uid, state);
      }
    }
    return states;
  }
}

/** Cut uids into lists each of which fits into one request. */
export function batches(uids: Iterable<string>): string[][] {
  const result: string[][] = [];
  let batch: string[] = [];
  let room = 0;
  for (const uid of uids) {
    const size = Buffer.byteLength(uid) + UID_HEADER_BYTES;
    if (batch.length === UIDS_MAX || size > room) {
      batch = [];
      result.push(batch);
      room = FRAME_LIMIT_BYTES - FRAME_OVERHEAD_BYTES;
    }
    batch.push(uid);
    room -= size;
  }
  return result;
}

/** Whether one state of a user is newer than another; yes where one of them has no id. */
export function isNewer(state: UserState, known: UserState): boolean {
  return state.id === null || known.id === null || compareIds(state.id, known.id) > 0;
}

/** Whether a snapshot shows a user otherwise than known. An answer about an offline user has no id to compare. */
export function differs(state: UserState, known: UserState): boolean {
  if (state.id !== null && known.id !== null) {
    return isNewer(state, known);
  }
  return (
    state.status !== known.status ||
    state.lastSeenMs !== known.lastSeenMs ||
    !isDeepStrictEqual(state.meta, known.meta)
  );
}

/** Compare ids of events, `milliseconds-number`, both decimal: as text "9-0" would be higher than "10-0". */
export function compareIds(one: string, other: string): number {
  const [a, b] = [idNumbers(one), idNumbers(other)];
  for (const index of [0, 1] as const) {
    if (a[index] !== b[index]) {
      return a[index] < b[index] ? -1 : 1;
    }
  }
  return 0;
}

function idNumbers(id: string): readonly [bigint, bigint] {
  const match = /^(\d+)-(\d+)$/.exec(id);
  return match ? [BigInt(match[1] as string), BigInt(match[2] as string)] : [0n, 0n];
}
