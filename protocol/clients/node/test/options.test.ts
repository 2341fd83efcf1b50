/** Wrong arguments are refused where they enter. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Change, EncodeError, Kind, type Options, PresenceClient } from "../src/index.js";
import { SERVER_TIME_S } from "./driver.js";
import { VirtualServer, VirtualTime } from "./virtual.js";

const ADDRESS = { host: "127.0.0.1", port: 7400, uid: "ann" };
const TIMES = [0, -1, NaN, Infinity];
const COUNTS = [0, -1, 1.5, NaN, Infinity];

const WRONG: readonly (readonly [string, readonly unknown[], new () => Error])[] = [
  ["host", ["", 7, null], TypeError],
  ["port", ["7400", null], TypeError],
  ["port", [0, -1, 70_000, 1.5, NaN], RangeError],
  ["tls", [7, "yes", null, { ca: 5 }, { cert: "no certificate" }], TypeError],
  ["token", [7, null, {}], TypeError],
  ["connector", [{}, null, { connect: 7 }], TypeError],
  ["requestTimeoutMs", ["1", null], TypeError],
  ["requestTimeoutMs", TIMES, RangeError],
  ["idleTimeoutMs", TIMES, RangeError],
  ["askEvery", COUNTS, RangeError],
  ["maxMessages", COUNTS, RangeError],
  ["maxChanges", COUNTS, RangeError],
  ["persistent", ["no", 1, null], TypeError],
  ["watchDevices", ["no", 1, null], TypeError],
  ["requestTimeout", [10], TypeError], // no such option
  ["untilMs", [1_700_000_000_000], TypeError],
  ["uid", ["a b", "", 7], EncodeError as never],
  ["meta", [{ about: "m".repeat(300) }], EncodeError as never],
];

for (const [name, values, type] of WRONG) {
  for (const value of values) {
    test(`${name} must not be ${JSON.stringify(value)}, ${String(value)}`, () => {
      assert.throws(
        () => new PresenceClient({ ...ADDRESS, [name]: value } as Options),
        (error) => error instanceof type,
      );
    });
  }
}

test("null is not the same as an option left out", () => {
  const options = { ...ADDRESS, askEvery: null } as unknown as Options;
  assert.throws(() => new PresenceClient(options), TypeError);
});

test("a client has a connector or an address", () => {
  assert.throws(() => new PresenceClient({ ...ADDRESS, connector: new VirtualServer() }), TypeError);
  assert.throws(() => new PresenceClient({ uid: "ann" }), TypeError);
});

async function online(): Promise<{ client: PresenceClient; server: VirtualServer; time: VirtualTime }> {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann" }, time);
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  return { client, server, time };
}

test("a string is no list of uids", async () => {
  const { client, server } = await online();
  for (const call of ["query", "watch", "unwatch"] as const) {
    await assert.rejects(client[call]("bob"), TypeError);
  }
  assert.throws(() => client.watchNowait("bob"), TypeError);
  assert.equal(server.peer.received.length, 0);
});

test("what is no list of uids is refused", async () => {
  const { client, server } = await online();
  for (const wrong of [null, 7, {}] as unknown as string[][]) {
    await assert.rejects(client.query(wrong), { name: "TypeError", message: /uids/ });
    await assert.rejects(client.watch(wrong), { name: "TypeError", message: /uids/ });
    await assert.rejects(client.unwatch(wrong), { name: "TypeError", message: /uids/ });
    assert.throws(() => client.watchNowait(wrong), { name: "TypeError", message: /uids/ });
  }
  await assert.rejects(client.watch(undefined as never), TypeError);
  assert.equal(server.peer.received.length, 0);
});

test("a pass is a string, and a flag a boolean", async () => {
  const { client, server } = await online();
  await assert.rejects(client.addPass(undefined as never), EncodeError);
  await assert.rejects(client.sendMessage("bob", 1, { retry: "no" as never }), TypeError);
  await assert.rejects(client.query(["bob"], { detail: 1 as never }), TypeError);
  assert.equal(server.peer.received.length, 0);
});

class Move {
  constructor(readonly x: number) {}
}

test("a body that cannot be sent is named", async () => {
  const { client } = await online();
  await assert.rejects(client.sendMessage("bob", new Move(1)), { name: "EncodeError", message: /Move/ });
  await assert.rejects(client.sendMessage("bob", [new Date()]), { name: "EncodeError", message: /Date/ });
});

test("a wrong uid adds and removes no watch", async () => {
  const { client } = await online();
  assert.throws(() => client.watchNowait(["bob", ""]), EncodeError);
  assert.equal(client.watched().size, 0);
  client.watchNowait(["bob"]);
  await assert.rejects(client.unwatch(["bob", ""]), EncodeError);
  assert.deepEqual([...client.watched().keys()], ["bob"]);
});

for (const change of ["away", null, undefined, ["away"], { statsu: "away" }, { status: "dnd", untilMs: 1 }, { forMs: 1 }]) {
  test(`a change must not be ${JSON.stringify(change)}`, async () => {
    const { client, server } = await online();
    await assert.rejects(client.update(change as Change), { name: "TypeError", message: /change|until/ });
    assert.throws(() => client.logInWith(change as Change), { name: "TypeError", message: /change|until/ });
    assert.equal(server.peer.received.length, 0);
  });
}

const wrongChanges: readonly (readonly [unknown, new () => Error])[] = [
  [{ until: new Date(), forMs: 1 }, TypeError],
  [{ until: 1_700_000_000_000 }, TypeError],
  [{ until: new Date(NaN) }, RangeError],
  [{ forMs: 0 }, RangeError],
  [{ forMs: NaN }, RangeError],
];

for (const [end, type] of wrongChanges) {
  test(`a status cannot end so: ${JSON.stringify(end)}`, async () => {
    const { client, server } = await online();
    const change = { status: "dnd", ...(end as object) } as Change;
    await assert.rejects(client.update(change), type);
    assert.throws(() => client.logInWith(change), type);
    assert.equal(server.peer.received.length, 0);
  });
}

test("a status ends at a date, or after a time by the server's clock", async () => {
  const { client, server, time } = await online();
  await time.advance(500);
  const requests = [
    client.update({ status: "dnd", until: new Date(2_000_000_000_000) }),
    client.update({ status: "busy", forMs: 60_000 }),
  ];
  const untils = requests.map(() => server.peer.grant(Kind.UPDATE).payload["until_ms"]);
  await Promise.all(requests);
  assert.deepEqual(untils, [2_000_000_000_000, SERVER_TIME_S * 1000 + 500 + 60_000]);
});

test("the server's time runs on, also while offline, and is unknown before the first login", async () => {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann" }, time);
  assert.equal(client.serverTime(), null);
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  client.disconnect();
  await time.advance(1500);
  assert.equal(client.serverTime()?.getTime(), SERVER_TIME_S * 1000 + 1500);
});

test("setIdleTimeout resolves with what the server grants", async () => {
  const { client, server } = await online();
  const granted = client.setIdleTimeout(240_000);
  assert.deepEqual(server.peer.grant(Kind.UPDATE, { idle_timeout: 200, keepalive: 80 }).payload, {
    idle_timeout: 240,
  });
  assert.equal(await granted, 200_000);
  await assert.rejects(client.setIdleTimeout(0), RangeError);
});
