/** The names of this client agree with the table that all client libraries share. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import * as exported from "../src/index.js";
import {
  type Connected,
  type Delivered,
  type DeviceState,
  type Disconnected,
  type Dropped,
  type Goodbye,
  type Options,
  type PresenceChanged,
  type Receipt,
  type Refusal,
  type RoomChanged,
  type RoomState,
  TcpConnector,
  type UserState,
  type WatchEnded,
} from "../src/index.js";
import { ended, requestFailed } from "../src/errors.js";

interface Table {
  readonly errors: Readonly<
    Record<string, { readonly parent: string | null; readonly codes: readonly number[] }>
  >;
  readonly pushes: Readonly<Record<string, readonly string[]>>;
  readonly results: Readonly<Record<string, readonly string[]>>;
  readonly options: readonly string[];
  /** Names of times in seconds, which are in milliseconds here. */
  readonly seconds: readonly string[];
}

const TABLE = JSON.parse(readFileSync(join(__dirname, "../../../names.json"), "utf-8")) as Table;

/** Python's spelling in TypeScript's. */
function spelled(name: string): string {
  const camelCase = name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
  return TABLE.seconds.includes(name) ? `${camelCase}Ms` : camelCase;
}

function sorted(names: Iterable<string>): string[] {
  return [...names].sort();
}

test("errors", () => {
  const classes = new Map<string, { readonly prototype: Error }>();
  for (const [name, value] of Object.entries(exported)) {
    if (typeof value === "function" && value.prototype instanceof Error && name !== "ProtocolError") {
      classes.set(name, value as unknown as typeof Error);
    }
  }
  assert.deepEqual(sorted(classes.keys()), sorted(Object.keys(TABLE.errors)));
  for (const [name, { parent }] of Object.entries(TABLE.errors)) {
    const prototype = Object.getPrototypeOf(classes.get(name)?.prototype) as Error;
    assert.equal(prototype.constructor, parent === null ? Error : classes.get(parent), name);
  }
});

test("codes of errors", () => {
  for (const [name, { codes }] of Object.entries(TABLE.errors)) {
    for (const code of codes) {
      const refusal: Refusal = { code, reason: "a_reason", message: "why", retryAfterMs: 1500 };
      const isOfConnection = code >= 300 && code < 310;
      const error = isOfConnection ? ended(refusal) : requestFailed(refusal);
      assert.equal(error.constructor.name, name);
      assert.equal(error.name, name);
      assert.deepEqual(
        { ...refusal },
        {
          code: error.code,
          reason: error.reason,
          message: error.message,
          retryAfterMs: error.retryAfterMs,
        },
      );
    }
  }
});

test("an error without a message says its reason", () => {
  const error = requestFailed({ code: 404, reason: "busy", message: "", retryAfterMs: null });
  assert.equal(error.message, "busy (404)");
});

// Each has all fields of its type, and no other, or it would not compile.
const refusal = { code: 1, reason: "", message: "" };
const deviceState: DeviceState = { device: "", status: "", sinceMs: 1, deviceClass: null, meta: {} };
const state: UserState = {
  status: "",
  sinceMs: null,
  lastSeenMs: null,
  id: null,
  meta: {},
  reason: null,
  devices: null,
};
const connected: Connected = {
  type: "connected",
  session: "",
  idleTimeoutMs: 1,
  keepaliveMs: 1,
  timeMs: null,
  again: false,
};
const disconnected: Disconnected = { type: "disconnected", ...refusal, retryInMs: 1 };
const goodbye: Goodbye = { type: "goodbye", ...refusal, reconnect: true, retryAfterMs: null };
const presenceChanged: PresenceChanged = { type: "presence", uid: "", state, reason: "" };
const watchEnded: WatchEnded = { type: "watchEnded", uids: [], ...refusal };
const roomState: RoomState = { count: 0, members: null };
const roomChanged: RoomChanged = { type: "room", room: "", state: roomState, joined: [], left: [] };
const delivered: Delivered = { type: "message", sender: "", body: null, atMs: 1 };
const dropped: Dropped = { type: "dropped", kind: "messages", count: 1 };
const PUSHES: Readonly<Record<string, object>> = {
  Connected: connected,
  Disconnected: disconnected,
  Goodbye: goodbye,
  PresenceChanged: presenceChanged,
  WatchEnded: watchEnded,
  RoomChanged: roomChanged,
  Delivered: delivered,
  Dropped: dropped,
};

const receipt: Receipt = { delivered: 1, confirmed: 1, byApp: 1, unconfirmed: 0 };

test("results", () => {
  const results = { Receipt: receipt, RoomState: roomState, UserState: state, DeviceState: deviceState };
  const mine = Object.fromEntries(
    Object.entries(results).map(([name, result]) => [name, sorted(Object.keys(result))] as const),
  );
  const fields = Object.entries(TABLE.results).map(
    ([name, each]) => [name, sorted(each.map(spelled))] as const,
  );
  assert.deepEqual(mine, Object.fromEntries(fields));
});

test("pushes", () => {
  assert.deepEqual(sorted(Object.keys(PUSHES)), sorted(Object.keys(TABLE.pushes)));
  for (const [name, fields] of Object.entries(TABLE.pushes)) {
    const mine = Object.keys(PUSHES[name] ?? {}).filter((field) => field !== "type");
    assert.deepEqual(sorted(mine), sorted(fields.map(spelled)), name);
  }
});

const OPTIONS: Required<Options> = {
  host: "",
  port: 1,
  tls: false,
  url: "",
  connector: new TcpConnector({ host: "localhost", port: 1 }),
  uid: "",
  device: "",
  deviceClass: "",
  token: "",
  idleTimeoutMs: 1,
  meta: {},
  private: {},
  status: "online",
  quiet: false,
  rooms: [],
  persistent: false,
  watchDevices: false,
  requestTimeoutMs: 1,
  askEvery: 1,
  maxMessages: 1,
  maxChanges: 1,
};

// What has no counterpart: in Python `wait` and `open_stream`, and no WebSocket.
const OWN_OPTIONS = ["persistent", "connector", "url"];

test("options", () => {
  assert.deepEqual(sorted(Object.keys(OPTIONS)), sorted([...TABLE.options.map(spelled), ...OWN_OPTIONS]));
});
