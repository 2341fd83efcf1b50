/** The client: what a program holds in its hand. */

import { EventEmitter } from "node:events";

import { Kind } from "./constants.js";
import { ConnectionLost, NotConnected, PresenceError, RequestTimeout } from "./errors.js";
import { Link, type Endpoint } from "./link.js";
import type { Change, Identity } from "./login.js";
import { ClientMachine, type State } from "./machine.js";
import type { Chance } from "./reconnect.js";
import {
  type Connected,
  type Delivered,
  type Disconnected,
  type Goodbye,
  type PresenceChanged,
  type Push,
  type UserState,
  parseUserStates,
  type WatchEnded,
} from "./pushes.js";
import { Resubscription } from "./resubscription.js";
import type { Effects } from "./session.js";
import type { TokenSource } from "./tokens.js";
import type { Value, ValueMap } from "./values.js";
import { WatchedUsers } from "./watches.js";

const REQUEST_TIMEOUT_MS = 10_000;

export interface Options extends Omit<Identity, "token">, Endpoint {
  /**
   * Proof of who it is, where the server asks for one; or a function that makes one. It is called before each
   * login, and again before a token that tells its end (`exp` of a JSON Web Token) is over: the fresh one is
   * sent, and the connection stays. What it throws counts as a failed attempt, and so does, after a token was
   * refused, that token again or an expired one. When another one is refused, the client ends.
   */
  readonly token?: string | TokenSource | undefined;
  /** Repeat a first attempt that fails, as later ones are; without it `connect` rejects. */
  readonly persistent?: boolean;
  /** So long a request waits for its answer; 10,000 if left out. */
  readonly requestTimeoutMs?: number;
  /**
   * One of so many beats wants an answer; 1 if left out. A dead server is noticed within `askEvery + 1`
   * intervals; 3 spares the server two of three answers.
   */
  readonly askEvery?: number;
  /** Where jitter comes from: uniform in [0, 1); `Math.random` if left out. */
  readonly chance?: Chance;
}

/** What listeners are told, by the event's name. */
export interface Events {
  connected: Connected;
  disconnected: Disconnected;
  goodbye: Goodbye;
  message: Delivered;
  presence: PresenceChanged;
  watchEnded: WatchEnded;
  /** The client is over: null after its own logout or close, else why. Always the last event. */
  end: PresenceError | null;
}

type Listener<Name extends keyof Events> = (event: Events[Name]) => void;

interface PendingRequest {
  resolve(payload: ValueMap): void;
  reject(error: PresenceError): void;
}

/**
 * One device of a user. It beats as the server dictates, notices a dead server, comes back by itself until
 * the server forbids it, and then watches again whom it watched.
 *
 * Attach listeners, then `connect`. Requests reject with `NotConnected` while the client is not logged in; they
 * are not queued, for what they would say may be stale by then. Every request also rejects with
 * `Unsupported`, `Busy`, `RequestFailed`, `ConnectionLost`, `RequestTimeout`, `Ended`, and with `EncodeError`
 * for an argument that breaks a rule of the protocol.
 */
export class PresenceClient {
  private readonly emitter = new EventEmitter();
  private readonly machine: ClientMachine;
  private readonly link: Link;
  private readonly watchedUsers = new WatchedUsers();
  private readonly pendingRequests = new Map<number, PendingRequest>();
  private readonly resubscription: Resubscription;
  private readonly effects: Effects = []; // what listeners and those who wait are still to be told
  private dispatching = false;
  private connecting: Promise<Connected> | null = null;
  private endEmitted = false;

  /** @throws EncodeError the login would break a rule of the protocol. */
  constructor(private readonly options: Options) {
    const { chance = Math.random, token, ...rest } = options;
    const source = typeof token === "function" ? token : null;
    const login = typeof token === "function" ? rest : { ...rest, token };
    const persistent = options.persistent ?? false;
    this.machine = new ClientMachine(login, { ...rest, chance, persistent, fetchesTokens: source !== null });
    this.link = new Link(this.machine, options, source, (effects) => {
      this.effects.push(...effects);
      this.dispatch();
    });
    this.resubscription = new Resubscription(
      this.watchedUsers,
      (uids) => this.request(Kind.WATCH, { uids }, (answer) => void this.applySnapshot(answer)),
      (event) => {
        this.emit("watchEnded", event);
      },
      chance,
    );
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
   * Log in; resolves as soon as the client is online.
   *
   * Rejects with `Unreachable`, `NoToken` or `LoginRefused` if the first attempt fails (with `persistent`: only
   * with `LoginRefused`, where the server forbids a return), with `Ended` if it is closed meanwhile.
   */
  connect(): Promise<Connected> {
    this.connecting ??= new Promise((resolve, reject) => {
      this.emitter.once("connected", resolve);
      this.emitter.once("end", () => {
        reject(this.machine.endError());
      });
      this.link.start();
    });
    return this.connecting;
  }

  // Requests

  /**
   * Send `body` to all sessions of the user `to`; resolves with their number, at least 1.
   *
   * Rejects with `RecipientOffline` if there is none, with `RecipientDisconnected` if the user has lost its
   * connection and has not returned in time, with `Busy` if it was surely not delivered for another reason, with
   * `OutcomeUnknown`, `ConnectionLost` or `RequestTimeout` if nobody knows. It is delivered at most once.
   *
   * @param retry send it again every second, within `requestTimeoutMs`, while the user has lost its connection
   *   and may return; what this client sends to the same user meanwhile waits behind it. True if left out.
   */
  sendMessage(to: string, body: Value, { retry = true }: { retry?: boolean } = {}): Promise<number> {
    const count = (payload: ValueMap): number => Number(payload["delivered"] ?? 0);
    return this.request(Kind.MESSAGE, { to, body }, count, retry);
  }

  /** Resolves with the states of at most 500 users. */
  query(uids: Iterable<string>): Promise<Map<string, UserState>> {
    return this.request(Kind.QUERY, { uids: [...uids] }, parseUserStates);
  }

  /**
   * Watch at most 500 users more; resolves with their states. `presence` follows for each change, also
   * after the client has lost its connection and come back. Whoever awaits gets the states first.
   */
  async watch(uids: Iterable<string>): Promise<Map<string, UserState>> {
    const list = [...new Set(uids)];
    const request = this.watchedUsers.requestSent(list);
    try {
      return await this.request(Kind.WATCH, { uids: list }, (answer) => this.applySnapshot(answer));
    } catch (error) {
      const dropped = this.watchedUsers.requestFailed(request);
      if (error instanceof RequestTimeout && dropped.length > 0) {
        this.unwatch(dropped).catch(() => undefined); // it may have been granted
      }
      throw error;
    }
  }

  /** Watch some users no more, or nobody. Nothing of them is told from the moment of the call. */
  async unwatch(uids?: Iterable<string>): Promise<void> {
    const list = uids && [...uids];
    this.watchedUsers.remove(list);
    try {
      await this.request(Kind.UNWATCH, { uids: list }, () => undefined);
    } catch (error) {
      if (!(error instanceof NotConnected || error instanceof ConnectionLost)) {
        throw error;
      } // else the server's watches have ended with the connection
    }
  }

  /** The newest states of all who are watched. */
  watched(): Map<string, UserState> {
    return this.watchedUsers.states();
  }

  /**
   * Change what others see, now and in later logins: meta (an empty map removes it), status; or give a fresh
   * token before the old one expires. What is left out stays.
   */
  async update(change: Change): Promise<void> {
    this.machine.login.check(change);
    await this.request(Kind.UPDATE, { ...change }, () => {
      this.machine.login.change(change);
    });
  }

  /** Be shown as away, until `back`: also when the client returns after a loss. */
  away(): Promise<void> {
    return this.update({ status: "away" });
  }

  /** Be shown as online again. */
  back(): Promise<void> {
    return this.update({ status: "online" });
  }

  /**
   * Change what later logins carry, also while offline: after `disconnected` with code 302, a fresh token.
   *
   * @throws EncodeError a part breaks a rule of the protocol; nothing was changed.
   */
  logInWith(change: Change): void {
    this.machine.login.change(change);
  }

  /**
   * Log out: the user is offline at once, and the client has ended, whatever this rejects with; `background`
   * says that the app went to sleep.
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

  /** End without a logout, as if the network broke: the user is offline after the server's grace. */
  close(): void {
    this.link.update(this.machine.close());
  }

  // State

  get state(): State {
    return this.machine.state;
  }

  /** How often it came online, how often a connection was lost or not to be had, and the last round trip. */
  statistics(): { logins: number; losses: number; roundTripMs: number | null } {
    const { logins, losses } = this.machine.reconnectPolicy;
    return { logins, losses, roundTripMs: this.machine.roundTripMs };
  }

  // Between the machine and those who wait

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

  /** Tell what was caused, in order, whatever listeners do meanwhile. */
  private dispatch(): void {
    if (this.dispatching) {
      return;
    }
    this.dispatching = true;
    for (let each = this.effects.shift(); each; each = this.effects.shift()) {
      if (each.type !== "result") {
        this.handlePush(each);
      } else if (this.handleResult(each.id, each.result)) {
        // Whoever awaits states runs before the changes that follow them are told.
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
      this.resubscription.stop();
      this.emit("end", this.machine.error);
    }
  }

  private handlePush(push: Push): void {
    if (push.type !== "presence" || this.watchedUsers.applyChange(push)) {
      this.emit(push.type, push);
    }
    if (push.type === "connected" && push.again) {
      this.resubscription.start();
    } else if (push.type === "disconnected") {
      this.resubscription.stop();
    }
  }

  /** Return whether the answer told states. */
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

  /** Take the answer to a watch: tell what it changes, and return the newest states of those in it. */
  private applySnapshot(answer: ValueMap): Map<string, UserState> {
    const states = parseUserStates(answer);
    for (const change of this.watchedUsers.applySnapshot(states)) {
      this.emit("presence", change);
    }
    const known = this.watchedUsers.states(); // of somebody watched before it may be newer
    return new Map([...states].map(([uid, state]) => [uid, known.get(uid) ?? state]));
  }

  /** A listener that throws is the program's mistake, and ends it as such, but not what is told to others. */
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
