/** What a client restores on a new connection, and asks for by itself: its watches, its passes, the rest of its login. */

import { Code, Kind, WATCHED_ROOMS_MAX } from "./constants.js";
import type { Environment } from "./environment.js";
import type { RequestFailed } from "./errors.js";
import type { Login, Update } from "./login.js";
import { type OwnRequest, OwnRequests } from "./own-requests.js";
import type { Connected, RoomChanged, WatchEnded } from "./pushes.js";
import { remainingLifetimeMs } from "./tokens.js";
import type { ValueMap } from "./values.js";
import type { WatchedRooms } from "./watched-rooms.js";
import { batches, type WatchedUsers } from "./watches.js";

const MAX_PASSES = 16; // that a server takes on one connection
const USERS_THAT_FIT = 32; // with their devices, into one answer: a refusal of so few is about the number of watches

/** How requests are sent. */
export interface Sender {
  request(kind: number, payload: ValueMap, parse: (answer: ValueMap) => void): Promise<void>;
  update(update: Update): Promise<void>;
  /** Sends a request to watch users, and applies its answer. */
  watch(uids: readonly string[]): Promise<unknown>;
  /** Sends a request for the roster, and applies its answer. */
  watchRoster(): Promise<unknown>;
  /** Sends a request to watch rooms, and applies its answer. */
  watchRooms(rooms: readonly string[]): Promise<unknown>;
  unwatch(uids: readonly string[]): void;
  report(push: WatchEnded | RoomChanged): void;
}

export class Restoration {
  private readonly passes = new Set<string>(); // the newest that a server has taken
  private readonly ownRequests: OwnRequests;

  constructor(
    private readonly watchedUsers: WatchedUsers,
    private readonly watchedRooms: WatchedRooms,
    private readonly login: Login,
    private readonly watchDevices: boolean,
    private readonly sender: Sender,
    environment: Environment,
  ) {
    this.ownRequests = new OwnRequests(environment, (queued) => this.watchesOfHidden(queued));
  }

  /** A new connection is logged in: requests what it has to have, and does not have by its login. */
  start({ timeMs }: Connected): void {
    for (const pass of this.passes) {
      if ((remainingLifetimeMs(pass, timeMs) ?? 1) <= 0) {
        this.passes.delete(pass);
      }
    }
    const passes = [...this.passes].map((pass) => this.passOf(pass));
    const roster = this.watchedUsers.followsRoster ? [this.roster] : [];
    this.ownRequests.start([
      this.roomsOf(this.login.roomsToJoin()), // first: leaving them for a moment is seen
      this.rest,
      ...passes,
      ...roster,
      ...this.watchesOf(this.watchedUsers.known(false)),
      ...batches(this.watchedRooms.states().keys(), WATCHED_ROOMS_MAX).map((rooms) => this.roomWatch(rooms)),
    ]);
  }

  /** The connection is lost, or the client has ended. */
  stop(): void {
    this.ownRequests.stop();
  }

  /** Requests watches of these users, now if there is a connection, and on the next one. */
  watch(uids: readonly string[]): void {
    this.ownRequests.add(this.watchesOf(uids));
  }

  /** Requests the roster, now if there is a connection, and on the next one. */
  watchRoster(): void {
    this.ownRequests.add([this.roster]);
  }

  /** Requests the states of those of the rooms that are watched. */
  watchRooms(rooms: readonly string[]): void {
    this.ownRequests.add([this.roomWatch(rooms)]);
  }

  /** The payload of a request to watch users. */
  watchPayload(uids: readonly string[]): ValueMap {
    return this.watchDevices ? { uids, detail: true } : { uids };
  }

  /** The program gives a pass; `answer` settles with its answer. */
  passGiven(answer: Promise<unknown>): void {
    this.ownRequests.passGiven(answer);
  }

  /** The server has taken a pass. */
  passTaken(pass: string): void {
    this.passes.delete(pass);
    this.passes.add(pass);
    for (const oldest of [...this.passes].slice(0, -MAX_PASSES)) {
      this.passes.delete(oldest);
    }
  }

  /** How often a pass or a token was taken. */
  get sight(): number {
    return this.ownRequests.sight;
  }

  /** Users are hidden in the answer to a watch that was sent at this `sight`. */
  usersAreHidden(sight: number): void {
    this.ownRequests.usersAreHidden(sight);
  }

  /** The server has taken a token, which may show users who were hidden. */
  tokenTaken(): void {
    this.ownRequests.tokenTaken();
  }

  /** Sends again what the login had to leave out, if that is not complete. */
  completeLogin(): void {
    this.ownRequests.add([this.roomsOf(this.login.roomsToJoin()), this.rest]);
  }

  /** Requests for the watched users who were `not_allowed`, and for whom no queued request asks. */
  private watchesOfHidden(queued: readonly OwnRequest[]): OwnRequest[] {
    const asked = new Set(queued.flatMap(({ uids }) => uids));
    const watches = this.watchesOf(this.watchedUsers.hidden(false).filter((uid) => !asked.has(uid)));
    const asksForRoster = this.watchedUsers.hidden(true).length > 0 && !queued.includes(this.roster);
    return asksForRoster ? [...watches, this.roster] : watches;
  }

  /** The users whom the backend has listed. */
  private readonly roster: OwnRequest = {
    kind: "watch",
    uids: [],
    send: () => (this.watchedUsers.followsRoster ? this.sender.watchRoster() : null),
    refused: ({ code, reason, message }) => {
      if (!this.watchedUsers.followsRoster) {
        return []; // the program has unwatched it since
      }
      if (code === Code.UNSUPPORTED && this.watchedUsers.rosterWasGranted) {
        // An older server, as during an upgrade: it can watch the users as they were listed last.
        return this.watchesOf(this.watchedUsers.known(true));
      }
      const uids = this.watchedUsers.endRoster();
      this.sender.report({ type: "watchEnded", uids, code, reason, message });
      return [];
    },
  };

  /** What the login had to leave out. */
  private readonly rest: OwnRequest = {
    kind: "rest",
    uids: [],
    send: () => {
      const change = this.login.rest();
      return change && this.sender.update(change);
    },
    refused: () => [],
  };

  /** Rooms that the login had to leave out; by halves if the server refuses one: it grants few updates at a time. */
  private roomsOf(rooms: readonly string[]): OwnRequest {
    return {
      kind: "rest",
      uids: [],
      send: () => {
        const wanted = this.login.roomsToJoin();
        const join = rooms.filter((room) => wanted.includes(room));
        return join.length > 0 ? this.sender.update({ join }) : null;
      },
      refused: () => halves(rooms).map((half) => this.roomsOf(half)),
    };
  }

  /** A pass of an earlier connection. */
  private passOf(pass: string): OwnRequest {
    return {
      kind: "pass",
      uids: [],
      send: () => {
        const payload = { uids: [], pass };
        return this.passes.has(pass) ? this.sender.request(Kind.WATCH, payload, () => undefined) : null;
      },
      refused: () => {
        this.passes.delete(pass);
        return [];
      },
    };
  }

  /** Watches of these users, for whom no call waits. */
  private watchesOf(uids: Iterable<string>): OwnRequest[] {
    return batches(uids).map((batch) => this.watchOf(batch));
  }

  /** Asks for users until a watch of them is granted, by this request or another, or removed. */
  private watchOf(batch: readonly string[]): OwnRequest {
    const watches = batch.map((uid) => {
      const watch = this.watchedUsers.watchOf(uid);
      return { uid, watch, grants: watch?.grants };
    });
    const current = (): string[] => {
      const isDue = ({ uid, watch, grants }: (typeof watches)[number]): boolean =>
        watch !== undefined && watch === this.watchedUsers.watchOf(uid) && watch.grants === grants;
      return watches.filter(isDue).map(({ uid }) => uid);
    };
    return {
      kind: "watch",
      get uids() {
        return current();
      },
      send: () => {
        const uids = current();
        return uids.length > 0 ? this.sender.watch(uids) : null;
      },
      refused: (error, others) => this.watchRefused(current(), error, others),
    };
  }

  /** Watches of an earlier connection; by halves if the answer is too large, or one of them is not allowed any more. */
  private roomWatch(rooms: readonly string[]): OwnRequest {
    const current = (): string[] => {
      const watched = this.watchedRooms.states();
      return rooms.filter((room) => watched.has(room));
    };
    return {
      kind: "watch",
      uids: [],
      send: () => {
        const due = current();
        return due.length > 0 ? this.sender.watchRooms(due) : null;
      },
      refused: ({ code }) => {
        const due = current();
        const parts = code === Code.UNSUPPORTED ? [] : halves(due);
        if (parts.length === 0) {
          this.watchedRooms.end(due).forEach((change) => this.sender.report(change));
        }
        return parts.map((half) => this.roomWatch(half));
      },
    };
  }

  private watchRefused(
    uids: readonly string[],
    error: RequestFailed,
    others: ReadonlySet<string>,
  ): readonly OwnRequest[] {
    if (error.code === Code.TOO_LARGE && this.watchDevices && uids.length > USERS_THAT_FIT) {
      return halves(uids).map((half) => this.watchOf(half)); // the answer, with all devices, would not fit into a frame
    }
    const ended = this.watchedUsers.refused(uids.filter((uid) => !others.has(uid)));
    if (ended.length > 0) {
      this.sender.unwatch(ended); // a request that timed out, or was aborted, may have been granted
      const { code, reason, message } = error;
      this.sender.report({ type: "watchEnded", uids: ended, code, reason, message });
    }
    return [];
  }
}

/** Splits a list in two; none if it has one element. */
function halves(list: readonly string[]): string[][] {
  const half = list.length >> 1;
  return half > 0 ? [list.slice(0, half), list.slice(half)] : [];
}
