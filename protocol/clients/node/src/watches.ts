/**
 * The watched users and their newest known states. No I/O.
 *
 * A watch ends with its connection, so the client watches again after a reconnect. The snapshot that answers
 * is compared with the known states, by their ids: each change is reported once, and never an older state
 * after a newer one.
 *
 * A user is watched because the program has named them, or only because of the roster: then the watch is listed.
 * The answer to a request for the roster is the whole roster, so listed users who are not in it are gone. Users
 * whom the program has named stay watched, by the server too, when the roster loses them.
 */

import { utf8 } from "./bytes.js";
import { FRAME_LIMIT_BYTES, UIDS_MAX } from "./constants.js";
import { MEANWHILE, type PresenceChanged, REMOVED, type UserState, WATCHED } from "./pushes.js";
import { isEqual } from "./values.js";

// In the frame of a watch: everything except the names; and the header of each name.
const FRAME_OVERHEAD_BYTES = 32;
const NAME_HEADER_BYTES = 2;
const HIDDEN = "not_allowed";
const NOTHING_KNOWN = { sinceMs: null, lastSeenMs: null, id: null, meta: {}, reason: null, devices: null };
/** Of users whose state was not received yet, and for whom no call waits. */
const UNKNOWN: UserState = { status: "unknown", ...NOTHING_KNOWN };
/** Of users who have left the roster while the client was offline. */
const GONE: UserState = { status: REMOVED, ...NOTHING_KNOWN };

interface Watch {
  /** Null until the first answer, or a change pushed before it. */
  state: UserState | null;
  /** Whether it lasts if the pending requests fail: one was granted, or the client asks for it by itself. */
  isKept: boolean;
  /** Whether it lasts only because of the roster. */
  isListed: boolean;
  /** The pending requests for this user, before the first answer. */
  readonly requests: Set<number>;
  /** How many answers it was in. */
  grants: number;
  /** Whether the server may grant a request that is not waited for any more. */
  mayBeGranted: boolean;
}

/** A request for the roster that is not answered yet. */
export interface RosterRequest {
  /** Users unwatched since it was sent. */
  readonly unwatched: Set<string>;
  /** Whether the roster was. */
  isOver: boolean;
}

export class WatchedUsers {
  /** Whether the roster is watched, again after each login. */
  followsRoster = false;
  /** Whether a server has granted that, since the client follows it. */
  rosterWasGranted = false;
  private readonly watches = new Map<string, Watch>();
  private readonly rosterRequests = new Set<RosterRequest>();
  private readonly unwatched = new Set<readonly string[]>(); // by requests that the server may not have read
  private requests = 0;

  /** The users whom the server did not let this client see, by name or because of the roster. */
  hidden(isListed: boolean): string[] {
    return this.uids((watch) => watch.isListed === isListed && watch.state !== null && isHidden(watch.state));
  }

  /** The users with a known state who are watched only because of the roster, or the others. */
  known(isListed: boolean): string[] {
    return this.uids((watch) => watch.isListed === isListed && watch.state !== null);
  }

  private uids(has: (watch: Watch) => boolean): string[] {
    return [...this.watches].filter(([, watch]) => has(watch)).map(([uid]) => uid);
  }

  /** Adds users whose state may arrive later; returns those whom the program did not watch before. */
  add(uids: Iterable<string>): string[] {
    const isNamed = ({ isKept, isListed }: Watch): boolean => isKept && !isListed;
    const added = [...uids].filter((uid) => !isNamed(this.getOrAdd(uid)));
    for (const uid of added) {
      const watch = this.getOrAdd(uid);
      watch.state ??= UNKNOWN;
      watch.isKept = true;
      watch.isListed = false;
    }
    return added;
  }

  /** Follows the roster from now on; returns whether that is new. */
  followRoster(): boolean {
    const isNew = !this.followsRoster;
    this.followsRoster = true;
    return isNew;
  }

  /** Notes a request for the roster. */
  rosterRequested(): RosterRequest {
    const request = { unwatched: new Set<string>(), isOver: false };
    this.rosterRequests.add(request);
    return request;
  }

  /** A request for the roster failed; returns whether the server has to be told if it grants it all the same. */
  rosterFailed(request: RosterRequest): boolean {
    this.rosterRequests.delete(request);
    return !request.isOver && !this.followsRoster && this.rosterRequests.size === 0;
  }

  /** Follows the roster no longer, also if a request for it is granted that was sent before. */
  unwatchRoster(): void {
    this.rosterRequests.forEach((request) => (request.isOver = true));
    this.rosterRequests.clear();
    this.endRoster();
  }

  /**
   * Applies the answer to a request for the roster; returns the changes of users whose state was known.
   *
   * @param isOwn whether no call of the program returns the states: those of new users are changes, too.
   */
  applyRoster(
    request: RosterRequest,
    states: ReadonlyMap<string, UserState>,
    isOwn: boolean,
  ): PresenceChanged[] {
    this.rosterRequests.delete(request);
    if (request.isOver) {
      return [];
    }
    this.followsRoster = this.rosterWasGranted = true;
    const listed = new Map([...states].filter(([uid]) => !request.unwatched.has(uid)));
    const gone = this.known(true).filter((uid) => !listed.has(uid));
    gone.forEach((uid) => this.unlist(uid));
    const changes: PresenceChanged[] = gone.map((uid) => presenceChanged(uid, GONE, REMOVED));
    for (const [uid, state] of listed) {
      const watch = this.getOrAdd(uid);
      if (isOwn) {
        watch.state ??= UNKNOWN;
      }
      this.list(watch);
      changes.push(...this.answered(uid, watch, state));
    }
    return changes;
  }

  /** Keeps a watch because of the roster, unless it is kept already. */
  private list(watch: Watch): void {
    watch.isListed ||= !watch.isKept;
    watch.isKept = true;
  }

  /** Ends a watch that was only there because of the roster; calls that wait for an answer do so. */
  private unlist(uid: string): void {
    const watch = this.watches.get(uid);
    if (watch && watch.requests.size > 0) {
      watch.state = null;
      watch.isKept = watch.isListed = false;
    } else {
      this.watches.delete(uid);
    }
  }

  /** Follows the roster no longer; returns the users watched only because of it, who are not any more. */
  endRoster(): string[] {
    this.followsRoster = this.rosterWasGranted = false;
    const ended = this.known(true);
    ended.forEach((uid) => this.unlist(uid));
    return ended;
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
    const flags = { isKept: false, isListed: false, mayBeGranted: false };
    const watch = { state: null, requests: new Set<number>(), grants: 0, ...flags };
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

  /**
   * Applies the answer to a request; returns the changes of users whose state was known.
   *
   * @param isOwn whether the client has asked by itself, for users whom it watches already.
   */
  applySnapshot(states: ReadonlyMap<string, UserState>, isOwn = false): PresenceChanged[] {
    const changes: PresenceChanged[] = [];
    for (const [uid, state] of states) {
      const watch = this.watches.get(uid);
      if (!watch) {
        continue; // unwatched in the meantime
      }
      watch.grants += 1;
      if (isOwn) {
        watch.mayBeGranted ||= !watch.isKept; // it has ended since, and a call of the program decides about it
      } else {
        watch.requests.clear();
        watch.isKept = true;
        watch.isListed = false;
      }
      changes.push(...this.answered(uid, watch, state));
    }
    return changes;
  }

  /** Takes the state of an answer; returns the change, if there was another state. */
  private answered(uid: string, watch: Watch, state: UserState): PresenceChanged[] {
    const before = watch.state;
    if (before && differs(state, before)) {
      watch.state = state;
      return [presenceChanged(uid, state, before === UNKNOWN ? WATCHED : MEANWHILE)];
    }
    if (!before?.id) {
      watch.state = state; // the first state, or the same with an id
    }
    return [];
  }

  /** Applies a pushed change; returns false if the user is not watched or the state is not newer. */
  applyChange({ uid, state, reason }: PresenceChanged): boolean {
    if (reason === REMOVED) {
      const wasListed = this.watches.get(uid)?.isListed === true;
      if (wasListed) {
        this.unlist(uid);
      }
      return wasListed;
    }
    if ((reason === WATCHED || reason === HIDDEN) && this.mayJoin(uid)) {
      this.list(this.getOrAdd(uid));
    }
    const watch = this.watches.get(uid);
    if (!watch || (watch.state && !isNewer(state, watch.state))) {
      return false;
    }
    watch.state = state;
    return true;
  }

  /** Whether to watch a user whom the server adds: not if it is about to read an unwatch. */
  private mayJoin(uid: string): boolean {
    return this.followsRoster && ![...this.unwatched].some((uids) => uids.includes(uid));
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
        watch.isKept = watch.isListed = false;
      } else if (watch) {
        ended.push(uid);
      }
    }
    this.drop(ended);
    return ended;
  }

  /** As `remove`, by a request; returns what to call when it is answered: before, the server may add users. */
  removeBy(uids: readonly string[] | undefined): () => void {
    const unwatched = uids ?? [];
    this.unwatched.add(unwatched);
    this.remove(uids);
    return () => this.unwatched.delete(unwatched);
  }

  /** Stops watching some users, all and the roster if `uids` is left out. */
  remove(uids?: readonly string[]): void {
    for (const request of this.rosterRequests) {
      uids?.forEach((uid) => request.unwatched.add(uid));
    }
    if (uids === undefined) {
      this.unwatchRoster();
    }
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

function presenceChanged(uid: string, state: UserState, reason: string): PresenceChanged {
  return { type: "presence", uid, state, reason };
}

/** Whether the server did not let this client see the user. */
export function isHidden({ status }: UserState): boolean {
  return status === HIDDEN;
}

/** Splits names into lists that each fit into one request. */
export function batches(names: Iterable<string>, most = UIDS_MAX): string[][] {
  const result: string[][] = [];
  let batch: string[] = [];
  let space = 0;
  for (const name of names) {
    const size = utf8(name).length + NAME_HEADER_BYTES;
    if (batch.length === most || size > space) {
      batch = [];
      result.push(batch);
      space = FRAME_LIMIT_BYTES - FRAME_OVERHEAD_BYTES;
    }
    batch.push(name);
    space -= size;
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
