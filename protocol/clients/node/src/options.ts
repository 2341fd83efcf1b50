/** The options of a client and the arguments of its requests, checked where they enter. */

import type { Connector } from "./connector.js";
import { ASK_EVERY } from "./keepalives.js";
import type { Identity, LoginChange, Status } from "./login.js";
import type { TokenSource } from "./tokens.js";
import { WebSocketConnector } from "./websocket.js";

const REQUEST_TIMEOUT_MS = 10_000;
const MAX_MESSAGES = 1000; // a minute of a busy chat; with bodies of 16 KiB 16 MiB for each iterator
const MAX_CHANGES = 1000; // one of each user that a server allows to watch

/** What a client takes on every platform. */
export interface BaseOptions extends Omit<Identity, "token" | "untilMs"> {
  /** Opens the connections instead of any address. */
  readonly connector?: Connector | undefined;
  /** The server's address for WebSockets, with `ws:` or `wss:`. */
  readonly url?: string | URL | undefined;
  /**
   * The user's token, if the server requires one; or a function that returns one. It is called before each
   * login, and again before a token expires whose expiry can be read (`exp` of a JSON Web Token): the new one
   * is sent on the same connection. If it throws, the attempt has failed. After a refusal, the same token
   * again or an expired one also counts as a failed attempt; if another token is refused, the client ends.
   */
  readonly token?: string | TokenSource | undefined;
  /** Whether to repeat a failed first attempt; if false, the default, `connect` rejects. */
  readonly persistent?: boolean | undefined;
  /**
   * Whether the states of watched users have their devices, and a device that comes or goes is a change. The
   * server's operator has to allow it (`device_events`); otherwise `devices` is null.
   */
  readonly watchDevices?: boolean | undefined;
  /** How long a request waits for its answer; 10,000 if left out. */
  readonly requestTimeoutMs?: number | undefined;
  /**
   * Every n-th keepalive asks for an answer; 1 if left out. A dead server is detected within `askEvery + 1`
   * intervals; 3 spares the server two of three answers.
   */
  readonly askEvery?: number | undefined;
  /** How many messages an iterator keeps for a program that does not read; 1000 if left out. */
  readonly maxMessages?: number | undefined;
  /** As `maxMessages`, for changes of presence. */
  readonly maxChanges?: number | undefined;
}

/** What can change while online and for later logins; fields left out stay as they are. */
export interface Change {
  /** An empty map removes the meta. */
  readonly meta?: object | undefined;
  /** As `meta`. */
  readonly private?: object | undefined;
  readonly status?: Status | undefined;
  /** Whether the app is in the background: changes of watched users wait for its next keepalive or request. */
  readonly quiet?: boolean | undefined;
  /** With `status`: when it ends and the one from before returns, by the server's clock. */
  readonly until?: Date | undefined;
  /** The same as a duration from now. */
  readonly forMs?: number | undefined;
  /** A new token, before the old one expires. */
  readonly token?: string | undefined;
  /** The rooms that this device is in, at most 16; none if empty. */
  readonly rooms?: readonly string[] | undefined;
}

/** A change of a session, also of what the server keeps with the user: on all devices, and without this one. */
export interface UserChange extends Change {
  /** Rooms that this device is also in. */
  readonly join?: readonly string[] | undefined;
  /** Rooms that it is not in, unless `join` names them, too. */
  readonly leave?: readonly string[] | undefined;
  /** With `user`, `status` is the user's: `invisible` until an update of any device has another one with this scope. */
  readonly scope?: "session" | "user" | undefined;
  /** What others are not shown: when the user was active, `last_seen`; or nothing. */
  readonly hide?: readonly "last_seen"[] | undefined;
}

/** What the client makes of its options. */
export interface Configuration {
  readonly login: Identity;
  readonly connector: Connector;
  readonly tokenSource: TokenSource | null;
  readonly persistent: boolean;
  readonly watchDevices: boolean;
  readonly requestTimeoutMs: number;
  readonly askEvery: number;
  readonly maxMessages: number;
  readonly maxChanges: number;
}

const OPTION_NAMES: Readonly<Record<keyof BaseOptions, true>> = {
  connector: true,
  url: true,
  token: true,
  persistent: true,
  watchDevices: true,
  requestTimeoutMs: true,
  askEvery: true,
  maxMessages: true,
  maxChanges: true,
  uid: true,
  device: true,
  deviceClass: true,
  idleTimeoutMs: true,
  meta: true,
  private: true,
  status: true,
  quiet: true,
  rooms: true,
};

const CHANGE_NAMES: Readonly<Record<keyof Change, true>> = {
  meta: true,
  private: true,
  status: true,
  quiet: true,
  until: true,
  forMs: true,
  token: true,
  rooms: true,
};

/** @throws TypeError a name is unknown, or the scope goes with no status, or has an end. */
export function checkUserChange(change: UserChange): void {
  checkNames("a change", change, { ...CHANGE_NAMES, join: true, leave: true, scope: true, hide: true });
  const { scope, status, until, forMs } = change;
  const hasEnd = (until ?? forMs) !== undefined;
  if (scope !== undefined && (status === undefined || (scope === "user" && status === "invisible" && hasEnd))) {
    throw new TypeError("scope needs a status; an invisible user has no end");
  }
}

/** @throws TypeError, RangeError an option is wrong. The login is checked against the protocol later. */
export function checkedOptions(options: BaseOptions): Configuration {
  checkNames("options", options, OPTION_NAMES);
  const { url, connector = connectorTo(url), token, persistent = false, watchDevices = false, ...rest } = options;
  const { requestTimeoutMs = REQUEST_TIMEOUT_MS, askEvery = ASK_EVERY, ...others } = rest;
  const { maxMessages = MAX_MESSAGES, maxChanges = MAX_CHANGES, ...named } = others;
  const identity = { ...named, rooms: optionalNames("rooms", named.rooms) };
  if (url !== undefined && options.connector !== undefined) {
    throw new TypeError("either a connector or a url");
  }
  if (typeof connector?.connect !== "function") {
    throw new TypeError("connector must have a method connect");
  }
  if (token !== undefined && typeof token !== "string" && typeof token !== "function") {
    throw new TypeError("token must be a string or a function");
  }
  if (identity.idleTimeoutMs !== undefined) {
    checkedMs("idleTimeoutMs", identity.idleTimeoutMs);
  }
  return {
    login: typeof token === "string" ? { ...identity, token } : identity,
    connector,
    tokenSource: typeof token === "function" ? token : null,
    persistent: checkedBoolean("persistent", persistent),
    watchDevices: checkedBoolean("watchDevices", watchDevices),
    requestTimeoutMs: checkedMs("requestTimeoutMs", requestTimeoutMs),
    askEvery: checkedCount("askEvery", askEvery),
    maxMessages: checkedCount("maxMessages", maxMessages),
    maxChanges: checkedCount("maxChanges", maxChanges),
  };
}

function connectorTo(url: string | URL | undefined): Connector {
  if (url === undefined) {
    throw new TypeError("the address of a server is missing");
  }
  return new WebSocketConnector(url);
}

/** @throws TypeError it is no object, or has a name that is none of these: perhaps misspelt, or of an older version. */
function checkNames(what: string, value: unknown, names: Readonly<Record<string, true>>): void {
  if (typeof value !== "object" || value === null) {
    throw new TypeError(`${what} must be an object`);
  }
  const unknown = Object.keys(value).find((name) => !Object.hasOwn(names, name));
  if (unknown !== undefined) {
    throw new TypeError(`${what} must not have ${unknown}`);
  }
}

/** @throws TypeError it is no boolean. */
export function checkedBoolean(name: string, value: unknown): boolean {
  if (typeof value !== "boolean") {
    throw new TypeError(`${name} must be a boolean`);
  }
  return value;
}

/** @throws TypeError, RangeError it is no time. */
export function checkedMs(name: string, value: unknown): number {
  if (typeof value !== "number") {
    throw new TypeError(`${name} must be a number`);
  }
  if (!(value > 0 && value < Infinity)) {
    throw new RangeError(`${name} must be a time above 0, not ${value}`);
  }
  return value;
}

function checkedCount(name: string, value: unknown): number {
  if (typeof value !== "number") {
    throw new TypeError(`${name} must be a number`);
  }
  if (!Number.isSafeInteger(value) || value < 1) {
    throw new RangeError(`${name} must be a whole number of at least 1, not ${value}`);
  }
  return value;
}

/** As `checkedNames`, of a list that may be left out. */
export function optionalNames(name: string, list: Iterable<string> | undefined): string[] | undefined {
  return list === undefined ? undefined : checkedNames(name, list);
}

/**
 * Returns a copy without repetitions, which the program does not change later.
 *
 * @throws TypeError it is no list; nor is a string, each of whose characters would count as a name.
 */
export function checkedNames(name: string, list: Iterable<string>): string[] {
  const isIterable = typeof (list as Iterable<string> | null | undefined)?.[Symbol.iterator] === "function";
  if (typeof list === "string" || !isIterable) {
    throw new TypeError(`${name} must be a list, and no string`);
  }
  return [...new Set(list)];
}

/**
 * Returns a change with its end by the server's clock.
 *
 * @param serverTimeMs what that clock shows now.
 * @throws TypeError, RangeError its end is wrong.
 */
export function checkedChange(wanted: Change, serverTimeMs: number): LoginChange {
  checkNames("a change", wanted, CHANGE_NAMES);
  const { until, forMs, ...given } = wanted;
  const change = { ...given, rooms: optionalNames("rooms", given.rooms) };
  if ((until ?? forMs) !== undefined && change.status === undefined) {
    throw new TypeError("until and forMs need a status");
  }
  if (until !== undefined && forMs !== undefined) {
    throw new TypeError("either until or forMs");
  }
  if (forMs !== undefined) {
    return { ...change, untilMs: Math.round(serverTimeMs + checkedMs("forMs", forMs)) };
  }
  if (until === undefined) {
    return change;
  }
  if (!(until instanceof Date)) {
    throw new TypeError("until must be a Date");
  }
  if (!(until.getTime() >= 0)) {
    throw new RangeError("until must be a valid date after 1970");
  }
  return { ...change, untilMs: until.getTime() };
}
