/** The client, apart from what its platform gives it. */

import { checkSignal, onAbort, throwIfAborted } from "./aborts.js";
import { Code, Kind, WATCHED_ROOMS_MAX } from "./constants.js";
import type { Environment } from "./environment.js";
import {
  ConnectionLost,
  EncodeError,
  PresenceError,
  RequestFailed,
  RequestTimeout,
  Unsupported,
} from "./errors.js";
import { Link } from "./link.js";
import { Listeners } from "./listeners.js";
import { changesRooms, type Update } from "./login.js";
import { ClientMachine, type State } from "./machine.js";
import {
  type BaseOptions,
  type Change,
  checkedBoolean,
  checkedChange,
  checkedMs,
  checkedOptions,
  checkedNames,
  checkUserChange,
  optionalNames,
  type UserChange,
} from "./options.js";
import {
  type Connected,
  type Delivered,
  type Disconnected,
  type Dropped,
  type Goodbye,
  parseReceipt,
  parseRoomRows,
  parseUserStates,
  type PresenceChanged,
  type Push,
  type Receipt,
  type RoomChanged,
  type RoomRow,
  type RoomState,
  type UserState,
  type WatchEnded,
} from "./pushes.js";
import { Restoration } from "./restoration.js";
import { Run, Waiters } from "./runs.js";
import type { Effects } from "./session.js";
import { type Element, Streams } from "./streams.js";
import type { ValueMap } from "./values.js";
import { WatchedRooms } from "./watched-rooms.js";
import { batches, isHidden, WatchedUsers } from "./watches.js";

const NO_ROOMS = "this server has no rooms";
export const CONFIRM_MS = 5000; // to wait for confirmations: a phone that is awake takes a second or two

/** The arguments of listeners, by event. */
export interface Events {
  connected: Connected;
  disconnected: Disconnected;
  goodbye: Goodbye;
  message: Delivered;
  presence: PresenceChanged;
  room: RoomChanged;
  watchEnded: WatchEnded;
  /**
   * The client has ended: null after its own `logout` or `disconnect`, else the error. The last event, exactly
   * one for each `connect` that has begun.
   */
  end: PresenceError | null;
}

type Listener<Name extends keyof Events> = (event: Events[Name]) => void;

/** Rejects the call with the signal's reason. A request that was sent may still be carried out. */
export interface Abortable {
  readonly signal?: AbortSignal | undefined;
}

interface PendingRequest {
  resolve(payload: ValueMap): void;
  reject(error: PresenceError): void;
  onSettled?: () => void;
}

/**
 * One device of a user. It sends keepalives at the server's interval, detects a dead server, reconnects by
 * itself until the server forbids it, and then restores its watches.
 *
 * Requests reject with `NotConnected` while the client is not logged in; they are not queued, because they could
 * be outdated by then. Every request also rejects with `RequestFailed` (`Busy`, `Unsupported` …) if the server
 * refused it, with `Uncertain` (`ConnectionLost`, `RequestTimeout`, `ServerFailed`) if it may or may not have been
 * carried out, with the error that has ended the client, and with `EncodeError`, `TypeError` or `RangeError` for
 * an argument that breaks a rule.
 */
export abstract class BaseClient {
  private readonly listeners = new Listeners<Events>();
  private readonly machine: ClientMachine;
  private readonly link: Link;
  private readonly watchedUsers = new WatchedUsers();
  private readonly roomWatches = new WatchedRooms();
  private readonly pendingRequests = new Map<number, PendingRequest>();
  private readonly restoration: Restoration;
  private readonly streams: Streams;
  private readonly requestTimeoutMs: number;
  private readonly onlineWaiters = new Waiters();
  private run: Run | null = null; // the current one
  private nextRun: Run | null = null; // begins when the current one has logged out
  private laterRun = new Run(); // of the next `connect` that is not one of these two
  private unreported: Effects = [];
  private readonly runs = new WeakMap<object, Run>(); // which has come online, or ended, by this effect
  private dispatching = false;

  /**
   * @throws EncodeError the login breaks a rule of the protocol.
   * @throws TypeError, RangeError another option is wrong.
   */
  protected constructor(
    options: BaseOptions,
    private readonly environment: Environment,
  ) {
    const { login, connector, tokenSource, persistent, askEvery, ...rest } = checkedOptions(options);
    const { requestTimeoutMs, watchDevices, maxMessages, maxChanges } = rest;
    this.requestTimeoutMs = requestTimeoutMs;
    this.machine = new ClientMachine(login, {
      chance: environment.chance,
      persistent,
      askEvery,
      fetchesTokens: tokenSource !== null,
      onTokenRenewed: () => queueMicrotask(() => this.restoration.tokenTaken()),
    });
    this.link = new Link(this.machine, connector, tokenSource, environment, (effects) =>
      this.report(effects),
    );
    const sender = {
      request: this.request.bind(this),
      update: (update: Update) => this.requestUpdate(update, () => undefined),
      watch: (uids: readonly string[]) => this.requestWatch(uids, true),
      watchRoster: () => this.requestRoster(true),
      watchRooms: (rooms: readonly string[]) => this.requestRooms(rooms),
      unwatch: (uids: readonly string[]) => this.undoWatch(uids),
      report: (push: WatchEnded | RoomChanged) => this.emitPush(push),
    };
    this.restoration = new Restoration(
      this.watchedUsers,
      this.roomWatches,
      this.machine.login,
      watchDevices,
      sender,
      environment,
    );
    this.streams = new Streams(maxMessages, maxChanges);
  }

  // Events

  on<Name extends keyof Events>(name: Name, listener: Listener<Name>): this {
    this.listeners.add(name, listener);
    return this;
  }

  once<Name extends keyof Events>(name: Name, listener: Listener<Name>): this {
    this.listeners.add(name, listener, true);
    return this;
  }

  off<Name extends keyof Events>(name: Name, listener: Listener<Name>): this {
    this.listeners.remove(name, listener);
    return this;
  }

  /**
   * Iterates over the messages from the call on, as long as the client is not ended; then it ends, or throws the
   * error of `end`. Called while the client is ended, it iterates from the next `connect` on. At most `maxMessages`
   * wait for a program that does not read; beyond, the oldest are dropped, and a `Dropped` takes their place. Each
   * iterator gets every message.
   */
  messages<Body = unknown>({ signal }: Abortable = {}): AsyncIterableIterator<Delivered<Body> | Dropped> {
    return this.streams.messages(this.newestRun, signal) as AsyncIterableIterator<Delivered<Body> | Dropped>;
  }

  /**
   * As `messages`, over the changes of watched users, at most `maxChanges`. A change may be left out if a later one
   * of the same user follows.
   */
  presenceChanges({ signal }: Abortable = {}): AsyncIterableIterator<PresenceChanged | WatchEnded | Dropped> {
    return this.streams.presenceChanges(this.newestRun, signal);
  }

  /** As `messages`, over the changes of watched rooms, at most `maxChanges`. */
  roomChanges({ signal }: Abortable = {}): AsyncIterableIterator<RoomChanged | Dropped> {
    return this.streams.roomChanges(this.newestRun, signal);
  }

  /** As `messages`, over what happens to the connection, at most 100. */
  connectionChanges({ signal }: Abortable = {}): AsyncIterableIterator<
    Connected | Disconnected | Goodbye | Dropped
  > {
    return this.streams.connectionChanges(this.newestRun, signal);
  }

  // Connection

  /**
   * Logs in; resolves when the client is online. While the client starts, is online or reconnects, it returns the
   * same promise. After `disconnect`, `logout` or an end by the server it starts anew: with the same options as
   * changed by `update` and `logInWith`, and with the same watches.
   *
   * Rejects with `Unreachable`, `NoToken` or `LoginRefused` if the first attempt fails (with `persistent`:
   * only with `LoginRefused`, if the server forbids a reconnect), and with `Ended` if the client is disconnected or
   * logged out in the meantime.
   */
  connect(): Promise<Connected> {
    if (this.machine.state === "logging out") {
      this.nextRun ??= this.takeLaterRun();
      return this.nextRun.online;
    }
    const run = this.run ?? this.takeLaterRun();
    if (!this.run) {
      this.begin(run);
    }
    return run.online;
  }

  /**
   * Goes offline without a logout, as if the network broke: others see the user as offline after the server's
   * grace. Without effect if the client is not connected.
   */
  disconnect(): void {
    this.cancelNextRun();
    this.link.update(this.machine.disconnect());
  }

  /**
   * Logs out: the user is offline immediately. The client ends even if this rejects, and if its signal is aborted,
   * unless `reason` is wrong. Use `background` when the system suspends the app.
   */
  async logout(reason?: "logout" | "background", { signal }: Abortable = {}): Promise<void> {
    this.machine.check(Kind.LOGOUT, { reason });
    this.cancelNextRun();
    const logOut = (): number => this.machine.logOut(reason, this.environment.now());
    if (this.machine.state !== "online" && this.machine.state !== "logging out") {
      const error = this.machine.whyNotOnline();
      this.disconnect(); // a session of an earlier connection ends by itself
      throw error;
    }
    await this.ask(logOut, () => undefined, { signal, goesOn: true });
  }

  /**
   * Resolves when the client is online, immediately if it is. Before the first `connect` it waits for that; it
   * rejects when the client ends, with the error of `end` or `Ended`.
   */
  waitOnline({ signal }: Abortable = {}): Promise<void> {
    if (this.machine.state === "online") {
      return Promise.resolve();
    }
    if (this.machine.state === "ended") {
      return Promise.reject(this.machine.endError());
    }
    return this.onlineWaiters.wait(this.newestRun, signal);
  }

  // Requests

  /**
   * Sends `body`, anything of MessagePack's own types, to all sessions of the user `to`; resolves with their
   * number, at least 1. A message is delivered at most once, and messages to one user arrive in the order of
   * the calls.
   *
   * Rejects with `RecipientOffline` if the user has no session, with `RecipientDisconnected` if the user has
   * lost its connection and has not returned in time, or if a later message was delivered meanwhile, or perhaps; this
   * one was not. It rejects with `Uncertain` if it may or may not have been delivered.
   *
   * @param retry send it again every second, within `requestTimeoutMs`, while the recipient has lost its connection
   *   and may return; true if left out. Later messages to the same user wait behind it, and for the answer to the
   *   first one after a pause. False: one try.
   */
  sendMessage<Body>(
    to: string,
    body: Body,
    { retry = true, signal }: { retry?: boolean | undefined } & Abortable = {},
  ): Promise<number> {
    const count = (payload: ValueMap): number => Number(payload["delivered"] ?? 0);
    return this.request(Kind.MESSAGE, { to, body }, count, { retry, signal });
  }

  /**
   * Sends a message, and resolves with which of the recipient's sessions certainly have it: as soon as all have
   * confirmed it, or after `confirmMs`, 30 s at most. It is sent once, and later messages to the same user do not
   * wait for it. A session whose client confirms messages, as this one does by itself, is confirmed when its app has
   * received it; any other, when the kernel at the other end has. Rejects as `sendMessage`.
   */
  async sendConfirmed<Body>(
    to: string,
    body: Body,
    { confirmMs = CONFIRM_MS, signal }: { confirmMs?: number | undefined } & Abortable = {},
  ): Promise<Receipt> {
    const waitMs = checkedMs("confirmMs", confirmMs);
    const payload = { to, body, confirm: waitMs / 1000 };
    return this.request(Kind.MESSAGE, payload, parseReceipt, { waitMs, signal });
  }

  /**
   * Resolves with the states of at most 500 users.
   *
   * @param detail with those of their devices; then so many users may not fit into an answer (`LimitReached`).
   */
  async query(
    uids: Iterable<string>,
    { detail = false, signal }: { detail?: boolean | undefined } & Abortable = {},
  ): Promise<Map<string, UserState>> {
    const payload = { uids: checkedNames("uids", uids), ...(checkedBoolean("detail", detail) ? { detail } : {}) };
    return this.request(Kind.QUERY, payload, parseUserStates, { signal });
  }

  /**
   * Watches at most 500 more users; resolves with their states. `presence` follows for each change, also
   * after a reconnect. The caller receives the states before any later change. If it rejects, no user was added.
   */
  async watch(uids: Iterable<string>, { signal }: Abortable = {}): Promise<Map<string, UserState>> {
    const list = checkedNames("uids", uids);
    throwIfAborted(signal);
    const request = this.watchedUsers.requestSent(list);
    try {
      return await this.requestWatch(list, false, signal);
    } catch (error) {
      const mayBeGranted = error instanceof RequestTimeout || signal?.aborted === true;
      const uncertain = this.watchedUsers.requestFailed(request, mayBeGranted);
      if (uncertain.length > 0) {
        this.undoWatch(uncertain);
      }
      throw error;
    }
  }

  /**
   * Watches at most 500 users from now on, connected or not. Their states arrive as `presence` with the reason
   * `watched`; until then they are `unknown` in `watched`. A busy server is asked again; `watchEnded` reports a
   * refusal.
   *
   * @throws EncodeError a uid breaks a rule of the protocol, or there are too many; no user was added.
   */
  watchNowait(uids: Iterable<string>): void {
    const list = checkedNames("uids", uids);
    this.machine.check(Kind.WATCH, this.restoration.watchPayload(list));
    this.restoration.watch(this.watchedUsers.add(list));
  }

  /**
   * Watches the users whom the backend has listed for this user; resolves with their states. `presence` follows as
   * for `watch`, also after a reconnect. So do changes of the list: with the reason `watched` for a user who is
   * added, and with the status and reason `removed` for one who is taken off it, and not watched any more unless
   * `watch` was called, too. `unwatch` of a listed user counts until the client asks for the list again: after a login
   * or a new pass. Rejects with `Unsupported` if the server is older, and keeps no rosters.
   */
  watchRoster({ signal }: Abortable = {}): Promise<Map<string, UserState>> {
    return this.requestRoster(false, signal);
  }

  /** As `watchRoster`, connected or not; the states arrive as for `watchNowait`. */
  watchRosterNowait(): void {
    if (this.watchedUsers.followRoster()) {
      this.restoration.watchRoster();
    }
  }

  /**
   * Gives the server a pass, by which this user may see others until it expires, also after a reconnect.
   * Watched users who were `not_allowed` are asked for again.
   */
  async addPass(pass: string, { signal }: Abortable = {}): Promise<void> {
    const taken = (): void => this.restoration.passTaken(pass);
    const payload = { uids: [], pass: (pass as string | undefined) ?? null }; // undefined would be left out
    const answer = this.request(Kind.WATCH, payload, taken, { signal });
    this.restoration.passGiven(answer);
    await answer;
  }

  /**
   * Stops watching some users, also while offline; without `uids` all users, the roster and all rooms. No events of
   * them follow the call.
   */
  async unwatch(uids?: Iterable<string>, { signal }: Abortable = {}): Promise<void> {
    const list = optionalNames("uids", uids);
    this.machine.check(Kind.UNWATCH, { uids: list });
    throwIfAborted(signal); // a server that is not told would go on
    if (list === undefined) {
      this.roomWatches.remove();
    }
    await this.requestUnwatch({ uids: list }, this.watchedUsers.removeBy(list), signal);
  }

  /**
   * Stops watching the users whom the backend has listed for this user, also while offline. Users whom the program
   * also watches by name stay watched. No events of the others follow the call.
   */
  async unwatchRoster({ signal }: Abortable = {}): Promise<void> {
    throwIfAborted(signal);
    this.watchedUsers.unwatchRoster();
    await this.requestUnwatch({ uids: [], roster: true }, () => undefined, signal);
  }

  /**
   * Watches at most 64 rooms on a connection, whether this device is in them or not; resolves with their states.
   * `room` follows for each change, also after a reconnect. The caller receives the states before any later change.
   * If it rejects, no room was added: with `NotAllowed` if the token does not let this client watch one of them, with
   * `LimitReached` beyond 64 rooms, with `Unsupported` if the server has no rooms.
   */
  async watchRooms(rooms: Iterable<string>, { signal }: Abortable = {}): Promise<Map<string, RoomState>> {
    const list = checkedNames("rooms", rooms);
    this.machine.check(Kind.WATCH, { uids: [], rooms: list });
    throwIfAborted(signal);
    try {
      return await this.requestRooms(list, signal);
    } catch (error) {
      if (error instanceof RequestTimeout || signal?.aborted === true) {
        this.restoration.watchRooms(list); // of those that stay watched, its answer may be missing
      }
      throw error;
    }
  }

  /** Stops watching some rooms, or all, also while offline. No events of them follow the call. */
  async unwatchRooms(rooms?: Iterable<string>, { signal }: Abortable = {}): Promise<void> {
    const list = optionalNames("rooms", rooms);
    this.machine.check(Kind.UNWATCH, { uids: [], rooms: list });
    throwIfAborted(signal);
    await this.requestRoomsUnwatch(this.roomWatches.remove(list), signal);
  }

  /** Resolves with the states of at most 64 rooms; rejects as `watchRooms`. */
  async queryRooms(rooms: Iterable<string>, { signal }: Abortable = {}): Promise<Map<string, RoomState>> {
    const payload = { uids: [], rooms: checkedNames("rooms", rooms) };
    return this.request(Kind.QUERY, payload, (answer) => statesOf(roomRows(answer)), { signal });
  }

  /** The newest known states of the watched rooms. */
  watchedRooms(): Map<string, RoomState> {
    return this.roomWatches.states();
  }

  /** The newest known states of the watched users. */
  watched(): Map<string, UserState> {
    return this.watchedUsers.states();
  }

  /**
   * Changes what others see, now and in later logins: meta (an empty map removes it) and status, perhaps until a
   * time, after which the one from before returns; what only the backend sees (private); or sends a new token
   * before the old one expires. Fields left out stay as they are. What the server keeps with the user, an invisible
   * one (`scope`) and `hide`, is in no later login; `Unsupported` says that the server is older and hides nothing for
   * the user, or that it has no rooms: the rest was granted, the status for this device.
   *
   * This device is then in `rooms`, or by default in those from before, without those of `leave`, and in those of
   * `join`; `joined` has the result. Rejects with `NotAllowed` if the token does not name one of the rooms, with
   * `LimitReached` if the device would be in more than 16.
   */
  async update(wanted: UserChange, { signal }: Abortable = {}): Promise<void> {
    checkUserChange(wanted);
    const { scope, hide, join, leave, ...given } = wanted;
    const change = checkedChange(given, this.serverTimeMs());
    const update = { ...change, join: optionalNames("join", join), leave: optionalNames("leave", leave) };
    throwIfAborted(signal);
    const { login } = this.machine;
    /** Returns what this server does not support. */
    const granted = (answer: ValueMap): string | null => {
      const isKept = scope === "user" && answer["scope"] === scope;
      const lasting = isKept ? login.withoutPrivacy(change) : change;
      const joined = answer["joined"] as string[] | undefined;
      const rooms = login.roomsAfter(update, joined);
      this.machine.granted({ ...lasting, rooms }, this.environment.now());
      const hidden = (answer["hide"] ?? []) as readonly string[];
      if ((scope === "user" && !isKept) || hide?.some((name) => !hidden.includes(name))) {
        return "this server does not hide that for the user";
      }
      return joined === undefined && changesRooms(update) ? NO_ROOMS : null;
    };
    const answer = this.requestUpdate(update, granted, signal, { scope, hide });
    const superseded = login.supersede(update);
    let missing: string | null;
    try {
      missing = await answer;
    } catch (error) {
      const isRefused = error instanceof EncodeError || error instanceof RequestFailed;
      if (isRefused && login.complete(superseded) && error instanceof RequestFailed) {
        this.restoration.completeLogin(); // its rest may have been sent meanwhile, without these
      }
      throw error;
    }
    if (change.token !== undefined) {
      this.restoration.tokenTaken();
    }
    if (missing !== null) {
      throw unsupported(missing);
    }
  }

  /** Shows the user as away until `back`, also after a reconnect. */
  away(options: Abortable = {}): Promise<void> {
    return this.update({ status: "away" }, options);
  }

  /** Shows the user as online again. */
  back(options: Abortable = {}): Promise<void> {
    return this.update({ status: "online" }, options);
  }

  /**
   * Requests another idle time-out; resolves with the granted one, which keepalives follow. Later logins request
   * the same.
   */
  async setIdleTimeout(idleTimeoutMs: number, { signal }: Abortable = {}): Promise<number> {
    const change = { idleTimeoutMs: checkedMs("idleTimeoutMs", idleTimeoutMs) };
    const granted = (answer: ValueMap): number => {
      this.machine.granted(change, this.environment.now());
      return 1000 * Number(answer["idle_timeout"] ?? idleTimeoutMs / 1000);
    };
    return this.requestUpdate(change, granted, signal);
  }

  /**
   * Changes what later logins carry, also while offline: for example a new token after `disconnected` with
   * code 302.
   *
   * @throws EncodeError, TypeError, RangeError a field is wrong; nothing was changed.
   */
  logInWith(change: Change): void {
    this.machine.login.change(checkedChange(change, this.serverTimeMs()));
  }

  // State

  /**
   * The rooms that this device is in, in the order of their bytes, as the server has said last; those that the token
   * puts it into are among them. Null before the first login, and on a server that is older or has no rooms. While
   * the client is offline, those of the last connection.
   */
  get joined(): readonly string[] | null {
    return this.machine.login.joined;
  }

  get state(): State {
    return this.machine.state;
  }

  /** The time by the clock of the last server; null before the first login. */
  serverTime(): Date | null {
    const timeMs = this.machine.serverTimeMs(this.environment.now());
    return timeMs === null ? null : new Date(timeMs);
  }

  /**
   * Counters since the start: logins granted; connections lost, and failed attempts; the last round trip of a
   * keepalive on this connection; in iterators, elements dropped, and changes left out because a later one of
   * the same user was queued.
   */
  statistics(): {
    logins: number;
    losses: number;
    roundTripMs: number | null;
    pushesDropped: number;
    pushesSuperseded: number;
  } {
    const { logins, losses } = this.machine.reconnectPolicy;
    const { dropped, superseded } = this.streams.counts();
    const { roundTripMs } = this.machine;
    return { logins, losses, roundTripMs, pushesDropped: dropped, pushesSuperseded: superseded };
  }

  /** The server's clock; before the first login this device's, the best guess there is. */
  private serverTimeMs(): number {
    return this.machine.serverTimeMs(this.environment.now()) ?? Date.now();
  }

  // Runs, and the effects of the machine

  /** The run with whose end ends what begins now. */
  private get newestRun(): Run {
    return this.nextRun ?? this.run ?? this.laterRun;
  }

  private takeLaterRun(): Run {
    const run = this.laterRun;
    this.laterRun = new Run();
    return run;
  }

  private begin(run: Run): void {
    this.run = run;
    this.machine.begin(this.environment.now());
    this.link.update();
  }

  private cancelNextRun(): void {
    const run = this.nextRun;
    this.nextRun = null;
    if (run) {
      this.endRun(run, null, this.machine.endError());
    }
  }

  private cameOnline(run: Run | undefined, push: Connected): void {
    if (run) {
      run.resolve(push);
      this.onlineWaiters.resolve(run);
    }
  }

  /** @param error null: by the program itself; then what waits for it is given `reason`. */
  private endRun(run: Run, error: PresenceError | null, reason: PresenceError): void {
    if (error) {
      run.fail(error);
    } else {
      run.cancel(reason);
    }
    this.onlineWaiters.reject(run, error ?? reason);
    this.streams.finish(run, error);
  }

  private report(effects: Effects): void {
    for (const effect of effects) {
      this.unreported.push(effect);
      if (this.run && (effect.type === "connected" || effect.type === "end")) {
        this.runs.set(effect, this.run);
      }
      if (effect.type === "end") {
        this.run = null;
      }
    }
    if (!this.run && this.nextRun) {
      const run = this.nextRun;
      this.nextRun = null;
      this.begin(run);
    }
    this.dispatch();
  }

  /** Reports effects in order, even if a listener calls the client. */
  private dispatch(): void {
    if (this.dispatching) {
      return;
    }
    this.dispatching = true;
    while (this.unreported.length > 0) {
      const effects = this.unreported;
      this.unreported = [];
      const last = effects.findIndex((effect) => this.reportOne(effect));
      if (last >= 0) {
        this.unreported = [...effects.slice(last + 1), ...this.unreported];
        // Let the caller receive the states before the changes that follow them.
        this.environment.afterInput(() => {
          this.dispatching = false;
          this.dispatch();
        });
        return;
      }
    }
    this.dispatching = false;
  }

  /** Returns whether it was an answer that contains states. */
  private reportOne(effect: Effects[number]): boolean {
    switch (effect.type) {
      case "result":
        return this.handleResult(effect.id, effect.result);
      case "end": {
        const run = this.runs.get(effect);
        this.restoration.stop();
        if (run) {
          this.endRun(run, effect.error, this.machine.endError());
        }
        this.emit("end", effect.error);
        return false;
      }
      case "connected":
        this.restoration.start(effect); // before what a listener requests
        this.cameOnline(this.runs.get(effect), effect);
        break;
      case "disconnected":
        this.restoration.stop();
    }
    if (effect.type === "row") {
      const change = this.roomWatches.pushed(effect);
      if (change) {
        this.emitPush(change);
      }
    } else if (effect.type !== "presence" || this.watchedUsers.applyChange(effect)) {
      this.emitPush(effect);
    }
    return false;
  }

  private handleResult(id: number, result: ValueMap | PresenceError): boolean {
    const pending = this.pendingRequests.get(id);
    this.pendingRequests.delete(id);
    pending?.onSettled?.();
    if (result instanceof PresenceError) {
      pending?.reject(result);
      return false;
    }
    pending?.resolve(result);
    return "presence" in result || "states" in result || "rooms" in result;
  }

  private emitPush(push: Push | WatchEnded | RoomChanged): void {
    this.streams.put(push as Element);
    this.emit(push.type, push);
  }

  /** Calls the listeners. What one throws is thrown later, and stops neither another nor the client. */
  private emit(name: keyof Events, event: Events[keyof Events]): void {
    this.listeners.call(name, event, (error) => this.environment.throwLater(error));
  }

  // Requests

  /** Sends a request; `parse` is called with its answer before anything that follows it is reported. */
  private request<Result>(
    kind: number,
    payload: Readonly<Record<string, unknown>>,
    parse: (payload: ValueMap) => Result,
    { retry = false, waitMs = 0, signal }: { retry?: boolean; waitMs?: number } & Abortable = {},
  ): Promise<Result> {
    const send = (): number => {
      checkedBoolean("retry", retry);
      const timeoutMs = waitMs + this.requestTimeoutMs;
      return this.machine.request(kind, payload, timeoutMs, this.environment.now(), retry);
    };
    return this.ask(send, parse, { signal });
  }

  /** As `request`; `send` returns the id. With `goesOn` the request is not given up if the call is aborted. */
  private ask<Result>(
    send: () => number,
    parse: (payload: ValueMap) => Result,
    { signal, goesOn = false }: Abortable & { goesOn?: boolean },
  ): Promise<Result> {
    return new Promise((resolve, reject) => {
      checkSignal(signal);
      if (!goesOn) {
        signal?.throwIfAborted();
      }
      const id = send();
      const pending: PendingRequest = {
        resolve: (answer) => {
          try {
            resolve(parse(answer));
          } catch (error) {
            reject(error);
          }
        },
        reject,
      };
      if (signal) {
        const abort = (): void => {
          this.pendingRequests.delete(id);
          reject(signal.reason as Error);
          this.link.update(goesOn ? [] : this.machine.abandon(id, this.environment.now()));
        };
        if (signal.aborted) {
          abort();
          return;
        }
        pending.onSettled = onAbort(signal, abort);
      }
      this.pendingRequests.set(id, pending);
      this.link.update();
    });
  }

  private requestUpdate<Result>(
    update: Update,
    granted: (answer: ValueMap) => Result,
    signal?: AbortSignal,
    privacy: Pick<UserChange, "scope" | "hide"> = {},
  ): Promise<Result> {
    const { untilMs, idleTimeoutMs, ...rest } = update;
    const idle_timeout = idleTimeoutMs === undefined ? undefined : idleTimeoutMs / 1000;
    const payload = { ...rest, ...privacy, until_ms: untilMs, idle_timeout };
    return this.request(Kind.UPDATE, payload, granted, { signal });
  }

  /** These users are not watched any more, but the server may watch them. */
  private undoWatch(uids: readonly string[]): void {
    this.unwatch(uids).catch(() => undefined);
  }

  /** Tells the server, if there is a connection; `answered` is called when it has read that, or never will. */
  private async requestUnwatch(
    payload: Readonly<Record<string, unknown>>,
    answered: () => void,
    signal?: AbortSignal,
  ): Promise<void> {
    if (this.machine.state !== "online") {
      answered();
      return; // the watches have ended with the connection
    }
    try {
      await this.request(Kind.UNWATCH, payload, answered, { signal });
    } catch (error) {
      answered();
      if (!(error instanceof ConnectionLost)) {
        throw error;
      }
    }
  }

  /** @param isOwn whether no call of the program waits for the answer. */
  private requestWatch(
    uids: readonly string[],
    isOwn: boolean,
    signal?: AbortSignal,
  ): Promise<Map<string, UserState>> {
    const { sight } = this.restoration;
    const isSince = this.watchedUsers.watchedSince(uids);
    const apply = (answer: ValueMap): Map<string, UserState> => {
      const states = parseUserStates(answer);
      const since = new Map([...states].filter(([uid]) => isSince(uid)));
      return this.reportChanges(states, this.watchedUsers.applySnapshot(since, isOwn), sight);
    };
    return this.request(Kind.WATCH, this.restoration.watchPayload(uids), apply, { signal });
  }

  /** @param isOwn whether no call of the program waits for the answer. */
  private async requestRoster(isOwn: boolean, signal?: AbortSignal): Promise<Map<string, UserState>> {
    throwIfAborted(signal);
    const { sight } = this.restoration;
    const request = this.watchedUsers.rosterRequested();
    const apply = (answer: ValueMap): Map<string, UserState> => {
      if (answer["roster"] === undefined) {
        throw unsupported("this server keeps no rosters");
      }
      const states = parseUserStates(answer);
      const changes = this.watchedUsers.applyRoster(request, states, isOwn);
      return this.reportChanges(states, changes, sight);
    };
    const payload = { ...this.restoration.watchPayload([]), roster: true };
    try {
      return await this.request(Kind.WATCH, payload, apply, { signal });
    } catch (error) {
      const mayBeGranted = error instanceof RequestTimeout || signal?.aborted === true;
      if (this.watchedUsers.rosterFailed(request) && mayBeGranted) {
        const undo = { uids: [], roster: true };
        this.request(Kind.UNWATCH, undo, () => undefined).catch(() => undefined);
      }
      throw error;
    }
  }

  private async requestRooms(
    rooms: readonly string[],
    signal?: AbortSignal,
  ): Promise<Map<string, RoomState>> {
    const request = this.roomWatches.requested(rooms);
    const apply = (answer: ValueMap): Map<string, RoomState> => {
      const rows = roomRows(answer);
      const later = (answer["later"] ?? []) as string[];
      this.roomWatches.granted(request, rows, later).forEach((change) => this.emitPush(change));
      const known = this.roomWatches.states();
      return new Map([...statesOf(rows), ...later.flatMap((room) => entryOf(known, room))]);
    };
    try {
      return await this.request(Kind.WATCH, { uids: [], rooms }, apply, { signal });
    } catch (error) {
      // This request, or an earlier one for the same rooms, may have been granted all the same.
      this.requestRoomsUnwatch(this.roomWatches.failed(request)).catch(() => undefined);
      throw error;
    }
  }

  private async requestRoomsUnwatch(rooms: readonly string[], signal?: AbortSignal): Promise<void> {
    const unwatch = (batch: readonly string[]): Promise<void> =>
      this.requestUnwatch({ uids: [], rooms: batch }, () => undefined, signal);
    await Promise.all(batches(rooms, WATCHED_ROOMS_MAX).map(unwatch));
  }

  /** Emits the changes of an answer that was requested at this `sight`; returns the newest states of its users. */
  private reportChanges(
    states: ReadonlyMap<string, UserState>,
    changes: readonly PresenceChanged[],
    sight: number,
  ): Map<string, UserState> {
    changes.forEach((change) => this.emitPush(change));
    // A later push may have been newer.
    const newest = new Map([...states].map(([uid, state]) => [uid, this.watchedUsers.state(uid) ?? state]));
    if ([...newest.values()].some(isHidden)) {
      this.restoration.usersAreHidden(sight);
    }
    return newest;
  }
}

/** @throws Unsupported the server is older, or has no rooms. */
function roomRows(answer: ValueMap): RoomRow[] {
  const rows = parseRoomRows(answer);
  if (!rows) {
    throw unsupported(NO_ROOMS);
  }
  return rows;
}

function statesOf(rows: readonly RoomRow[]): Map<string, RoomState> {
  return new Map(rows.map(({ room, count, members }) => [room, { count: count ?? 0, members }]));
}

/** The entry of a room in a map, if there is one. */
function entryOf(states: Map<string, RoomState>, room: string): [string, RoomState][] {
  const state = states.get(room);
  return state ? [[room, state]] : [];
}

function unsupported(message: string): Unsupported {
  return new Unsupported({ code: Code.UNSUPPORTED, reason: "unsupported", message, retryAfterMs: null });
}
