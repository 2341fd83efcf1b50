/** Connections over a platform's WebSocket, which is a fake here: Node has one from version 22. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { type Connection, encode, Kind, type Options, PresenceClient, WebSocketConnector } from "../src/index.js";
import { LOGIN_OK } from "./driver.js";

class FakeSocket {
  static made: FakeSocket[] = [];
  binaryType = "blob";
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  readonly sent: Uint8Array[] = [];
  closes = 0;

  constructor(
    readonly url: string,
    readonly subprotocol: string,
  ) {
    FakeSocket.made.push(this);
  }

  send(bytes: Uint8Array): void {
    this.sent.push(bytes);
  }

  close(): void {
    this.closes += 1;
  }
}

const globals = globalThis as { WebSocket?: unknown };
const real = globals.WebSocket;

beforeEach(() => {
  FakeSocket.made = [];
  globals.WebSocket = FakeSocket;
});
afterEach(() => {
  globals.WebSocket = real;
});

function opened(): { socket: FakeSocket; calls: unknown[][]; connection: Connection } {
  const calls: unknown[][] = [];
  const connection = new WebSocketConnector("ws://localhost:7480").connect({
    opened: () => calls.push(["opened"]),
    received: (bytes) => calls.push(["received", ...bytes]),
    closed: (reason) => calls.push(["closed", reason]),
  });
  return { socket: FakeSocket.made[0] as FakeSocket, calls, connection };
}

test("it offers the binary subprotocol, and reports what happens", () => {
  const { socket, calls } = opened();
  assert.deepEqual([socket.url, socket.subprotocol, socket.binaryType], ["ws://localhost:7480/", "presence.v1", "arraybuffer"]);
  assert.deepEqual(calls, []);
  socket.onopen?.();
  socket.onmessage?.({ data: Uint8Array.of(1, 2).buffer });
  socket.onclose?.({ code: 1001, reason: "bye" });
  assert.deepEqual(calls, [["opened"], ["received", 1, 2], ["closed", "bye"]]);
});

for (const [code, reason, expected] of [
  [1000, "", "the server closed it"],
  [1000, "done", "done"],
  [1006, "", "closed with code 1006"],
] as const) {
  test(`a close with ${code} and ${reason || "no reason"} is reported as: ${expected}`, () => {
    const { socket, calls } = opened();
    socket.onclose?.({ code, reason });
    assert.deepEqual(calls, [["closed", expected]]);
  });
}

test("a device that is offline says so", () => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  Object.defineProperty(globalThis, "navigator", { value: { onLine: false }, configurable: true });
  try {
    const { socket, calls } = opened();
    socket.onclose?.({ code: 1006, reason: "" });
    assert.deepEqual(calls, [["closed", "this device is offline"]]);
  } finally {
    Object.defineProperty(globalThis, "navigator", before ?? { value: undefined, configurable: true });
  }
});

test("what is written at once goes in messages that a server accepts", () => {
  const { socket, connection } = opened();
  const bytes = Uint8Array.from({ length: 40_000 }, (_, place) => place % 251);
  connection.write(bytes);
  assert.deepEqual(socket.sent.map(({ length }) => length), [16_384, 16_384, 7232]);
  assert.deepEqual(Buffer.concat(socket.sent), Buffer.from(bytes));
});

test("a message of text ends the connection", () => {
  const { socket, calls } = opened();
  socket.onmessage?.({ data: "text" });
  assert.deepEqual([socket.closes, calls], [1, []]);
});

test("a destroyed connection is closed and reports nothing", () => {
  const { socket, calls, connection } = opened();
  connection.destroy();
  socket.onclose?.({ code: 1000, reason: "" });
  socket.onmessage?.({ data: new ArrayBuffer(1) });
  assert.deepEqual([socket.closes, calls], [1, []]);
});

test("a client with a url logs in over it", async () => {
  const client = new PresenceClient({ url: "wss://example.org/presence?x=1", uid: "ann" });
  const connected = client.connect();
  const [socket] = FakeSocket.made;
  assert.ok(socket);
  assert.equal(socket.url, "wss://example.org/presence?x=1");
  socket.onopen?.();
  const { buffer } = Uint8Array.from(encode(Kind.OK, 1, LOGIN_OK));
  socket.onmessage?.({ data: buffer });
  assert.equal((await connected).session, "s-1");
  client.disconnect();
  assert.equal(socket.closes, 1);
});

for (const url of ["http://localhost", "localhost:7480", "", "ws://localhost/#part", 7, null]) {
  test(`a url must not be ${url}`, () => {
    assert.throws(() => new PresenceClient({ url, uid: "ann" } as Options), TypeError);
  });
}

test("a client has one address", () => {
  const url = "ws://localhost";
  const connector = { connect: () => assert.fail() };
  for (const other of [{ connector }, { host: "localhost", port: 1 }]) {
    assert.throws(() => new PresenceClient({ url, uid: "ann", ...other }), TypeError);
  }
});

test("a platform without a WebSocket is told from a wrong address", () => {
  globals.WebSocket = undefined;
  assert.throws(() => new PresenceClient({ url: "ws://localhost", uid: "ann" }), /no WebSocket/);
});
