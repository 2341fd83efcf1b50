/** Connectors of the program that break their rules: each mistake costs a connection, never the client. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Connection, type ConnectionEvents, ConnectionLost, type Connector, PresenceClient } from "../src/index.js";
import { VirtualServer, VirtualTime } from "./virtual.js";

interface Context {
  readonly time: VirtualTime;
  readonly server: VirtualServer;
  readonly client: PresenceClient;
  readonly events: string[];
}

/** @param change makes the connector's connection another one. */
function created(change: (connection: Connection) => unknown, persistent = false): Context {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const connector = { connect: (events: ConnectionEvents) => change(server.connect(events)) } as Connector;
  const client = new PresenceClient({ connector, uid: "ann", persistent }, time);
  const events: string[] = [];
  client.on("disconnected", ({ reason, message }) => events.push(`${reason}: ${message}`));
  client.on("end", (error) => events.push(`end: ${error?.message ?? ""}`));
  return { time, server, client, events };
}

for (const [what, value] of [["nothing", undefined], ["null", null], ["a promise", Promise.resolve({})]] as const) {
  test(`a connector that returns ${what} has failed`, async () => {
    const { client } = created(() => value);
    await assert.rejects(client.connect(), { name: "Unreachable", message: /must return .* write and destroy/ });
  });
}

test("a write that throws is a lost connection", async () => {
  let failure: Error | null = null;
  const { client, server, time, events } = created((connection) => ({
    destroy: () => connection.destroy(),
    write: (bytes: Uint8Array) => {
      if (failure) {
        throw failure;
      }
      connection.write(bytes);
    },
  }));
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  failure = new Error("the pipe broke");
  const bothLost = [client.query(["bob"]), client.query(["eve"])].map((each) => assert.rejects(each));
  await Promise.all(bothLost);
  assert.deepEqual([events, server.peer.state], [["closed: the pipe broke"], "closed"]);
  failure = null;
  await time.advance(1000);
  server.peer.logIn();
  await client.waitOnline();
});

test("a request whose write throws is uncertain", async () => {
  let fails = false;
  const { client, server } = created((connection) => ({
    destroy: () => connection.destroy(),
    write: (bytes: Uint8Array) => {
      connection.write(bytes);
      if (fails) {
        throw new Error("after the bytes");
      }
    },
  }));
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  fails = true;
  await assert.rejects(client.sendMessage("bob", 1), ConnectionLost);
});

test("a login whose write throws is a failed attempt", async () => {
  const write = (): never => {
    throw new Error("the pipe broke");
  };
  const { client, server } = created((connection) => ({ destroy: () => connection.destroy(), write }));
  const connected = client.connect();
  server.peer.open();
  await assert.rejects(connected, { name: "Unreachable", message: "the pipe broke" });
});

test("a keepalive whose write throws is a lost connection", async () => {
  let fails = false;
  const { client, server, time, events } = created((connection) => ({
    destroy: () => connection.destroy(),
    write: (bytes: Uint8Array) => {
      if (fails) {
        throw new Error("the pipe broke");
      }
      connection.write(bytes);
    },
  }));
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  fails = true;
  await time.advance(12_000);
  assert.equal(events[0], "closed: the pipe broke");
});

test("an exception of destroy is thrown later, and the client ends", async () => {
  const failure = new Error("a connector's own");
  const { client, server, time, events } = created((connection) => ({
    write: (bytes: Uint8Array) => connection.write(bytes),
    destroy: () => {
      throw failure;
    },
  }));
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  const lost = assert.rejects(client.query(["bob"]));
  client.disconnect();
  await lost;
  assert.deepEqual([events, time.thrown], [["end: "], [failure]]);
});

for (const [reason, message] of [[null, ""], [new Error("reset"), "reset"]] as const) {
  test(`a connection may close with ${String(reason)} as its reason`, async () => {
    const { client, server, events } = created((connection) => connection, true);
    client.connect().catch(() => undefined);
    server.peer.close(reason as unknown as string);
    assert.deepEqual(events, [`unreachable: ${message}`]);
    client.disconnect();
  });
}
