/** Watched rooms: their states, what changes them, and watches after a reconnect. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Busy,
  Code,
  EncodeError,
  Kind,
  LimitReached,
  NotAllowed,
  type Options,
  type Packet,
  PresenceClient,
  RequestTimeout,
  type RoomChanged,
  Unsupported,
  type Value,
} from "../src/index.js";
import { parseRoomRows } from "../src/pushes.js";
import { WatchedRooms } from "../src/watched-rooms.js";
import { VirtualServer, VirtualTime } from "./virtual.js";

type Row = Value[];

/** The rooms with these whole states are watched. */
function watched(...rows: Row[]): WatchedRooms {
  const rooms = new WatchedRooms();
  const request = rooms.requested(rows.map(([room]) => room as string));
  assert.deepEqual(rooms.granted(request, parse(...rows)), []);
  return rooms;
}

function parse(...rows: Row[]): NonNullable<ReturnType<typeof parseRoomRows>> {
  return parseRoomRows({ rooms: rows }) ?? [];
}

function pushed(rooms: WatchedRooms, row: Row): unknown {
  return rooms.pushed(parse(row)[0]!);
}

function names(rooms: WatchedRooms): string[] {
  return [...rooms.states().keys()];
}

function changed(count: number, members: string[] | null, joined: string[] = [], left: string[] = []): RoomChanged {
  return { type: "room", room: "lobby", state: { count, members }, joined, left };
}

const ENDED = { type: "room", room: "lobby", state: null, joined: [], left: [] };

for (const [what, before, row, expected] of [
  ["a difference", ["lobby", 2, ["ann", "bob"]], ["lobby", 3, ["eve", "kim"], ["ann"]],
    changed(3, ["bob", "eve", "kim"], ["eve", "kim"], ["ann"])],
  ["a whole list", ["lobby", 2, ["ann", "bob"]], ["lobby", 2, ["bob", "eve"]],
    changed(2, ["bob", "eve"], ["eve"], ["ann"])],
  ["too many members", ["lobby", 2, ["ann", "bob"]], ["lobby", 3], changed(3, null)],
  ["few enough members", ["lobby", 3], ["lobby", 2, ["ann", "bob"]], changed(2, ["ann", "bob"])],
  ["a count", ["lobby", 3], ["lobby", 4], changed(4, null)],
  ["members whom this client may not see", ["lobby", 2, ["ann"]], ["lobby", 1, [], []], changed(1, ["ann"])],
  ["members whom it may not see any more", ["lobby", 2, ["ann"]], ["lobby", 2, [], ["ann"]],
    changed(2, [], [], ["ann"])],
  ["nobody", ["lobby", 1, ["ann"]], ["lobby", 0, [], ["ann"]], changed(0, [], [], ["ann"])],
  ["the same", ["lobby", 1, ["ann"]], ["lobby", 1, ["ann"]], null],
  ["the same count", ["lobby", 3], ["lobby", 3], null],
  ["a difference without a list", ["lobby", 3], ["lobby", 4, ["eve"], []], changed(4, null)],
  ["the end of the watch", ["lobby", 3], ["lobby", null], ENDED],
] as [string, Row, Row, RoomChanged | null][]) {
  test(`a room changes: ${what}`, () => {
    const rooms = watched(before);
    assert.deepEqual(pushed(rooms, row), expected);
    assert.deepEqual([...rooms.states().values()], expected?.state === null ? [] : [
      expected?.state ?? { count: before[1], members: before[2] ?? null },
    ]);
  });
}

test("a later answer reports what has changed", () => {
  const rooms = watched(["lobby", 1, ["ann"]], ["hall", 1]);
  const answer = parse(["lobby", 1, ["bob"]], ["hall", 1]);
  assert.deepEqual(rooms.granted(rooms.requested(["lobby", "hall"]), answer), [
    changed(1, ["bob"], ["bob"], ["ann"]),
  ]);
});

test("members that follow an answer are one change, with their row", () => {
  const rooms = watched(["lobby", 2, ["ann", "bob"]]);
  const again = (): unknown => rooms.granted(rooms.requested(["lobby"]), parse(["lobby", 3]), ["lobby"]);
  assert.deepEqual(again(), []);
  assert.deepEqual(rooms.states().get("lobby"), { count: 2, members: ["ann", "bob"] }, "until their row");
  assert.deepEqual(pushed(rooms, ["lobby", 2, ["ann", "bob"]]), null);
  assert.deepEqual(again(), []);
  assert.deepEqual(pushed(rooms, ["lobby", 2, ["bob", "eve"]]), changed(2, ["bob", "eve"], ["eve"], ["ann"]));
});

test("a room that is new has a count until its members follow", () => {
  const rooms = watched();
  assert.deepEqual(rooms.granted(rooms.requested(["lobby"]), parse(["lobby", 1]), ["lobby"]), []);
  assert.deepEqual(rooms.states().get("lobby"), { count: 1, members: null });
  assert.deepEqual(pushed(rooms, ["lobby", 1, ["ann"]]), changed(1, ["ann"]));
});

test("a push about a room whose state is not known means nothing", () => {
  const rooms = watched(["hall", 1]);
  const request = rooms.requested(["lobby"]);
  assert.equal(pushed(rooms, ["lobby", 2, ["bob"], []]), null);
  assert.equal(pushed(rooms, ["lobby", null]), null);
  assert.equal(pushed(rooms, ["roof", 2]), null);
  assert.deepEqual(names(rooms), ["hall"]);
  rooms.granted(request, parse(["lobby", 1, ["ann"]]));
  assert.deepEqual(names(rooms), ["hall", "lobby"]);
});

test("an answer revives no room that was unwatched since, and a later request does", () => {
  const rooms = watched();
  const first = rooms.requested(["lobby", "hall"]);
  rooms.remove(["lobby"]);
  const second = rooms.requested(["lobby"]);
  rooms.granted(first, parse(["lobby", 1], ["hall", 2]));
  assert.deepEqual(names(rooms), ["hall"]);
  rooms.granted(second, parse(["lobby", 1]));
  assert.deepEqual(names(rooms), ["hall", "lobby"]);
});

test("a failed request drops the rooms that nothing else watches", () => {
  const rooms = watched(["hall", 1]);
  const [first, second] = [rooms.requested(["hall", "lobby", "roof"]), rooms.requested(["lobby"])];
  assert.deepEqual(rooms.failed(first), ["roof"]);
  assert.deepEqual(rooms.failed(second), ["lobby"]);
  assert.deepEqual(names(rooms), ["hall"]);
});

test("a watch that has ended begins again with the answer that a call waits for", () => {
  const rooms = watched(["lobby", 1]);
  const request = rooms.requested(["lobby"]);
  assert.deepEqual(pushed(rooms, ["lobby", null]), ENDED);
  assert.deepEqual(names(rooms), []);
  assert.deepEqual(rooms.granted(request, parse(["lobby", 2])), []);
  assert.deepEqual(names(rooms), ["lobby"]);
});

// The client

const REASON = new Error("aborted by the test");

interface Context {
  readonly time: VirtualTime;
  readonly server: VirtualServer;
  readonly client: PresenceClient;
  readonly changes: string[];
}

async function online(options: Partial<Options> = {}): Promise<Context> {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann", ...options }, time);
  const changes: string[] = [];
  client.on("room", ({ room, state, joined, left }) => {
    const parts = [room, state?.count ?? "ended", ...joined.map((uid) => `+${uid}`), ...left.map((uid) => `-${uid}`)];
    changes.push(parts.join(" "));
  });
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  return { time, server, client, changes };
}

/** A client that watches rooms with these states. */
async function watching(...rows: Row[]): Promise<Context> {
  const context = await online();
  const states = context.client.watchRooms(rows.map(([room]) => room as string));
  context.server.peer.grant(Kind.WATCH, { rooms: rows });
  await states;
  await context.time.settle();
  return context;
}

async function reconnect({ time, server }: Context): Promise<void> {
  server.peer.close();
  await time.advance(0);
  server.peer.logIn();
  await time.settle();
}

function rowsPacket(...rows: Row[]): Packet {
  return { kind: Kind.ROOMS, id: null, payload: { rooms: rows } };
}

test("a watch resolves with the states, and changes follow", async () => {
  const context = await online();
  const { client, server, time, changes } = context;
  const iterator = client.roomChanges();
  const states = client.watchRooms(["lobby", "hall"]);
  const { id, payload } = server.peer.take(Kind.WATCH);
  assert.deepEqual(payload, { uids: [], rooms: ["lobby", "hall"] });
  let returned: unknown = null;
  void states.then((given) => (returned = given));
  client.on("room", () => assert.ok(returned, "the states come before a change"));
  const ok = { kind: Kind.OK, id, payload: { rooms: [["lobby", 1, ["bob"]], ["hall", 500]] } };
  server.peer.send(ok, rowsPacket(["hall", 499], ["lobby", 2, ["eve"], []]));
  await time.settle();
  assert.deepEqual(returned, new Map([
    ["lobby", { count: 1, members: ["bob"] }],
    ["hall", { count: 500, members: null }],
  ]));
  assert.deepEqual(changes, ["hall 499", "lobby 2 +eve"]);
  assert.deepEqual(client.watchedRooms(), new Map([
    ["lobby", { count: 2, members: ["bob", "eve"] }],
    ["hall", { count: 499, members: null }],
  ]));
  assert.equal((await iterator.next()).value?.type, "room");
  assert.deepEqual(await iterator.next(), { done: false, value: changed(2, ["bob", "eve"], ["eve"]) });
});

test("an iterator that is not read says how many changes it has dropped", async () => {
  const { client, server, time } = await online({ maxChanges: 2 });
  const iterator = client.roomChanges();
  void client.watchRooms(["lobby"]);
  server.peer.grant(Kind.WATCH, { rooms: [["lobby", 0]] });
  server.peer.send(...[1, 2, 3].map((count) => rowsPacket(["lobby", count])));
  await time.settle();
  client.disconnect();
  const given = [];
  for await (const each of iterator) {
    given.push(each.type === "dropped" ? each : each.state?.count);
  }
  assert.deepEqual(given, [{ type: "dropped", kind: "rooms", count: 1 }, 2, 3]);
});

test("a query resolves with states, and watches nothing", async () => {
  const { client, server } = await online();
  const states = client.queryRooms(["lobby", "lobby"]);
  assert.deepEqual(server.peer.grant(Kind.QUERY, { rooms: [["lobby", 3]] }).payload, {
    uids: [],
    rooms: ["lobby"],
  });
  assert.deepEqual(await states, new Map([["lobby", { count: 3, members: null }]]));
  assert.equal(client.watchedRooms().size, 0);
});

for (const [code, error] of [
  [Code.NOT_ALLOWED, NotAllowed],
  [Code.TOO_LARGE, LimitReached],
  [Code.BUSY, Busy],
] as const) {
  test(`a watch refused with ${code} adds no room`, async () => {
    const { client, server } = await watching(["hall", 1]);
    const refused = assert.rejects(client.watchRooms(["lobby", "hall"]), error);
    server.peer.refuse(Kind.WATCH, code);
    await refused;
    assert.deepEqual([...client.watchedRooms().keys()], ["hall"]);
    assert.equal(client.state, "online");
  });
}

test("an older server, or one without rooms, ignores the key", async () => {
  const { client, server, time } = await online();
  const refused = [client.watchRooms(["lobby"]), client.queryRooms(["lobby"])].map((each) =>
    assert.rejects(each, Unsupported),
  );
  server.peer.grant(Kind.WATCH, { presence: {} });
  server.peer.grant(Kind.QUERY, { presence: {} });
  await time.settle();
  await Promise.all(refused);
  assert.equal(client.watchedRooms().size, 0);
});

test("rooms are watched again after a reconnect, and what has changed meanwhile is reported", async () => {
  const context = await watching(["lobby", 1, ["bob"]], ["hall", 5]);
  await reconnect(context);
  const { payload } = context.server.peer.grant(Kind.WATCH, { rooms: [["lobby", 1, ["eve"]], ["hall", 5]] });
  await context.time.settle();
  assert.deepEqual(payload, { uids: [], rooms: ["lobby", "hall"] });
  assert.deepEqual(context.changes, ["lobby 1 +eve -bob"]);
});

test("a busy server is asked again", async () => {
  const context = await watching(["lobby", 1]);
  await reconnect(context);
  context.server.peer.refuse(Kind.WATCH, Code.BUSY);
  await context.time.advance(2000);
  context.server.peer.grant(Kind.WATCH, { rooms: [["lobby", 2]] });
  await context.time.settle();
  assert.deepEqual(context.changes, ["lobby 2"]);
});

test("if one room may not be watched any more, the others are asked for in parts", async () => {
  const context = await watching(["lobby", 1], ["hall", 1], ["roof", 1]);
  const { client, server, time, changes } = context;
  await reconnect(context);
  void client.unwatchRooms(["roof"]);
  server.peer.refuse(Kind.WATCH, Code.NOT_ALLOWED);
  server.peer.grant(Kind.UNWATCH);
  await time.settle();
  server.peer.grant(Kind.WATCH, { rooms: [["lobby", 2]] });
  server.peer.refuse(Kind.WATCH, Code.NOT_ALLOWED);
  await time.settle();
  assert.deepEqual(changes, ["lobby 2", "hall ended"]);
  assert.deepEqual([...client.watchedRooms().keys()], ["lobby"]);
  assert.equal(server.peer.received.length, 0);
});

test("a server without rooms ends the watches", async () => {
  const context = await watching(["lobby", 1], ["hall", 1]);
  await reconnect(context);
  context.server.peer.grant(Kind.WATCH, { presence: {} });
  await context.time.settle();
  assert.deepEqual(context.changes, ["lobby ended", "hall ended"]);
  await reconnect(context);
  assert.equal(context.server.peer.received.length, 0);
});

test("an aborted watch is undone", async () => {
  const { client, server, time } = await watching(["hall", 1]);
  const controller = new AbortController();
  const aborted = assert.rejects(client.watchRooms(["lobby"], { signal: controller.signal }), REASON);
  controller.abort(REASON);
  await aborted;
  server.peer.grant(Kind.WATCH, { rooms: [["lobby", 1]] });
  await time.settle();
  assert.deepEqual(server.peer.take(Kind.UNWATCH).payload, { uids: [], rooms: ["lobby"] });
  assert.deepEqual([...client.watchedRooms().keys()], ["hall"]);
});

test("a room that stays watched is asked for again if an answer about it came too late", async () => {
  const { client, server, time, changes } = await watching(["lobby", 1, ["bob"]]);
  const late = assert.rejects(client.watchRooms(["lobby"]), RequestTimeout);
  await time.advance(10_000);
  await late;
  server.peer.grant(Kind.WATCH, { rooms: [["lobby", 2, ["bob", "eve"]]] });
  server.peer.send(rowsPacket(["lobby", 1, [], ["bob"]]));
  server.peer.grant(Kind.WATCH, { rooms: [["lobby", 1, ["eve"]]] });
  await time.settle();
  assert.deepEqual(changes, ["lobby 1 -bob", "lobby 1 +eve"]);
});

test("rooms are unwatched: some, all, and with all users", async () => {
  const { client, server, time, changes } = await watching(["lobby", 1], ["hall", 1], ["roof", 1]);
  const pending = client.watchRooms(["attic"]);
  void client.unwatchRooms(["lobby", "other"]);
  server.peer.grant(Kind.WATCH, { rooms: [["attic", 1]] });
  server.peer.send(rowsPacket(["lobby", 2]));
  assert.deepEqual(server.peer.grant(Kind.UNWATCH).payload, { uids: [], rooms: ["lobby", "other"] });
  await pending;
  void client.unwatchRooms();
  assert.deepEqual(server.peer.grant(Kind.UNWATCH).payload, { uids: [], rooms: ["hall", "roof", "attic"] });
  void client.watchRooms(["hall"]);
  server.peer.grant(Kind.WATCH, { rooms: [["hall", 1]] });
  await time.settle();
  void client.unwatch();
  assert.deepEqual(server.peer.grant(Kind.UNWATCH).payload, {});
  assert.deepEqual([client.watchedRooms().size, changes], [0, []]);
});

test("rooms are unwatched offline, and nothing is sent if there are none", async () => {
  const context = await watching(["lobby", 1]);
  const { client, server } = context;
  server.peer.close();
  await client.unwatchRooms();
  await reconnect(context);
  await client.unwatchRooms();
  assert.equal(server.peer.received.length, 0);
});

test("wrong arguments are refused immediately, and nothing is sent", async () => {
  const { client, server } = await online();
  const tooMany = Array.from({ length: 65 }, (_, index) => `r${index}`);
  for (const call of ["watchRooms", "queryRooms", "unwatchRooms"] as const) {
    await assert.rejects(client[call]("lobby"), TypeError);
    await assert.rejects(client[call](["the lobby"]), EncodeError);
    await assert.rejects(client[call](tooMany), EncodeError);
  }
  assert.equal(server.peer.received.length, 0);
});
