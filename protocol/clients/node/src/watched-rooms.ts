/**
 * The watched rooms and their newest known states. No I/O.
 *
 * A watch ends with its connection, so the client watches again after a reconnect, and the answer shows what has
 * changed meanwhile; if its members follow the answer, their row does. On one connection the order of packets is enough: an answer has whole states, and each push
 * says what has changed since the packet before. So a push about a room without a known state means nothing.
 */

import type { RoomChanged, RoomRow, RoomState } from "./pushes.js";

interface Watch {
  /** Null until the first answer. */
  state: RoomState | null;
}

/** A request for rooms, and their watches when it was sent: the answer does not revive one that was ended since. */
export type RoomsRequest = ReadonlyMap<string, Watch>;

export class WatchedRooms {
  private readonly watches = new Map<string, Watch>();
  private readonly requests = new Set<RoomsRequest>(); // not answered

  /** Notes a request to watch rooms; `granted` or `failed` follows. */
  requested(rooms: Iterable<string>): RoomsRequest {
    const request = new Map<string, Watch>();
    for (const room of rooms) {
      const watch = this.watches.get(room) ?? { state: null };
      this.watches.set(room, watch);
      request.set(room, watch);
    }
    this.requests.add(request);
    return request;
  }

  /**
   * Applies the answer to a request; returns the changes of rooms whose state was known. Of the rooms in `later`
   * the members follow: a known state is kept until then.
   */
  granted(request: RoomsRequest, rows: readonly RoomRow[], later: readonly string[] = []): RoomChanged[] {
    const kept = new Set(later.filter((room) => this.watches.get(room)?.state));
    const current = rows.filter(({ room }) => request.get(room) === this.watches.get(room) && !kept.has(room));
    const changes = current.map((row) => this.apply(row));
    this.failed(request);
    return changes.filter((change) => change !== null);
  }

  /** The request failed. Drops and returns its rooms that nothing else watches. */
  failed(request: RoomsRequest): string[] {
    this.requests.delete(request);
    return this.drop([...request.keys()]);
  }

  /** Applies a pushed row; returns what has changed, null for nothing. */
  pushed(row: RoomRow): RoomChanged | null {
    return this.watches.get(row.room)?.state ? this.apply(row) : null;
  }

  /** The server lets this client watch the rooms no longer. */
  end(rooms: readonly string[]): RoomChanged[] {
    return rooms.map((room) => {
      const watch = this.watches.get(room);
      if (watch) {
        watch.state = null;
      }
      this.drop([room]); // unless a call waits for an answer about it
      return { type: "room", room, state: null, joined: [], left: [] };
    });
  }

  /** Stops watching some rooms, all if `rooms` is left out; returns them. */
  remove(rooms: readonly string[] = [...this.watches.keys()]): readonly string[] {
    rooms.forEach((room) => this.watches.delete(room));
    return rooms;
  }

  /** The newest known states. */
  states(): Map<string, RoomState> {
    const states = new Map<string, RoomState>();
    for (const [room, { state }] of this.watches) {
      if (state) {
        states.set(room, state);
      }
    }
    return states;
  }

  private apply(row: RoomRow): RoomChanged | null {
    const { room, count } = row;
    const watch = this.watches.get(room);
    if (!watch) {
      return null;
    }
    if (count === null) {
      return this.end([room])[0] ?? null;
    }
    const before = watch.state;
    const state = { count, members: membersAfter(before, row) };
    watch.state = state;
    return before && changeOf(room, before, state);
  }

  /** Removes those of the rooms that have no state, and that no request asks for; returns them. */
  private drop(rooms: readonly string[]): string[] {
    const isUnused = (room: string): boolean => {
      const watch = this.watches.get(room);
      return watch?.state === null && ![...this.requests].some((request) => request.get(room) === watch);
    };
    const dropped = rooms.filter(isUnused);
    this.remove(dropped);
    return dropped;
  }
}

/** The members that are shown; null if none are. */
function membersAfter(before: RoomState | null, { members, left }: RoomRow): readonly string[] | null {
  if (members === null || left === null) {
    return members;
  }
  return before?.members ? [...new Set([...without(before.members, left), ...members])] : null;
}

/** Returns the change from one state to another; null if they are the same. */
function changeOf(room: string, before: RoomState, state: RoomState): RoomChanged | null {
  const areKnown = before.members !== null && state.members !== null;
  const joined = areKnown ? without(state.members, before.members) : [];
  const left = areKnown ? without(before.members, state.members) : [];
  const isShown = (before.members === null) !== (state.members === null);
  const isChanged = before.count !== state.count || isShown || joined.length + left.length > 0;
  return isChanged ? { type: "room", room, state, joined, left } : null;
}

function without(uids: readonly string[], others: readonly string[]): string[] {
  const excluded = new Set(others);
  return uids.filter((uid) => !excluded.has(uid));
}
