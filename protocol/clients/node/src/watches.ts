/**
 * The watched users and their newest known states. No I/O.
 *
 * A watch ends with its connection, so the client watches again after a reconnect. The snapshot that answers
 * is compared with the known states, by their ids: each change is reported once, and never an older state
 * after a newer one.
 */

import { utf8 } from "./bytes.js";
import { FRAME_LIMIT_BYTES, UIDS_MAX } from "./constants.js";
import { MEANWHILE, type PresenceChanged, type UserState, WATCHED } from "./pushes.js";
import { isEqual } from "./values.js";

// In the frame of a watch: everything except the uids; and the header of each uid.
const FRAME_OVERHEAD_BYTES = 32;
const UID_HEADER_BYTES = 2;
const HIDDEN = "not_allowed";
/** Of users whose state was not received yet, and for whom no call waits. */
const UNKNOWN: UserState = {
  status: "unknown",
  sinceMs: null,
  lastSeenMs: null,
  id: null,
  meta: {},
  reason: null,
  devices: null,
};

interface Watch {
  /** Null until the first answer, or a change pushed before it. */
  state: UserState | null;
  /** Whether it lasts if the pending requests fail: one was granted, or the client asks for it by itself. */
  isKept: boolean;
  /** The pending requests for this user, before the first answer. */
  readonly requests: Set<number>;
  /** How many answers it was in. */
  grants: number;
  /** Whether the server may grant a request that is not waited for any more. */
  mayBeGranted: boolean;
}

export class WatchedUsers {
  private readonly watches = new Map<string, Watch>();
  private requests = 0;

  /** The users whom the server did not let this client see. */
  hidden(): string[] {
    return [...this.watches].filter(([, { state }]) => state && isHidden(state)).map(([uid]) => uid);
  }

  /** Adds users whose state arrives later; returns those who were not watched before. */
  add(uids: Iterable<string>): string[] {
    const added = [...uids].filter((uid) => !this.watches.get(uid)?.isKept);
    for (const uid of added) {
      const watch = this.getOrAdd(uid);
      watch.state ??= UNKNOWN;
      watch.isKept = true;
    }
    return added;
  }

  /** Notes a request to watch users; returns its number. */
  requestSent(uids: Iterable<string>): number {
    const request = (this.requests += 1);
    for (const uid of uids) {
      this.getOrAdd(uid).requests.add(request);
    }
    return request;
  }

  private getOrAdd(uid: string): Watch {
    const known = this.watches.get(uid);
    if (known) {
      return known;
    }
    const watch = { state: null, isKept: false, requests: new Set<number>(), grants: 0, mayBeGranted: false };
    this.watches.set(uid, watch);
    return watch;
  }

  /**
   * The request failed. Drops its users that no other request watches; returns those whom the server may watch
   * all the same.
   *
   * @param mayBeGranted whether it is only not waited for any more.
   */
  requestFailed(request: number, mayBeGranted: boolean): string[] {
    const uids: string[] = [];
    for (const [uid, watch] of this.watches) {
      if (watch.requests.delete(request)) {
        watch.mayBeGranted ||= mayBeGranted;
        if (!watch.isKept && watch.requests.size === 0) {
          uids.push(uid);
        }
      }
    }
    return this.drop(uids);
  }

  /** Removes watches; returns those users whom the server may watch all the same. */
  private drop(uids: readonly string[]): string[] {
    const uncertain = uids.filter((uid) => this.watches.get(uid)?.mayBeGranted);
    this.remove(uids);
    return uncertain;
  }

  /** Applies the answer to a request; returns the changes of users whose state was known. */
  applySnapshot(states: ReadonlyMap<string, UserState>): PresenceChanged[] {
    const changes: PresenceChanged[] = [];
    for (const [uid, state] of states) {
      const watch = this.watches.get(uid);
      if (!watch) {
        continue; // unwatched in the meantime
      }
      watch.requests.clear();
      watch.grants += 1;
      watch.isKept = true;
      if (watch.state && differs(state, watch.state)) {
        changes.push({ type: "presence", uid, state, reason: watch.state === UNKNOWN ? WATCHED : MEANWHILE });
        watch.state = state;
      } else if (!watch.state?.id) {
        watch.state = state; // the first state, or the same with an id
      }
    }
    return changes;
  }

  /** Applies a pushed change; returns false if the user is not watched or the state is not newer. */
  applyChange({ uid, state }: PresenceChanged): boolean {
    const watch = this.watches.get(uid);
    if (!watch || (watch.state && !isNewer(state, watch.state))) {
      return false;
    }
    watch.state = state;
    return true;
  }

  /**
   * The server refused a watch of these users. Drops and returns those for whom no call of the program waits; its
   * answer decides about the others.
   */
  refused(uids: readonly string[]): string[] {
    const ended: string[] = [];
    for (const uid of uids) {
      const watch = this.watches.get(uid);
      if (watch && watch.requests.size > 0) {
        watch.state = null;
        watch.isKept = false;
      } else if (watch) {
        ended.push(uid);
      }
    }
    this.drop(ended);
    return ended;
  }

  /** Stops watching some users, all if `uids` is left out. */
  remove(uids?: Iterable<string>): void {
    for (const uid of uids ?? [...this.watches.keys()]) {
      this.watches.delete(uid);
    }
  }

  has(uid: string): boolean {
    return this.watches.has(uid);
  }

  /** The watch of a user, the same until it is removed; undefined if there is none. */
  watchOf(uid: string): { readonly grants: number } | undefined {
    return this.watches.get(uid);
  }

  /** Returns a function that says later of each of these users whether it was watched all the time since. */
  watchedSince(uids: readonly string[]): (uid: string) => boolean {
    const watches = new Map(uids.map((uid) => [uid, this.watches.get(uid)]));
    return (uid) => watches.get(uid) !== undefined && watches.get(uid) === this.watches.get(uid);
  }

  /** The newest known state; null if there is none. */
  state(uid: string): UserState | null {
    return this.watches.get(uid)?.state ?? null;
  }

  /** The newest known states. */
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

/** Whether the server did not let this client see the user. */
export function isHidden({ status }: UserState): boolean {
  return status === HIDDEN;
}

/** Splits uids into lists that each fit into one request. */
export function batches(uids: Iterable<string>): string[][] {
  const result: string[][] = [];
  let batch: string[] = [];
  let room = 0;
  for (const uid of uids) {
    const size = utf8(uid).length + UID_HEADER_BYTES;
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

/** Whether a state is newer than the known one; true if one of them has no id. */
export function isNewer(state: UserState, known: UserState): boolean {
  return state.id === null || known.id === null || compareIds(state.id, known.id) > 0;
}

/**
 * Whether the state in an answer differs from the known one. Without ids, as of an offline user, compares
 * what they show.
 */
export function differs(state: UserState, known: UserState): boolean {
  if (state.id !== null && known.id !== null) {
    return isNewer(state, known);
  }
  return (
    state.status !== known.status ||
    state.lastSeenMs !== known.lastSeenMs ||
    !isEqual(state.meta, known.meta)
  );
}

/** Compares event ids, `milliseconds-number`, by their numbers: as text, "9-0" is above "10-0". */
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
