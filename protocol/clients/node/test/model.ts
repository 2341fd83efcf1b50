/**
 * A model of the client: random interleavings of what a program, a server, a network and the clock may do, and a
 * reference that says what must hold.
 *
 * The world drives a real `PresenceClient` through its public face, in virtual time. The program calls it, aborts
 * calls and iterates; the server answers in any order or not at all, refuses, pushes and leaves; now and then all
 * becomes good for some minutes, and then the client has to be online with what it watches. Every number is drawn
 * from the seed, so a seed repeats a run.
 *
 * What is checked:
 *
 * - runs: each `connect` after an end begins one, each has one `end`, nothing is reported outside of one, and a
 *   promise of `connect` belongs to its run;
 * - one connection at most; without a run no connection and no timer;
 * - every call settles in its time; what fails as not done was not done, and what resolves was done once;
 * - messages to one user arrive in the order of the calls, and none waits without a reason: for the answer to another
 *   to the same user, or a pause after a refusal; soon after a delivery it waits for a refused one only;
 * - only a refusal by the server ends a client that has been online, or is persistent;
 * - a refused token is never sent again, one that was not refused always is, and only two refusals end a client;
 * - keepalives are sent in time;
 * - after a busy answer the pause before a request of the client's own is that of its own failures;
 * - changes of a user never go back, and in a good world the watches of client and server agree, those of the
 *   roster too, which the backend changes meanwhile;
 * - a login has the rooms that updates have granted, and in a good world the client knows those of its session;
 * - each change of a watched room follows from the state before, and in a good world client and server agree about
 *   the rooms that are watched, and about who is in them;
 * - an iterator gives every message, or says how many it has dropped.
 */

import assert from "node:assert/strict";

import {
  Code,
  type Connected,
  type Delivered,
  type Dropped,
  Ended,
  Kind,
  LoginRefused,
  mayReconnect,
  NotConnected,
  type Packet,
  PresenceClient,
  type Receipt,
  RequestFailed,
  RequestTimeout,
  type RoomState,
  type Value,
  type ValueMap,
} from "../src/index.js";
import type { Update } from "../src/login.js";
import { STEADY_MS } from "../src/message-lines.js";
import { MESSAGE_RETRY_INTERVAL_MS } from "../src/session.js";
import { KEEPALIVE_MS, SERVER_TIME_S, token as jsonWebToken } from "./driver.js";
import { type VirtualPeer, VirtualServer, VirtualTime } from "./virtual.js";

const REQUEST_TIMEOUT_MS = 5000;
const CONFIRM_MS = 4000;
const LOGOUT_TIMEOUT_MS = 2000;
const USERS = ["bob", "eve", "kim", "zoe"];
const RECIPIENTS = ["bob", "eve"];
const HIDDEN_USER = "zoe";
const ROOMS = ["hall", "lobby", "roof"]; // to be watched
const MEMBERS_SHOWN = 2;
const MAX_MESSAGES = 5; // of an iterator
const GOOD_TIME_MS = 180_000; // in a good world: longer than any pause that is left from a bad one
const SLACK_MS = 1; // of timers, which are whole milliseconds

type Random = () => number;

/** mulberry32. */
function randomOf(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

interface Request {
  readonly packet: Packet;
  readonly peer: VirtualPeer;
  /** Whether the client has sent it by itself. */
  readonly isOwn: boolean;
  /** Of a message: whether the recipient got it when the server read it. */
  readonly isDelivered: boolean;
  readonly number: number;
  readonly timesOutAt: number;
  /** Whether the client does not wait for it any more. */
  isTimedOut: boolean;
}

interface Call {
  readonly name: string;
  readonly dueAt: number;
  readonly controller: AbortController;
  /** The message, if it is one. */
  readonly message: Message | null;
}

interface Message {
  readonly number: number;
  readonly to: string;
}

interface Reading {
  readonly iterator: AsyncIterableIterator<Delivered<number> | Dropped>;
  /** How many messages were pushed since it began, and how many it has given or counted. */
  pushed: number;
  read: number;
  lastBody: number;
  pending: boolean;
  over: boolean; // left or read to its end
  isOfRun: boolean; // whether the client has not ended since
}

/** After a busy answer: when the client must have asked again. */
interface Expected {
  readonly key: string;
  readonly peer: VirtualPeer;
  readonly dueAt: number;
}

/** What a server does for a client that follows its roster. */
interface Following {
  /** Whom the client was told of, and of these whom it may see: they are watched. */
  readonly members: Set<string>;
  readonly listed: Set<string>;
  readonly unwatched: Set<string>;
}

export class World {
  readonly trace: string[] = [];
  private readonly random: Random;
  private readonly time: VirtualTime;
  private readonly server: VirtualServer;
  private readonly client: PresenceClient;
  private isGood = false;
  private callDepth = 0;
  private readonly problems: unknown[] = []; // found where no exception is of use

  // The reference: runs
  private runs = 0; // begun
  private ends = 0;
  private isRunning = false;
  private isOnline = false;
  private wasOnline = false; // in this run
  private mayEnd = false; // the server has refused this run
  private readonly persistent: boolean;
  private beginsAfterLogout = false;
  private online: Promise<Connected> | null = null; // of this run
  private readonly oldPromises = new Set<Promise<Connected>>();

  // Calls, messages, iterators
  private readonly calls = new Set<Call>();
  private messages = 0; // called
  private readonly delivered = new Map<string, number>(); // by recipient, the last
  private readonly deliveries = new Map<number, number>(); // how often, by message
  private readonly away = new Set<string>(); // recipients who have lost their connection
  private readonly refusedMessages = new Set<number>(); // since they were sent last
  private readonly refusedAt = new Map<string, number>(); // by recipient: when the client was told last
  private readonly steadyUntil = new Map<string, number>(); // by recipient, on this connection
  private readonly readings: Reading[] = [];
  private pushedMessages = 0;

  // Tokens
  private readonly fetches: boolean;
  private tokens = 0;
  private currentToken = "";
  private returnedToken: string | null = null; // by the last call; null: it failed
  private readonly expiries = new Map<string, number>(); // Unix milliseconds
  private readonly refusedTokens = new Set<string>();
  private updates = 0; // requested
  private isQuiet = false; // as granted
  private quietOfLogin: boolean | null = null; // of one that is not checked yet
  private rooms = new Set<string>(); // as granted
  private roomsOfLogin: readonly string[] | null = null; // of one that is not checked yet
  private readonly roomsOf = new Map<VirtualPeer, Set<string>>(); // by connection, as the server has them
  private refusalsInARow = 0; // of logins, in this run
  private readonly pendingFetches: { resolve(token: string): void; reject(error: Error): void }[] = [];

  // Watches
  private readonly watches = new Map<VirtualPeer, Set<string>>(); // by connection
  private readonly leaving = new Set<VirtualPeer>(); // connections that have logged out
  private readonly passesOf = new Set<VirtualPeer>(); // connections that have one
  private readonly shown = new Map<string, { id: number; status: string }>(); // the truth
  private readonly seen = new Map<string, number>(); // the newest id that the client has reported
  private readonly roster = new Set<string>();
  private readonly followings = new Map<VirtualPeer, Following>();
  private readonly older = new Set<VirtualPeer>(); // connections to servers that keep no rosters
  private followsRoster = false; // the client, as it was told to
  private rosterEnds = 0; // how often it was told not to
  private readonly uncertain = new Set<string>(); // whom the server may watch without the client on this connection
  private readonly crowds = new Map(ROOMS.map((room) => [room, new Set<string>()] as const)); // the truth
  private readonly forbidden = new Set<string>(); // rooms
  private readonly told = new Map<VirtualPeer, Map<string, RoomState>>(); // of watched rooms, by connection
  private readonly reported = new Map<string, RoomState>(); // of watched rooms, by the client
  private passes = 0;
  private readonly abandonedPasses = new Set<string>();
  private requests: Request[] = []; // not answered
  private requestsReceived = 0; // requests
  private readonly grantedAt = new Map<string, number>(); // by user: as many requests were received by then
  private readonly forgottenAt = new Map<string, number>(); // by user: as many were received before its unwatch
  private readonly failures = new Map<string, number>(); // of the client's own requests in a row, by user or pass
  private expected: Expected[] = [];
  private keepalives = 0; // seen on the newest connection
  private keepalivesOf: VirtualPeer | null = null;
  private keepaliveSeenAt = 0;

  constructor(seed: number) {
    this.random = randomOf(seed);
    this.time = new VirtualTime(this.random);
    this.server = new VirtualServer((packet, peer) => this.received(packet, peer));
    this.fetches = this.random() < 0.6;
    this.persistent = this.random() < 0.7;
    this.client = new PresenceClient(
      {
        connector: this.server,
        uid: "ann",
        persistent: this.persistent,
        requestTimeoutMs: REQUEST_TIMEOUT_MS,
        maxMessages: MAX_MESSAGES,
        askEvery: 1 + Math.floor(this.random() * 3),
        token: this.fetches ? () => this.fetchToken() : undefined,
      },
      this.time,
    );
    USERS.forEach((uid) => this.shown.set(uid, { id: 1, status: "offline" }));
    this.listen();
  }

  /** Takes `count` random steps, in a good world at the end; returns how many it took. */
  async run(count: number): Promise<number> {
    for (let step = 0; step < count; step += 1) {
      await this.step();
      await this.time.settle();
      this.check();
      if (this.random() < 0.01) {
        await this.becomeGood();
      }
    }
    await this.becomeGood();
    await this.finish();
    return count;
  }

  // Steps

  /** What usually comes next; otherwise a client would hardly ever be online. */
  private usual(): void | Promise<void> {
    switch (this.client.state) {
      case "fetching a token":
        return this.endFetch();
      case "connecting":
        return this.openOrFail();
      case "waiting to return":
        return this.advanceToTimer();
      case "idle":
      case "ended":
        return this.connect();
      default:
        return this.answer();
    }
  }

  private async step(): Promise<void> {
    if (this.random() < 0.4) {
      await this.usual();
      return;
    }
    const steps: readonly (readonly [number, () => void | Promise<void>])[] = [
      [3, () => this.connect()],
      [1, () => this.disconnect()],
      [1, () => this.logOut()],
      [12, () => this.sendMessage(this.anyRecipient())],
      [4, () => this.sendBurst(this.anyRecipient())],
      [4, () => this.watch()],
      [3, () => this.watchNowait()],
      [2, () => this.unwatch()],
      [2, () => this.watchRoster()],
      [1, () => this.watchRosterNowait()],
      [6, () => this.list()],
      [2, () => this.watchRooms()],
      [1, () => this.unwatchRooms()],
      [4, () => this.enterOrLeave()],
      [0.5, () => this.forbidOrAllow()],
      [2, () => this.addPass()],
      [3, () => this.call("query", (signal) => this.client.query([this.anyUser()], { signal }))],
      [2, () => this.update()],
      [1, () => this.call("setIdleTimeout", (signal) => this.client.setIdleTimeout(30_000, { signal }))],
      [3, () => this.abort()],
      [3, () => this.read()],
      [6, () => this.openOrFail()],
      [20, () => this.answer()],
      [6, () => this.push()],
      [3, () => this.deliver()],
      [2, () => this.lose()],
      [1, () => this.sendGarbage()],
      [2, () => this.sayGoodbye()],
      [4, () => this.endFetch()],
      [12, () => this.comeOrGo(this.anyRecipient())],
      [8, () => this.advanceToTimer()],
      [1, () => this.time.wake()],
      [6, () => this.time.advance(this.below(3000))],
    ];
    let rest = this.random() * steps.reduce((sum, [weight]) => sum + weight, 0);
    for (const [weight, take] of steps) {
      rest -= weight;
      if (rest < 0) {
        await take();
        return;
      }
    }
  }

  private below(limit: number): number {
    return Math.floor(this.random() * limit);
  }

  private pick<T>(list: readonly T[]): T | undefined {
    return list[this.below(list.length)];
  }

  private anyUser(): string {
    return this.pick(USERS) as string;
  }

  private note(what: string): void {
    this.trace.push(`${this.time.now()} ${this.client?.state}: ${what}`);
  }

  // The program

  private listen(): void {
    this.client.on("connected", () => {
      this.note("connected");
      assert.ok(this.isRunning, "connected outside of a run");
      assert.ok(!this.isOnline, "connected twice");
      this.isOnline = this.wasOnline = true;
    });
    this.client.on("disconnected", ({ reason, retryInMs }) => {
      this.note(`disconnected: ${reason}`);
      assert.ok(this.isRunning, "disconnected outside of a run");
      assert.ok(retryInMs >= 0);
      this.isOnline = false;
      if (reason === "no_token") {
        const token = this.returnedToken;
        const isExpired = token !== null && (this.expiries.get(token) ?? Infinity) <= this.serverTimeMs();
        const isUseless = token === null || this.refusedTokens.has(token) || isExpired;
        assert.ok(isUseless, `no_token, although ${token} was never refused`);
      }
    });
    this.client.on("goodbye", () => assert.ok(this.isRunning, "goodbye outside of a run"));
    this.client.on("watchEnded", ({ code }) => (this.followsRoster &&= code !== Code.UNSUPPORTED));
    this.client.on("presence", ({ uid, state, reason }) => {
      if (reason === "removed") {
        assert.ok(!this.client.watched().has(uid), `${uid} is watched without being in the roster`);
        this.seen.delete(uid);
        return;
      }
      const id = Number(state.id?.split("-")[0] ?? NaN);
      const before = this.seen.get(uid) ?? 0;
      assert.ok(!(id < before), `the state of ${uid} went back from ${before} to ${id}`);
      if (id > 0) {
        this.seen.set(uid, id);
      }
    });
    this.client.on("room", ({ room, state, joined, left }) => {
      const before = this.reported.get(room);
      assert.ok(before, `a change of ${room} before its state`);
      if (!state) {
        this.reported.delete(room);
        return;
      }
      if (before.members && state.members) {
        const expected = [...before.members.filter((uid) => !left.includes(uid)), ...joined];
        assert.deepEqual([...state.members].sort(), expected.sort(), `who is in ${room}`);
      }
      this.reported.set(room, state);
    });
    this.client.on("end", (error) => {
      this.note(`end: ${String(error)}`);
      this.ends += 1;
      this.readings.forEach((reading) => (reading.isOfRun = false));
      assert.ok(this.isRunning, "an end outside of a run");
      const isFirstAttempt = !this.persistent && !this.wasOnline;
      assert.ok(error === null || this.mayEnd || isFirstAttempt, `an end without a reason: ${String(error)}`);
      if (
        this.fetches &&
        error instanceof LoginRefused &&
        error.code === Code.AUTH_FAILED &&
        this.wasOnline
      ) {
        assert.ok(this.refusalsInARow >= 2, "one refused token ended the client");
      }
      this.isRunning = this.isOnline = this.wasOnline = false;
      if (this.beginsAfterLogout) {
        this.beginRun();
      }
    });
  }

  private beginRun(): void {
    this.beginsAfterLogout = false;
    this.isRunning = true;
    this.runs += 1;
    this.refusalsInARow = 0;
    this.mayEnd = false;
  }

  /** Calls the client; what it sends meanwhile is the program's. */
  private calling<T>(call: () => T): T {
    this.callDepth += 1;
    try {
      return call();
    } finally {
      this.callDepth -= 1;
    }
  }

  private connect(): void {
    const isLoggingOut = this.client.state === "logging out";
    const begins = !this.isRunning || (isLoggingOut && !this.beginsAfterLogout);
    if (begins && this.online) {
      this.oldPromises.add(this.online);
    }
    if (isLoggingOut) {
      this.beginsAfterLogout = true;
    } else if (!this.isRunning) {
      this.beginRun();
    }
    const promise = this.client.connect();
    this.note("connect");
    assert.ok(!this.oldPromises.has(promise), "connect returned the promise of an earlier run");
    if (begins) {
      this.online = promise;
      const run = this.runs + (this.beginsAfterLogout ? 1 : 0);
      promise
        .then(
          () =>
            assert.ok(
              this.runs > run || this.wasOnline || !this.isRunning,
              "connect resolved before a login",
            ),
          () => {
            const isOver = this.runs > run || !this.isRunning || this.beginsAfterLogout;
            assert.ok(isOver || this.oldPromises.has(promise), "connect rejected on a client that goes on");
          },
        )
        .catch((error: unknown) => this.problems.push(error));
    } else {
      assert.equal(promise, this.online, "connect returned another promise in the same run");
    }
  }

  private update(): void {
    const quiet = (this.updates += 1) % 2 === 1;
    const join = [`r${this.updates % 5}`];
    const leave = [`r${(this.updates + 2) % 5}`];
    const rooms = this.updates % 7 === 0 ? ["r1", "r2", "r3"] : undefined;
    const send = async (signal: AbortSignal): Promise<void> => {
      await this.client.update({ status: "away", quiet, rooms, join, leave }, { signal });
      this.isQuiet = quiet;
      this.rooms = roomsAfter(this.rooms, { rooms, join, leave });
    };
    this.call(`update, quiet ${quiet}`, send);
  }

  private disconnect(): void {
    this.note("disconnect");
    this.cancelNextRun();
    this.client.disconnect();
    assert.ok(["ended", "idle"].includes(this.client.state));
  }

  private cancelNextRun(): void {
    if (this.beginsAfterLogout && this.online) {
      this.oldPromises.add(this.online);
    }
    this.beginsAfterLogout = false;
  }

  private logOut(): void {
    this.cancelNextRun();
    this.call("logout", () => this.client.logout(), LOGOUT_TIMEOUT_MS);
  }

  private call(
    name: string,
    start: (signal: AbortSignal) => Promise<unknown>,
    timeoutMs = REQUEST_TIMEOUT_MS,
    message: Message | null = null,
  ): void {
    this.note(name);
    const controller = new AbortController();
    const call: Call = { name, dueAt: this.time.now() + timeoutMs, controller, message };
    this.calls.add(call);
    this.calling(() => start(controller.signal))
      .then(
        () => this.settled(call, null),
        (error: unknown) => this.settled(call, error),
      )
      .catch((error: unknown) => this.problems.push(error));
  }

  private settled(call: Call, error: unknown): void {
    assert.ok(this.calls.delete(call), "settled twice");
    if (call.message && (call.controller.signal.aborted || error instanceof RequestTimeout)) {
      this.steadyUntil.delete(call.message.to); // the next waiting one may go alone
    }
    if (call.controller.signal.aborted || call.message === null) {
      return;
    }
    const { number } = call.message;
    const times = this.deliveries.get(number) ?? 0;
    if (error === null) {
      assert.equal(times, 1, `message ${number} was sent, and delivered ${times} times`);
    } else if (error instanceof RequestFailed || error instanceof NotConnected || error instanceof Ended) {
      assert.equal(times, 0, `message ${number} failed with ${String(error)}, but was delivered`);
    } else {
      assert.ok(times <= 1);
    }
  }

  private anyRecipient(): string {
    return this.pick(RECIPIENTS) as string;
  }

  /** Messages to a user who comes and goes meanwhile; some are answered. */
  private async sendBurst(to: string): Promise<void> {
    for (let count = 2 + this.below(5); count > 0; count -= 1) {
      this.sendMessage(to);
      if (this.random() < 0.4) {
        this.comeOrGo(to);
      }
      const answered = this.pick(this.requests.filter(({ packet }) => packet.payload["to"] === to));
      if (answered && this.random() < 0.4) {
        this.grant(answered);
      }
      await this.time.settle();
    }
  }

  private sendMessage(to: string): void {
    const number = (this.messages += 1);
    const retry = this.random() < 0.9;
    if (number % 20 === 0) {
      const send = (signal: AbortSignal): Promise<Receipt> =>
        this.client.sendConfirmed(to, number, { confirmMs: CONFIRM_MS, signal });
      this.call(`message ${number} to ${to}, confirmed`, send, CONFIRM_MS + REQUEST_TIMEOUT_MS, { number, to });
      return;
    }
    const send = (signal: AbortSignal): Promise<number> =>
      this.client.sendMessage(to, number, { retry, signal });
    this.call(`message ${number} to ${to}, ${retry}`, send, REQUEST_TIMEOUT_MS, { number, to });
  }

  private watch(): void {
    const uids = USERS.filter(() => this.random() < 0.5);
    const failed = (error: unknown): never => {
      uids.forEach((uid) => this.uncertain.add(uid));
      throw error;
    };
    this.call(`watch ${uids.join()}`, (signal) => this.client.watch(uids, { signal }).catch(failed));
  }

  private watchRoster(): void {
    const before = this.rosterEnds;
    const start = async (signal: AbortSignal): Promise<void> => {
      await this.client.watchRoster({ signal });
      this.followsRoster ||= before === this.rosterEnds;
    };
    this.call("watchRoster", start);
  }

  private watchRosterNowait(): void {
    this.note("watchRosterNowait");
    this.client.watchRosterNowait();
    this.followsRoster = true;
  }

  private unwatchRoster(): void {
    const before = [...this.client.watched().keys()];
    this.followsRoster = false;
    this.rosterEnds += 1;
    this.call("unwatchRoster", (signal) => this.client.unwatchRoster({ signal }));
    const after = this.client.watched();
    before.filter((uid) => !after.has(uid)).forEach((uid) => this.forget(uid));
    if (this.older.has(this.server.peer)) {
      USERS.forEach((uid) => this.uncertain.add(uid)); // it was asked for them by name
    }
  }

  private watchNowait(): void {
    const uid = this.anyUser();
    this.note(`watchNowait ${uid}`);
    this.client.watchNowait([uid]);
  }

  private unwatch(): void {
    const luck = this.random();
    if (luck > 0.7) {
      this.unwatchRoster();
      return;
    }
    if (luck < 0.2) {
      USERS.forEach((uid) => this.forget(uid));
      this.reported.clear();
      this.followsRoster = false;
      this.rosterEnds += 1;
      this.call("unwatch", (signal) => this.client.unwatch(undefined, { signal }));
      return;
    }
    const uids = USERS.filter(() => this.random() < 0.5);
    uids.forEach((uid) => this.forget(uid));
    this.call(`unwatch ${uids.join()}`, (signal) => this.client.unwatch(uids, { signal }));
  }

  private watchRooms(): void {
    const rooms = ROOMS.filter(() => this.random() < 0.5);
    const start = async (signal: AbortSignal): Promise<void> => {
      const states = await this.client.watchRooms(rooms, { signal });
      for (const [room, state] of states) {
        if (this.client.watchedRooms().has(room)) {
          this.reported.set(room, state);
        }
      }
    };
    this.call(`watchRooms ${rooms.join()}`, start);
  }

  private unwatchRooms(): void {
    const rooms = this.random() < 0.3 ? undefined : ROOMS.filter(() => this.random() < 0.5);
    (rooms ?? ROOMS).forEach((room) => this.reported.delete(room));
    this.call(`unwatchRooms ${rooms?.join()}`, (signal) => this.client.unwatchRooms(rooms, { signal }));
  }

  private addPass(): void {
    const pass = `p${(this.passes += 1)}`;
    this.call(`addPass ${pass}`, (signal) => this.client.addPass(pass, { signal }));
  }

  private abort(): void {
    const call = this.pick([...this.calls]);
    if (call) {
      this.note(`abort ${call.name}`);
      this.abandonedPasses.add(call.name.replace("addPass ", ""));
      this.calling(() => call.controller.abort());
    }
  }

  /** Begins to iterate, reads on, or leaves. */
  private read(): void {
    const reading = this.pick(this.readings.filter(({ over, pending }) => !over && !pending));
    if (!reading || this.readings.length < 2) {
      const iterator = this.client.messages<number>();
      this.readings.push({
        iterator,
        pushed: 0,
        read: 0,
        lastBody: 0,
        pending: false,
        over: false,
        isOfRun: true,
      });
      if (this.readings.length > 4) {
        this.leave(this.readings.shift() as Reading);
      }
      return;
    }
    reading.pending = true;
    reading.iterator
      .next()
      .then(
        ({ value, done }) => {
          reading.pending = false;
          if (done) {
            this.ended(reading);
          } else if (value.type === "dropped") {
            reading.read += value.count;
          } else {
            reading.read += 1;
            assert.ok(value.body > reading.lastBody, "a message came twice, or out of order");
            reading.lastBody = value.body;
          }
        },
        () => this.ended(reading),
      )
      .catch((error: unknown) => this.problems.push(error));
  }

  private ended(reading: Reading): void {
    if (!reading.over) {
      reading.over = true;
      assert.equal(reading.read, reading.pushed, "an iterator ended, and messages are missing");
    }
  }

  private leave(reading: Reading): void {
    reading.over = true;
    void reading.iterator.return?.();
  }

  // The network and the clock

  private openOrFail(): void {
    const { peer } = this.server;
    if (peer?.state === "opening") {
      if (this.isGood || this.random() < 0.75) {
        this.note("opened");
        peer.open();
      } else {
        this.note("failed");
        peer.close("no way there");
      }
    }
  }

  private lose(): void {
    this.note("lost");
    this.server.peer?.close();
  }

  private sendGarbage(): void {
    this.note("garbage");
    this.server.peer?.sendBytes(new Uint8Array(4));
  }

  private async advanceToTimer(): Promise<void> {
    const { nextAt } = this.time;
    if (nextAt < Infinity) {
      await this.time.advance(Math.max(0, nextAt - this.time.now()));
    }
  }

  // Tokens

  private fetchToken(): Promise<string> {
    this.returnedToken = null;
    if (this.isGood) {
      return Promise.resolve(this.newToken());
    }
    return new Promise((resolve, reject) => this.pendingFetches.push({ resolve, reject }));
  }

  private endFetch(): void {
    const fetch = this.pendingFetches.pop();
    if (!fetch) {
      return;
    }
    this.pendingFetches.splice(0); // earlier calls took too long
    const draw = this.random();
    if (draw < 0.15) {
      this.note("no token");
      this.returnedToken = null;
      fetch.reject(new Error("no way there"));
    } else {
      fetch.resolve(draw < 0.6 && this.currentToken ? this.sameToken() : this.newToken());
    }
  }

  private newToken(): string {
    this.tokens += 1;
    const exp = Math.floor(this.serverTimeMs() / 1000) + 5 + this.below(60);
    this.currentToken =
      this.random() < 0.4 ? `opaque${this.tokens}` : jsonWebToken({ exp, jti: this.tokens });
    this.expiries.set(this.currentToken, this.currentToken.startsWith("opaque") ? Infinity : 1000 * exp);
    return this.sameToken();
  }

  /** As of a cache. */
  private sameToken(): string {
    this.note(`token ${this.currentToken.slice(-12)}`);
    this.returnedToken = this.currentToken;
    return this.currentToken;
  }

  // The server

  private received(packet: Packet, peer: VirtualPeer): void {
    this.noteTimeOuts();
    const { kind, payload } = packet;
    const sent = payload["token"];
    if (typeof sent === "string" && this.fetches && this.refusedTokens.has(sent)) {
      this.problems.push(new Error(`a refused token was sent again: ${sent}`));
    }
    if (this.leaving.has(peer)) {
      this.problems.push(new Error(`a packet of kind ${kind} after the logout`));
    }
    if (kind === Kind.LOGOUT) {
      this.leaving.add(peer);
    }
    if (kind === Kind.LOGIN) {
      this.quietOfLogin = payload["quiet"] === true;
      this.roomsOfLogin = (payload["rooms"] ?? []) as string[];
    }
    const isOwn = this.callDepth === 0;
    const keys = keysOf(packet);
    this.expected = this.expected.filter(({ key }) => !(isOwn && keys.includes(key)));
    const isDelivered = kind === Kind.MESSAGE && this.takeMessage(payload);
    const waitMs = payload["confirm"] === undefined ? 0 : CONFIRM_MS;
    const timesOutAt = this.time.now() + waitMs + REQUEST_TIMEOUT_MS;
    const number = (this.requestsReceived += 1);
    const request = { packet, peer, isOwn, isDelivered, number, timesOutAt, isTimedOut: false };
    this.requests.push(request);
    if (this.isGood) {
      void Promise.resolve()
        .then(() => this.grant(request))
        .catch((error: unknown) => this.problems.push(error));
    }
  }

  /** The server reads a message; returns whether it delivers it. */
  private takeMessage(payload: ValueMap): boolean {
    const { to, body } = payload as unknown as { to: string; body: number };
    this.refusedMessages.delete(body);
    if (this.away.has(to)) {
      return false;
    }
    const last = this.delivered.get(to) ?? 0;
    if (body <= last) {
      this.problems.push(new Error(`${to} got message ${body} after ${last}`));
    }
    this.delivered.set(to, body);
    this.deliveries.set(body, (this.deliveries.get(body) ?? 0) + 1);
    return true;
  }

  /** The client is told: it may send the next together, unless it waits for one sent alone, or refused. */
  private noteDelivery(request: Request, to: string): void {
    const isSteady = this.steadyUntil.has(to) || this.awaited(to).length === 0;
    const isRefused = ({ message }: Call): boolean =>
      message?.to === to && this.refusedMessages.has(message.number);
    if (this.isAwaited(request) && isSteady && ![...this.calls].some(isRefused)) {
      this.steadyUntil.set(to, this.time.now() + STEADY_MS);
    }
  }

  private comeOrGo(uid: string): void {
    if (!this.away.delete(uid)) {
      this.away.add(uid);
    }
  }

  private answer(): void {
    this.requests = this.requests.filter(({ peer }) => peer.state === "open");
    const drawn = this.pick(this.requests);
    if (!drawn) {
      return;
    }
    // A server carries out the watches of a connection in order, and refuses no unwatch.
    const isWatch = ({ packet }: Request): boolean =>
      packet.kind === Kind.WATCH || packet.kind === Kind.UNWATCH;
    const request = isWatch(drawn) ? (this.requests.find(isWatch) as Request) : drawn;
    const draw = this.random();
    const { kind } = request.packet;
    if (kind === Kind.LOGIN) {
      if (draw < 0.65) {
        this.grant(request);
      } else {
        const codes = [Code.AUTH_FAILED, Code.AUTH_FAILED, Code.BUSY, Code.SERVER_DRAIN, Code.SESSION_LIMIT];
        this.refuse(request, this.pick(codes) as number);
      }
    } else if (request.isDelivered && draw > 0.95) {
      this.refuse(request, Code.SERVER_ERROR); // it has failed after that
    } else if (
      request.isDelivered ||
      draw < (request.isOwn ? 0.45 : 0.6) ||
      kind === Kind.LOGOUT ||
      kind === Kind.UNWATCH
    ) {
      this.grant(request);
    } else if (kind === Kind.UPDATE && request.packet.payload["token"] !== undefined) {
      this.refuse(request, this.pick([Code.AUTH_FAILED, Code.BUSY, Code.SERVER_ERROR]) as number);
    } else if (kind === Kind.WATCH && request.packet.payload["pass"] !== undefined && draw < 0.7) {
      this.refuse(request, Code.AUTH_FAILED); // a pass that is not valid any more
    } else {
      const codes = [Code.BUSY, Code.BUSY, Code.SERVER_ERROR, Code.RATE_LIMITED];
      const uids = (request.packet.payload["uids"] ?? []) as string[];
      const { peer } = request;
      const isMore = uids.some((uid) => this.isVisible(uid, peer) && !this.watches.get(peer)?.has(uid));
      const isTooMuch = kind === Kind.QUERY || (kind === Kind.WATCH && isMore);
      this.refuse(request, this.pick(isTooMuch ? [...codes, Code.TOO_LARGE] : codes) as number);
    }
  }

  private take(request: Request): boolean {
    const index = this.requests.indexOf(request);
    if (index < 0 || request.peer.state !== "open") {
      return false;
    }
    this.requests.splice(index, 1);
    return true;
  }

  private grant(request: Request): void {
    const { packet, peer } = request;
    const { kind, id, payload } = packet;
    if (!this.take(request)) {
      return;
    }
    if (kind === Kind.MESSAGE && !request.isDelivered) {
      this.refused(request, Code.RECIPIENT_DISCONNECTED);
      return;
    }
    if (kind === Kind.WATCH && roomsOf(payload).some((room) => this.forbidden.has(room))) {
      this.refused(request, Code.NOT_ALLOWED);
      return;
    }
    this.note(`grant ${kind} ${JSON.stringify(payload)}`);
    if (kind === Kind.MESSAGE) {
      this.noteDelivery(request, payload["to"] as string);
    }
    if (kind === Kind.LOGIN) {
      this.refusalsInARow = 0;
      this.watches.set(peer, new Set());
      this.told.set(peer, new Map());
      this.uncertain.clear();
      if (this.random() < 0.3) {
        this.older.add(peer);
      }
      this.refusedAt.clear();
      this.steadyUntil.clear();
    }
    const keys = keysOf(packet);
    this.expected = this.expected.filter(({ key }) => !keys.includes(key)); // the client has what it asked for
    if (!request.isTimedOut) {
      keys.forEach((key) => this.grantedAt.set(key, this.requestsReceived));
    }
    if (request.isOwn && !request.isTimedOut) {
      keys.forEach((key) => this.granted(key));
    }
    peer.send({ kind: Kind.OK, id, payload: this.answerTo(packet, peer, request.isTimedOut) });
    if (kind === Kind.LOGOUT) {
      peer.close();
    }
  }

  /** The next failure is the first again, unless another request for the same is under way. */
  private granted(key: string): void {
    const isWaiting = this.expected.some((each) => each.key === key);
    const isAsked = this.requests.some(({ isOwn, packet }) => isOwn && keysOf(packet).includes(key));
    if (!isWaiting && !isAsked) {
      this.failures.delete(key);
    }
  }

  private answerTo({ kind, payload }: Packet, peer: VirtualPeer, isUncertain: boolean): ValueMap {
    const uids = (payload["uids"] ?? []) as string[];
    switch (kind) {
      case Kind.LOGIN: {
        const time_ms = this.serverTimeMs();
        const { joined } = this.changeRooms(peer, payload);
        return { session: "s", idle_timeout: 30, keepalive: KEEPALIVE_MS / 1000, time_ms, v: 1, joined };
      }
      case Kind.UPDATE:
        return payload["join"] === undefined ? {} : this.changeRooms(peer, payload);
      case Kind.MESSAGE:
        return { delivered: 1 };
      case Kind.WATCH:
        if (payload["rooms"] !== undefined) {
          return this.older.has(peer) ? this.states([], peer) : { rooms: this.tell(peer, roomsOf(payload)) };
        }
        if (
          payload["pass"] !== undefined &&
          !isUncertain &&
          !this.abandonedPasses.has(payload["pass"] as string)
        ) {
          this.passesOf.add(peer); // else the client cannot know
        }
        uids.filter((uid) => this.isVisible(uid, peer)).forEach((uid) => this.watches.get(peer)?.add(uid));
        if (payload["roster"] === true && !this.older.has(peer)) {
          return { ...this.states([...new Set([...uids, ...this.roster])], peer), roster: this.follow(peer) };
        }
        return this.states(uids, peer);
      case Kind.QUERY:
        return this.states(uids, peer);
      case Kind.UNWATCH:
        if (payload["uids"] === undefined || payload["roster"] === true) {
          this.followings.delete(peer);
        }
        for (const room of payload["uids"] === undefined ? ROOMS : roomsOf(payload)) {
          this.told.get(peer)?.delete(room);
        }
        for (const uid of payload["uids"] === undefined ? USERS : uids) {
          const following = this.followings.get(peer);
          this.watches.get(peer)?.delete(uid);
          following?.members.delete(uid);
          following?.listed.delete(uid);
          following?.unwatched.add(uid);
          this.uncertain.add(uid);
        }
        return {};
      default:
        return {};
    }
  }

  private changeRooms(peer: VirtualPeer, payload: ValueMap): { joined: string[] } {
    const rooms = roomsAfter(this.roomsOf.get(peer) ?? new Set(), payload as Update);
    this.roomsOf.set(peer, rooms);
    return { joined: [...rooms].sort() };
  }

  /** States in one form or the other. */
  private states(uids: readonly string[], peer: VirtualPeer): ValueMap {
    if (this.random() < 0.5) {
      return { states: uids.map((uid) => rowOf(uid, this.stateOf(uid, peer))) };
    }
    return { presence: Object.fromEntries(uids.map((uid) => [uid, this.stateOf(uid, peer)])) };
  }

  private sendChange(peer: VirtualPeer, uid: string, state: ValueMap, reason: string): void {
    const isRow = this.random() < 0.5;
    const payload = isRow ? { changes: [rowOf(uid, state, reason)] } : { uid, ...state, reason };
    peer.send({ kind: isRow ? Kind.CHANGES : Kind.PRESENCE, id: null, payload });
  }

  // Watched rooms

  /** Returns the rows of an answer. */
  private tell(peer: VirtualPeer, rooms: readonly string[]): Value[] {
    return rooms.map((room) => {
      const { count, members } = this.stateOfRoom(room);
      this.told.get(peer)?.set(room, { count, members });
      return members ? [room, count, members] : [room, count];
    });
  }

  private stateOfRoom(room: string): RoomState {
    const crowd = [...(this.crowds.get(room) as Set<string>)];
    return { count: crowd.length, members: crowd.length > MEMBERS_SHOWN ? null : crowd };
  }

  private enterOrLeave(): void {
    const crowd = this.crowds.get(this.pick(ROOMS) as string) as Set<string>;
    const uid = this.anyUser();
    if (!crowd.delete(uid)) {
      crowd.add(uid);
    }
    if (this.random() < 0.7) {
      this.pushRooms(); // else the server gathers this change and the next
    }
  }

  private pushRooms(): void {
    for (const [peer, told] of this.told) {
      const rows = [...told].flatMap(([room, before]) => this.rowsOf(room, before));
      if (rows.length > 0) {
        this.tell(peer, rows.map(([room]) => room as string));
        peer.send({ kind: Kind.ROOMS, id: null, payload: { rooms: rows } });
      }
    }
  }

  /** The change of a room in one row, as a difference or as the whole state; none if there is no change. */
  private rowsOf(room: string, before: RoomState): Value[][] {
    const { count, members } = this.stateOfRoom(room);
    if (!members) {
      return before.count === count ? [] : [[room, count]];
    }
    const joined = members.filter((uid) => !before.members?.includes(uid));
    const left = before.members?.filter((uid) => !members.includes(uid)) ?? [];
    if (joined.length + left.length === 0) {
      return before.members ? [] : [[room, count, members]];
    }
    return before.members && this.random() < 0.7 ? [[room, count, joined, left]] : [[room, count, members]];
  }

  /** The client may watch a room no longer, or again. */
  private forbidOrAllow(): void {
    const room = this.pick(ROOMS) as string;
    if (this.forbidden.delete(room)) {
      return;
    }
    this.forbidden.add(room);
    for (const [peer, told] of this.told) {
      if (told.delete(room)) {
        peer.send({ kind: Kind.ROOMS, id: null, payload: { rooms: [[room, null]] } });
      }
    }
  }

  // The roster

  /** The server lists all users of the roster; returns their number. */
  private follow(peer: VirtualPeer): number {
    const members = new Set(this.roster);
    const listed = new Set([...members].filter((uid) => this.isVisible(uid, peer)));
    this.followings.set(peer, { members, listed, unwatched: new Set() });
    return members.size;
  }

  /** The backend adds a user, or removes one. */
  private list(): void {
    const uid = this.anyUser();
    const isAdded = !this.roster.delete(uid);
    if (isAdded) {
      this.roster.add(uid);
    }
    this.note(`the roster ${isAdded ? "has" : "loses"} ${uid}`);
    for (const [peer, { members, listed, unwatched }] of this.followings) {
      const isVisible = this.isVisible(uid, peer);
      const isNews = members.has(uid) !== isAdded && !this.watches.get(peer)?.has(uid);
      if (peer.state !== "open" || unwatched.has(uid)) {
        continue;
      }
      members[isAdded ? "add" : "delete"](uid);
      listed[isAdded && isVisible ? "add" : "delete"](uid);
      if (isNews && isAdded) {
        this.sendChange(peer, uid, this.stateOf(uid, peer), isVisible ? "watched" : "not_allowed");
      } else if (isNews) {
        this.sendChange(peer, uid, { status: "removed" }, "removed");
      }
    }
  }

  private watchedBy(peer: VirtualPeer): Set<string> {
    return new Set([...(this.watches.get(peer) ?? []), ...(this.followings.get(peer)?.listed ?? [])]);
  }

  private serverTimeMs(): number {
    return SERVER_TIME_S * 1000 + Math.round(this.time.now());
  }

  /** Whether the client of a connection may see a user: some are seen by a pass only. */
  private isVisible(uid: string, peer: VirtualPeer): boolean {
    return uid !== HIDDEN_USER || this.passesOf.has(peer);
  }

  private stateOf(uid: string, peer: VirtualPeer): ValueMap {
    if (!this.isVisible(uid, peer)) {
      return { status: "not_allowed" };
    }
    const { id, status } = this.shown.get(uid) as { id: number; status: string };
    return { status, id: `${id}-0` };
  }

  private refuse(request: Request, code: number): void {
    if (this.take(request)) {
      this.refused(request, code);
    }
  }

  private refused(request: Request, code: number): void {
    const { packet, peer } = request;
    const { kind, id, payload } = packet;
    this.note(`refuse ${kind} with ${code}`);
    const retryAfterS = this.random() < 0.5 ? this.below(3) : null;
    if (code === Code.RECIPIENT_DISCONNECTED) {
      this.refusedMessages.add(payload["body"] as number);
      this.refusedAt.set(payload["to"] as string, this.time.now());
      this.steadyUntil.delete(payload["to"] as string);
    }
    this.mayEnd ||= kind === Kind.LOGIN && !mayReconnect(code);
    const isOfWatch = kind === Kind.WATCH && (code === Code.AUTH_FAILED || code === Code.NOT_ALLOWED);
    if (code === Code.TOO_LARGE || isOfWatch) {
      peer.send({ kind: Kind.ERROR, id, payload: { code, reason: "x", message: "" } });
      return;
    }
    if (code === Code.AUTH_FAILED) {
      this.refusedTokens.add(payload["token"] as string);
      this.refusalsInARow += kind === Kind.LOGIN ? 1 : 0;
    }
    this.failed(request, retryAfterS ?? 0);
    const more = retryAfterS === null ? {} : { retry_after: retryAfterS };
    peer.send({ kind: Kind.ERROR, id, payload: { code, reason: "x", message: "", ...more } });
    if (kind === Kind.LOGIN) {
      peer.close();
    }
  }

  /** A request of the client's own has failed: it is to be repeated after a pause. */
  private failed({ packet, peer, isOwn, isTimedOut, number }: Request, retryAfterS: number): void {
    if (!isOwn || isTimedOut || packet.kind !== Kind.WATCH) {
      return;
    }
    const watched = this.client.watched();
    const isMeant = (key: string): boolean => watched.has(key) && (this.forgottenAt.get(key) ?? 0) < number;
    const keys = keysOf(packet).filter((key) => !USERS.includes(key) || isMeant(key));
    keys.forEach((key) => this.failures.set(key, (this.failures.get(key) ?? 0) + 1));
    const failures = Math.max(0, ...keys.map((key) => this.failures.get(key) ?? 0));
    const pauseMs = 1000 * (retryAfterS + Math.min(60, 2 ** (failures - 1)));
    for (const key of keys.filter((each) => (this.grantedAt.get(each) ?? 0) < number)) {
      this.expected.push({ key, peer, dueAt: this.time.now() + pauseMs + SLACK_MS });
    }
  }

  private push(): void {
    const uid = this.anyUser();
    const { id } = this.shown.get(uid) as { id: number };
    const status = this.pick(["online", "away", "offline"]) as string;
    this.shown.set(uid, { id: id + 1, status });
    for (const peer of this.watches.keys()) {
      if (this.watchedBy(peer).has(uid)) {
        this.sendChange(peer, uid, this.stateOf(uid, peer), "login");
      }
    }
  }

  private deliver(): void {
    const peer = this.server.peer;
    if (this.watches.has(peer) && peer.state === "open" && this.isOnline) {
      const body = (this.pushedMessages += 1);
      this.readings.forEach((reading) => (reading.pushed += reading.over || !reading.isOfRun ? 0 : 1));
      peer.send({ kind: Kind.DELIVER, id: null, payload: { from: "bob", body, at_ms: 1 } });
    }
  }

  private sayGoodbye(): void {
    const peer = this.server.peer;
    if (this.watches.has(peer) && peer.state === "open") {
      const reconnect = this.random() < 0.6;
      this.note(`goodbye ${reconnect}`);
      this.mayEnd ||= !reconnect;
      const payload = { code: reconnect ? Code.SERVER_DRAIN : Code.KICKED, reason: "x", reconnect };
      peer.send({ kind: Kind.GOODBYE, id: null, payload });
      peer.close();
    }
  }

  /** A user is not watched any more: no request for it is expected. */
  private forget(key: string): void {
    this.expected = this.expected.filter((each) => each.key !== key);
    this.forgottenAt.set(key, this.requestsReceived);
    this.failures.delete(key);
    this.seen.delete(key);
  }

  // What must hold

  private check(): void {
    assert.equal(this.quietOfLogin ?? this.isQuiet, this.isQuiet, "a login is as the updates granted before");
    this.quietOfLogin = null;
    if (this.roomsOfLogin) {
      assert.deepEqual([...this.roomsOfLogin].sort(), [...this.rooms].sort(), "a login has the rooms granted before");
      this.roomsOfLogin = null;
    }
    const [problem] = [...this.problems, ...this.time.thrown];
    if (problem !== undefined) {
      throw problem;
    }
    const { state } = this.client;
    const isOver = state === "ended" || state === "idle";
    assert.equal(isOver, !this.isRunning, `the client is ${state}`);
    assert.equal(this.ends, this.runs - (this.isRunning ? 1 : 0), "one end each");
    const isOnline = state === "online" || (state === "logging out" && this.isOnline);
    assert.equal(isOnline, this.isOnline, `the client is ${state}, and has reported something else`);
    const open = this.server.peers.filter((peer) => peer.state !== "closed");
    assert.ok(open.length <= (isOver ? 0 : 1), `${open.length} connections while ${state}`);
    if (isOver) {
      assert.equal(this.time.timers.size, 0, "a timer is left");
    }
    this.server.peers.splice(0, Math.max(0, this.server.peers.length - 3));
    for (const call of this.calls) {
      assert.ok(this.time.now() <= call.dueAt + SLACK_MS, `${call.name} is not settled`);
    }
    this.checkPauses();
    if (state === "online") {
      this.checkKeepalives();
      RECIPIENTS.forEach((to) => this.checkLine(to));
    }
  }

  /** No message waits without a reason. */
  private checkLine(to: string): void {
    const waiting = new Set<number>();
    for (const { message } of this.calls) {
      if (message?.to === to) {
        waiting.add(message.number);
      }
    }
    const sent = this.awaited(to);
    sent.forEach(({ packet }) => waiting.delete(packet.payload["body"] as number));
    const isRefused = this.time.now() <= (this.refusedAt.get(to) ?? -Infinity) + MESSAGE_RETRY_INTERVAL_MS;
    if (waiting.size > 0 && sent.length === 0) {
      assert.ok(isRefused, `message ${Math.min(...waiting)} to ${to} waits for nothing`);
    }
    if (this.time.now() < (this.steadyUntil.get(to) ?? -Infinity)) {
      assert.equal(waiting.size, 0, `messages to ${to} wait soon after a delivery`);
    } else {
      this.steadyUntil.delete(to);
    }
  }

  /** The messages in flight to a user. */
  private awaited(to: string): Request[] {
    return this.requests.filter((each) => each.packet.payload["to"] === to && this.isAwaited(each));
  }

  /** Whether a message was sent on this connection, and the client waits for its answer. */
  private isAwaited({ packet, peer }: Request): boolean {
    const isOf = ({ message }: Call): boolean => message?.number === packet.payload["body"];
    return peer === this.server.peer && [...this.calls].some(isOf);
  }

  private checkKeepalives(): void {
    const { peer } = this.server;
    if (peer.keepalives > this.keepalives || peer !== this.keepalivesOf) {
      this.keepalives = peer.keepalives;
      this.keepalivesOf = peer;
      this.keepaliveSeenAt = this.time.now();
    }
    assert.ok(this.time.now() - this.keepaliveSeenAt <= KEEPALIVE_MS + SLACK_MS, "no keepalive");
  }

  private checkPauses(): void {
    this.noteTimeOuts();
    this.expected = this.expected.filter(
      ({ peer }) => peer.state === "open" && this.client.state === "online",
    );
    const isWaiting = this.requests.some(({ isOwn, isTimedOut, peer, packet }) => {
      return isOwn && !isTimedOut && peer.state === "open" && packet.kind !== Kind.LOGIN;
    });
    const late = this.expected.find(({ dueAt }) => this.time.now() > dueAt);
    assert.ok(!late || isWaiting, `after a busy answer ${late?.key} was not asked for in time`);
  }

  private noteTimeOuts(): void {
    for (const request of this.requests) {
      if (this.time.now() >= request.timesOutAt && !request.isTimedOut) {
        this.failed(request, 0);
        request.isTimedOut = true;
      }
    }
  }

  /** For some minutes everything works; then what the client shows must be true. */
  private async becomeGood(): Promise<void> {
    this.note("good");
    this.isGood = true;
    this.away.clear();
    this.connect();
    this.pendingFetches.splice(0).forEach(({ resolve }) => resolve(this.newToken()));
    for (let passed = 0; passed < GOOD_TIME_MS; passed += 1000) {
      [...this.requests].forEach((request) => this.grant(request));
      await this.time.settle(); // no connection opens in the turn in which the one before ends
      this.openOrFail();
      await this.time.advance(1000);
      this.check();
      if (!this.isRunning) {
        this.connect(); // it ended by what was on its way
      }
    }
    assert.equal(this.client.state, "online", "not online in a good world");
    assert.equal(this.calls.size, 0);
    const watched = this.client.watched();
    const { peer } = this.server;
    const visible = [...watched.keys()].filter((uid) => this.isVisible(uid, peer));
    const granted = [...this.watchedBy(peer)].filter((uid) => watched.has(uid) || !this.uncertain.has(uid));
    assert.deepEqual(visible.sort(), granted.sort(), "client and server disagree about the watches");
    const rooms = [...(this.roomsOf.get(peer) ?? [])].sort();
    assert.deepEqual(this.client.joined, rooms, "client and server disagree about the rooms");
    this.checkWatchedRooms(peer);
    assert.equal(this.followings.has(peer), this.followsRoster && !this.older.has(peer), "who follows the roster");
    for (const [uid, { status, id }] of watched) {
      assert.deepEqual({ status, id }, { id: null, ...this.stateOf(uid, peer) }, `what is shown of ${uid}`);
    }
    this.isGood = false;
  }

  private checkWatchedRooms(peer: VirtualPeer): void {
    this.pushRooms();
    const watched = sortedStates(this.client.watchedRooms());
    assert.deepEqual(watched, sortedStates(this.told.get(peer)), "client and server disagree about watched rooms");
    assert.deepEqual(watched, sortedStates(this.reported), "a change of a watched room is missing");
  }

  private async finish(): Promise<void> {
    this.disconnect();
    await this.time.settle();
    this.check();
    await assert.rejects(this.client.query(["bob"]), Ended);
  }
}

function roomsAfter(before: ReadonlySet<string>, { rooms = [...before], join = [], leave = [] }: Update): Set<string> {
  return new Set([...rooms.filter((room) => !leave.includes(room)), ...join]);
}

function roomsOf(payload: ValueMap): string[] {
  return (payload["rooms"] ?? []) as string[];
}

/** States in which the order of rooms and members is always the same. */
function sortedStates(states: ReadonlyMap<string, RoomState> = new Map()): unknown[] {
  return [...states].map(([room, { count, members }]) => [room, count, members && [...members].sort()]).sort();
}

function rowOf(uid: string, state: ValueMap, code: string | null = null): Value[] {
  const [ms, n] = typeof state["id"] === "string" ? state["id"].split("-").map(Number) : [null, null];
  return [uid, state["status"] as Value, code, ms as Value, n as Value];
}

/** What a watch asks for: its users, or its pass. */
function keysOf({ kind, payload }: Packet): string[] {
  if (kind !== Kind.WATCH) {
    return [];
  }
  const pass = payload["pass"];
  return [...(payload["uids"] as string[]), ...(typeof pass === "string" ? [pass] : [])];
}
