/** The public client. */

import { EventEmitter } from "node:events";

import { Code, Kind } from "./constants.js";
import { ConnectionLost, NotConnected, PresenceError, RequestTimeout } from "./errors.js";
import { type Endpoint, Link } from "./link.js";
import type { Change, Identity } from "./login.js";
import { ClientMachine, type State } from "./machine.js";
import {
  type Connected,
  type Delivered,
  type Disconnected,
  type Goodbye,
  parseUserStates,
  type PresenceChanged,
  type Push,
  type UserState,
  type WatchEnded,
} from "./pushes.js";
import type { Chance } from "./reconnect.js";
import { type OwnRequest, Restoration } from "./restoration.js";
import type { Effects } from "./session.js";
import { remainingLifetimeMs, type TokenSource } from "./tokens.js";
import type { Value, ValueMap } from "./values.js";
import { batches, WatchedUsers } from "./watches.js";

const REQUEST_TIMEOUT_MS = 10_000;
const MAX_PASSES = 16; // that a server takes on one connection
const USERS_THAT_FIT = 32; // with their devices, into one answer: a refusal of so few is about the number of watches

export interface Options extends Omit<Identity, "token">, Endpoint {
  /**
   * The user's token, if the server requires one; or a function that returns one. It is called before each
   * login, and again before a token expires whose expiry can be read (`exp` of a JSON Web Token): the new one
   * is sent on the same connection. If it throws, the attempt has failed. After a refusal, the same token
   * again or an expired one also counts as a failed attempt; if another token is refused, the client ends.
   */
  readonly token?: string | TokenSource | undefined;
  /** Whether to repeat a failed first attempt; if false, the default, `connect` rejects. */
  readonly persistent?: boolean;
  /**
   * Whether the states of watched users have their devices, and a device that comes or goes is a change. The
   * server's operator has to allow it (`device_events`); otherwise `devices` is null.
   */
  readonly watchDevices?: boolean;
  /** How long a request waits for its answer; 10,000 if left out. */
  readonly requestTimeoutMs?: number;
  /**
   * Every n-th keepalive asks for an answer; 1 if left out. A dead server is detected within `askEvery + 1`
   * intervals; 3 spares the server two of three answers.
   */
  readonly askEvery?: number;
  /** Source of jitter: uniform in [0, 1); `Math.random` if left out. */
  readonly chance?: Chance;
}

/** The arguments of listeners, by event. */
export interface Events {
  connected: Connected;
  disconnected: Disconnected;
  goodbye: Goodbye;
  message: Delivered;
  presence: PresenceChanged;
  watchEnded: WatchEnded;
  /** The client has ended: null after its own logout or close, else the error. Always the last event. */
  end: PresenceError | null;
}

type Listener<Name extends keyof Events> = (event: Events[Name]) => void;

interface PendingRequest {
  resolve(payload: ValueMap): void;
  reject(error: PresenceError): void;
}

/**
 * One device of a user. It sends keepalives at the server's interval, detects a dead server, reconnects by
 * itself until the server forbids it, and then restores its watches.
 *
 * Add listeners, then call `connect`. Requests reject with `NotConnected` while the client is not logged in;
 * they are not queued, because they could be outdated by then. Every request also rejects with `Unsupported`,
 * `Busy`, `RequestFailed`, `ConnectionLost`, `RequestTimeout`, `Ended`, and with `EncodeError` for an
 * argument that breaks a rule of the protocol.
 */
export class PresenceClient {
  private readonly emitter = new EventEmitter();
  private readonly machine: ClientMachine;
  private readonly link: Link;
  private readonly watchedUsers = new WatchedUsers();
  private readonly pendingRequests = new Map<number, PendingRequest>();
  private readonly passes = new Set<string>(); // the newest that a server has taken
  private readonly restoration: Restoration;
  private readonly effects: Effects = []; // not yet reported
  private dispatching = false;
  private connecting: Promise<Connected> | null = null;
  private endEmitted = false;

  /** @throws EncodeError the login breaks a rule of the protocol. */
  constructor(private readonly options: Options) {
    const { chance = Math.random, token, ...rest } = options;
    const source = typeof token === "function" ? token : null;
    const login = typeof token === "function" ? rest : { ...rest, token };
    const persistent = options.persistent ?? false;
    const onTokenRenewed = (): void => queueMicrotask(() => this.askForHidden());
    const machineOptions = { ...rest, chance, persistent, fetchesTokens: source !== null, onTokenRenewed };
    this.machine = new ClientMachine(login, machineOptions);
    this.link = new Link(this.machine, options, source, (effects) => {
      this.effects.push(...effects);
      this.dispatch();
    });
    this.restoration = new Restoration(chance);
  }

  on<Name extends keyof Events>(name: Name, listener: Listener<Name>): this {
    this.emitter.on(name, listener);
    return this;
  }

  once<Name extends keyof Events>(name: Name, listener: Listener<Name>): this {
    this.emitter.once(name, listener);
    return this;
  }

  off<Name extends keyof Events>(name: Name, listener: Listener<Name>): this {
    this.emitter.off(name, listener);
    return this;
  }

  /**
   * Logs in; resolves when the client is online.
   *
   * Rejects with `Unreachable`, `NoToken` or `LoginRefused` if the first attempt fails (with `persistent`:
   * only with `LoginRefused`, if the server forbids a reconnect), and with `Ended` if the client is closed in
   * the meantime.
   */
  connect(): Promise<Connected> {
    this.connecting ??= new Promise((resolve, reject) => {
      this.emitter.once("connected", resolve);
      this.emitter.once("end", () => reject(this.machine.endError()));
      this.link.start();
    });
    return this.connecting;
  }

  // Requests

  /**
   * Sends `body` to all sessions of the user `to`; resolves with their number, at least 1. A message is
   * delivered at most once.
   *
   * Rejects with `RecipientOffline` if the user has no session, with `RecipientDisconnected` if the user has
   * lost its connection and has not returned in time, with `Busy` if a limit was exceeded (nothing was
   * delivered), and with `OutcomeUnknown`, `ConnectionLost` or `RequestTimeout` if it may or may not have
   * been delivered.
   *
   * @param retry send it again every second, within `requestTimeoutMs`, while the recipient has lost its
   *   connection and may return; later messages to the same user wait behind it. True if left out.
   */
  sendMessage(to: string, body: Value, { retry = true }: { retry?: boolean } = {}): Promise<number> {
    const count = (payload: ValueMap): number => Number(payload["delivered"] ?? 0);
    return this.request(Kind.MESSAGE, { to, body }, count, retry);
  }

  /**
   * Resolves with the states of at most 500 users.
   *
   * @param detail with those of their devices; then so many users may not fit into an answer (`too_large`).
   */
  query(uids: Iterable<string>, { detail = false }: { detail?: boolean } = {}): Promise<Map<string, UserState>> {
    const payload = detail ? { uids: [...uids], detail } : { uids: [...uids] };
    return this.request(Kind.QUERY, payload, parseUserStates);
  }

  /**
   * Watches at most 500 more users; resolves with their states. `presence` follows for each change, also
   * after a reconnect. The caller receives the states before any later change.
   */
  async watch(uids: Iterable<string>): Promise<Map<string, UserState>> {
    const list = [...new Set(uids)];
    const request = this.watchedUsers.requestSent(list);
    try {
      return await this.request(Kind.WATCH, this.watchPayload(list), (answer) => this.applySnapshot(answer));
    } catch (error) {
      const dropped = this.watchedUsers.requestFailed(request);
      if (error instanceof RequestTimeout && dropped.length > 0) {
        this.unwatch(dropped).catch(() => undefined); // the server may have granted it
      }
      throw error;
    }
  }

  /**
   * Gives the server a pass, by which this user may see others until it expires, also after a reconnect.
   * Watched users who were `not_allowed` are asked for again.
   */
  async addPass(pass: string): Promise<void> {
    await this.request(Kind.WATCH, { uids: [], pass }, () => {
      this.passes.delete(pass);
      for (const oldest of [...this.passes].slice(0, Math.max(0, this.passes.size + 1 - MAX_PASSES))) {
        this.passes.delete(oldest);
      }
      this.passes.add(pass);
    });
    this.askForHidden();
  }

  /** Stops watching some users, or all. No events of these users follow the call. */
  async unwatch(uids?: Iterable<string>): Promise<void> {
    const list = uids && [...uids];
    this.watchedUsers.remove(list);
    try {
      await this.request(Kind.UNWATCH, { uids: list }, () => undefined);
    } catch (error) {
      if (!(error instanceof NotConnected || error instanceof ConnectionLost)) {
        throw error;
      } // else the watches have ended with the connection
    }
  }

  /** The newest known states of the watched users. */
  watched(): Map<string, UserState> {
    return this.watchedUsers.states();
  }

  /**
   * Changes what others see, now and in later logins: meta (an empty map removes it) and status, perhaps until a
   * time, after which the one from before returns; what only the backend sees (private); the idle time-out, to
   * which keepalives adapt; or sends a new token before the old one expires. Fields left out stay as they are.
   */
  async update(change: Change): Promise<void> {
    const update = this.requestUpdate(change, () => this.machine.login.granted(change));
    this.machine.login.supersede(change);
    await update;
    if (change.token !== undefined) {
      this.askForHidden();
    }
  }

  /** Shows the user as away until `back`, also after a reconnect. */
  away(): Promise<void> {
    return this.update({ status: "away" });
  }

  /** Shows the user as online again. */
  back(): Promise<void> {
    return this.update({ status: "online" });
  }

  /**
   * Changes what later logins carry, also while offline: for example a new token after `disconnected` with
   * code 302.
   *
   * @throws EncodeError a field breaks a rule of the protocol; nothing was changed.
   */
  logInWith(change: Change): void {
    this.machine.login.change(change);
  }

  /**
   * Logs out: the user is offline immediately. The client ends even if this rejects. Use `background` when
   * the system suspends the app.
   */
  logout(reason?: "logout" | "background"): Promise<void> {
    return new Promise((resolve, reject) => {
      try {
        const id = this.machine.logOut(reason, performance.now());
        this.pendingRequests.set(id, { resolve: () => resolve(), reject });
      } finally {
        this.link.update();
      }
    });
  }

  /** Ends without a logout, as if the network broke: the user is offline after the server's grace. */
  close(): void {
    this.link.update(this.machine.close());
  }

  // State

  get state(): State {
    return this.machine.state;
  }

  /** Logins granted, connections lost or failed, and the last round trip of a keepalive. */
  statistics(): { logins: number; losses: number; roundTripMs: number | null } {
    const { logins, losses } = this.machine.reconnectPolicy;
    return { logins, losses, roundTripMs: this.machine.roundTripMs };
  }

  // Requests and events of the machine

  private request<Result>(
    kind: number,
    payload: Readonly<Record<string, unknown>>,
    parse: (payload: ValueMap) => Result,
    retry = false,
  ): Promise<Result> {
    return new Promise((resolve, reject) => {
      const timeoutMs = this.options.requestTimeoutMs ?? REQUEST_TIMEOUT_MS;
      const id = this.machine.request(kind, payload, timeoutMs, performance.now(), retry);
      const settle = (answer: ValueMap): void => {
        try {
          resolve(parse(answer));
        } catch (error) {
          reject(error);
        }
      };
      this.pendingRequests.set(id, { resolve: settle, reject });
      this.link.update();
    });
  }

  /** Reports effects in order, even if a listener calls the client. */
  private dispatch(): void {
    if (this.dispatching) {
      return;
    }
    this.dispatching = true;
    for (let each = this.effects.shift(); each; each = this.effects.shift()) {
      if (each.type !== "result") {
        this.handlePush(each);
      } else if (this.handleResult(each.id, each.result)) {
        // Let the caller receive the states before the changes that follow them.
        setImmediate(() => {
          this.dispatching = false;
          this.dispatch();
        });
        return;
      }
    }
    this.dispatching = false;
    if (this.machine.state === "ended" && !this.endEmitted) {
      this.endEmitted = true;
      this.restoration.stop();
      this.emit("end", this.machine.error);
    }
  }

  private handlePush(push: Push): void {
    if (push.type === "connected") {
      this.restoration.start(this.ownRequests(push)); // before what a listener requests
    } else if (push.type === "disconnected") {
      this.restoration.stop();
    }
    if (push.type !== "presence" || this.watchedUsers.applyChange(push)) {
      this.emit(push.type, push);
    }
  }

  /** What a new connection has to have, and does not have by its login. */
  private ownRequests(push: Connected): OwnRequest[] {
    if (!push.again) {
      return [this.rest];
    }
    for (const pass of this.passes) {
      if ((remainingLifetimeMs(pass, push.timeMs) ?? 1) <= 0) {
        this.passes.delete(pass);
      }
    }
    const passes = [...this.passes].map((pass) => this.passOf(pass));
    return [this.rest, ...passes, ...this.watchesOf(this.watchedUsers.states().keys())];
  }

  /** Asks again for watched users who were `not_allowed`: a new token or pass may show them. */
  private askForHidden(): void {
    this.restoration.add(this.watchesOf(this.watchedUsers.hidden()));
  }

  private watchPayload(uids: readonly string[]): ValueMap {
    return this.options.watchDevices ? { uids: [...uids], detail: true } : { uids: [...uids] };
  }

  private requestUpdate(change: Change, granted: () => void): Promise<void> {
    const { untilMs, idleTimeoutMs, ...rest } = change;
    const idle_timeout = idleTimeoutMs === undefined ? undefined : idleTimeoutMs / 1000;
    return this.request(Kind.UPDATE, { ...rest, until_ms: untilMs, idle_timeout }, granted);
  }

  /** What the login had to leave out. */
  private readonly rest: OwnRequest = {
    send: () => {
      const change = this.machine.login.rest();
      return change && this.requestUpdate(change, () => undefined);
    },
    refused: () => [],
  };

  /** A pass of an earlier connection. */
  private passOf(pass: string): OwnRequest {
    return {
      send: () => {
        const given = this.passes.has(pass) && this.request(Kind.WATCH, { uids: [], pass }, () => undefined);
        return given ? given.then(() => this.askForHidden()) : null;
      },
      refused: () => {
        this.passes.delete(pass);
        return [];
      },
    };
  }

  /** Watches of these users, again. */
  private watchesOf(uids: Iterable<string>): OwnRequest[] {
    return batches(uids).map((batch) => this.watchOf(batch));
  }

  private watchOf(batch: readonly string[]): OwnRequest {
    let uids = batch;
    return {
      send: () => {
        uids = uids.filter((uid) => this.watchedUsers.has(uid));
        const parse = (answer: ValueMap): void => void this.applySnapshot(answer);
        return uids.length > 0 ? this.request(Kind.WATCH, this.watchPayload(uids), parse) : null;
      },
      refused: (error) => {
        if (error.code === Code.TOO_LARGE && this.options.watchDevices && uids.length > USERS_THAT_FIT) {
          const half = uids.length >> 1; // the answer, with all devices, would not fit into a frame
          return [this.watchOf(uids.slice(0, half)), this.watchOf(uids.slice(half))];
        }
        this.watchedUsers.remove(uids);
        this.emit("watchEnded", { uids, error });
        return [];
      },
    };
  }

  /** Returns whether the result contains states. */
  private handleResult(id: number, result: ValueMap | PresenceError): boolean {
    const pending = this.pendingRequests.get(id);
    this.pendingRequests.delete(id);
    if (result instanceof PresenceError) {
      pending?.reject(result);
      return false;
    }
    pending?.resolve(result);
    return "presence" in result;
  }

  /** Applies the answer to a watch: emits its changes, and returns the newest states of its users. */
  private applySnapshot(answer: ValueMap): Map<string, UserState> {
    const states = parseUserStates(answer);
    for (const change of this.watchedUsers.applySnapshot(states)) {
      this.emit("presence", change);
    }
    const known = this.watchedUsers.states(); // a later push may have been newer
    return new Map([...states].map(([uid, state]) => [uid, known.get(uid) ?? state]));
  }

  /** Emits an event. What a listener throws is thrown later, and stops no other event. */
  private emit(name: keyof Events, event: Events[keyof Events]): void {
    try {
      this.emitter.emit(name, event);
    } catch (error) {
      setImmediate(() => {
        throw error;
      });
    }
  }
}
