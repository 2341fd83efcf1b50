/** Rooms: what an update makes of them, and what later logins carry. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Code,
  EncodeError,
  Kind,
  LimitReached,
  NotAllowed,
  type Options,
  type Packet,
  PresenceClient,
  Unsupported,
  type ValueMap,
} from "../src/index.js";
import { LOGIN_OK } from "./driver.js";
import { type VirtualPeer, VirtualServer, VirtualTime } from "./virtual.js";

const LONG = Array.from({ length: 16 }, (_, index) => `r${String(index).padStart(2, "0")}${"r".repeat(61)}`);

/** A server that has rooms, with one client. */
class Place {
  readonly time = new VirtualTime(() => 0.5);
  readonly server = new VirtualServer((packet, peer) => queueMicrotask(() => this.answer(packet, peer)));
  readonly client: PresenceClient;
  /** The logins and updates that it has received. */
  readonly received: ValueMap[] = [];
  /** Those that the session is in. */
  rooms = new Set<string>();
  claimed: readonly string[] = [];
  forbidden: readonly string[] = [];
  hasRooms = true;
  refusesWith: number | null = null;

  constructor(options: Partial<Options> = {}) {
    this.client = new PresenceClient({ connector: this.server, uid: "ann", ...options }, this.time);
  }

  static async online(options: Partial<Options> = {}, more: Partial<Place> = {}): Promise<Place> {
    const place = Object.assign(new Place(options), more);
    const connected = place.client.connect();
    place.server.peer.open();
    await connected;
    await place.time.settle();
    return place;
  }

  /** Loses the connection; returns the next login. */
  async reconnect(): Promise<ValueMap> {
    const connections = this.server.peers.length;
    const before = this.received.length;
    this.server.peer.close();
    while (this.server.peers.length === connections) {
      await this.time.advance(100);
    }
    this.server.peer.open();
    await this.time.settle();
    return this.received[before] as ValueMap;
  }

  private answer({ kind, id, payload }: Packet, peer: VirtualPeer): void {
    if (kind !== Kind.LOGIN && kind !== Kind.UPDATE) {
      return;
    }
    this.received.push(payload);
    const [rooms, join, leave] = ["rooms", "join", "leave"].map((name) => payload[name] as string[] | undefined);
    const isLogin = kind === Kind.LOGIN;
    const before = rooms ?? (isLogin ? [] : [...this.rooms]);
    const wanted = new Set([...before.filter((room) => !leave?.includes(room)), ...(join ?? [])]);
    const isForbidden = [...(rooms ?? []), ...(join ?? [])].some((room) => this.forbidden.includes(room));
    const code = isLogin ? null : (this.refusesWith ?? (isForbidden ? Code.NOT_ALLOWED : null));
    if (code !== null) {
      this.refusesWith = null;
      peer.send({ kind: Kind.ERROR, id, payload: { code, reason: "x", message: "", retry_after: 0.1 } });
      return;
    }
    this.rooms = new Set([...wanted, ...this.claimed].filter((room) => !this.forbidden.includes(room)));
    const isAbout = isLogin || (rooms ?? join ?? leave ?? payload["token"]) !== undefined;
    const joined = this.hasRooms && isAbout ? { joined: [...this.rooms].sort() } : {};
    peer.send({ kind: Kind.OK, id, payload: { ...(isLogin ? LOGIN_OK : {}), ...joined } });
  }
}

test("a login has the rooms, and so have later ones", async () => {
  const place = await Place.online({ rooms: ["lobby", "hall"] }, { claimed: ["vip"] });
  assert.deepEqual(place.received[0]?.["rooms"], ["lobby", "hall"]);
  assert.deepEqual(place.client.joined, ["hall", "lobby", "vip"]);
  assert.deepEqual((await place.reconnect())["rooms"], ["lobby", "hall"]);
});

for (const [change, later] of [
  [{ rooms: ["a"] }, ["a"]],
  [{ rooms: [] }, undefined],
  [{ join: ["a"] }, ["lobby", "hall", "a"]],
  [{ leave: ["hall", "other"] }, ["lobby"]],
  [{ leave: ["hall"], join: ["hall"] }, ["lobby", "hall"]],
  [{ rooms: ["a", "b"], leave: ["a"], join: ["c"] }, ["b", "c"]],
  [{ status: "away" }, ["lobby", "hall"]],
] as const) {
  test(`later logins have the rooms of a granted update: ${JSON.stringify(change)}`, async () => {
    const place = await Place.online({ rooms: ["lobby", "hall"] });
    await place.client.update(change);
    assert.deepEqual(place.client.joined, [...(later ?? [])].sort());
    assert.deepEqual((await place.reconnect())["rooms"], later);
  });
}

for (const [code, error] of [
  [Code.NOT_ALLOWED, NotAllowed],
  [Code.TOO_LARGE, LimitReached],
] as const) {
  test(`an update refused with ${code} changes no rooms, and the connection stays`, async () => {
    const place = await Place.online({ rooms: ["lobby"] });
    place.refusesWith = code;
    await assert.rejects(place.client.update({ join: ["hall"] }), error);
    assert.deepEqual((await place.reconnect())["rooms"], ["lobby"]);
    assert.equal(place.client.state, "online");
  });
}

test("too many rooms for a login are cut to those that the session is in", async () => {
  const names = LONG.map((name) => name.slice(0, 3));
  const place = await Place.online({ rooms: names }, { forbidden: ["r00"] });
  await place.client.update({ join: ["s"] });
  assert.deepEqual((await place.reconnect())["rooms"], [...names.slice(1), "s"]);
});

test("a renewed token changes the rooms of the session, and not what the program wants", async () => {
  const place = await Place.online({ rooms: ["lobby"] });
  place.forbidden = ["lobby"];
  place.claimed = ["vip"];
  await place.client.update({ token: "t" });
  assert.deepEqual(place.client.joined, ["vip"]);
  assert.deepEqual((await place.reconnect())["rooms"], ["lobby"]);
});

for (const change of [{ rooms: [] }, { join: ["a"] }, { leave: ["a"] }]) {
  test(`an older server has no rooms: ${JSON.stringify(change)}`, async () => {
    const place = await Place.online({ rooms: ["lobby"] }, { hasRooms: false });
    assert.equal(place.client.joined, null);
    await assert.rejects(place.client.update({ status: "away", ...change }), Unsupported);
    const { rooms, status } = await place.reconnect();
    assert.deepEqual([rooms, status], [["lobby"], "away"]);
  });
}

test("rooms that do not fit into the login are joined after it", async () => {
  const place = await Place.online({ rooms: LONG });
  assert.deepEqual(place.received.map(({ rooms, join, confirms }) => [rooms, join, confirms]), [
    [undefined, undefined, true],
    [undefined, LONG, undefined],
  ]);
  assert.deepEqual(place.client.joined, LONG);
  await place.reconnect();
  assert.deepEqual([...place.rooms].sort(), LONG);
});

test("rooms stay in the login that has no space for meta", async () => {
  const rooms = LONG.slice(2).map((name) => name.slice(0, 52));
  const meta = { text: "m".repeat(240) };
  const place = await Place.online({ rooms, meta });
  assert.deepEqual(place.received.map((each) => [each["rooms"], each["meta"]]), [
    [rooms, undefined],
    [undefined, meta],
  ]);
});

test("rooms after the login are joined in parts if one is refused", async () => {
  const place = await Place.online({ rooms: LONG }, { forbidden: [LONG[7] as string] });
  await place.time.advance(1000);
  assert.deepEqual(place.client.joined, LONG.filter((_, index) => index !== 7));
  assert.ok(place.received.length <= 10, "few requests");
});

for (const [change, then] of [
  [{ rooms: ["a"] }, ["a"]],
  [{ leave: LONG.slice(1) }, LONG.slice(0, 1)],
  [{ leave: LONG.slice(1), join: ["a"] }, ["a", ...LONG.slice(0, 1)]],
] as const) {
  const text = Object.keys(change).join();
  test(`what the login left out does not overtake an update of the program: ${text}`, async () => {
    const place = await Place.online({ rooms: LONG }, { refusesWith: Code.BUSY });
    assert.equal(place.rooms.size, 0);
    await place.client.update(change);
    await place.time.advance(2000);
    assert.deepEqual([...place.rooms].sort(), then);
  });
}

test("a refused update does not keep rooms from the server that the login left out", async () => {
  const place = await Place.online({ rooms: LONG }, { refusesWith: Code.BUSY });
  place.refusesWith = Code.NOT_ALLOWED;
  await assert.rejects(place.client.update({ rooms: ["a"] }), NotAllowed);
  await place.time.advance(2000);
  assert.deepEqual([...place.rooms].sort(), LONG);
});

test("a program that is offline changes the rooms of its next login", async () => {
  const place = await Place.online({ rooms: ["lobby"] });
  const rooms = ["hall"];
  place.client.logInWith({ rooms });
  rooms.push("later");
  assert.deepEqual((await place.reconnect())["rooms"], ["hall"]);
});

test("rooms that are none are refused at once", () => {
  const make = (rooms: unknown) => (): unknown => new Place({ rooms: rooms as string[] });
  assert.throws(make("lobby"), TypeError);
  assert.throws(make(["the lobby"]), EncodeError);
  assert.throws(make(Array.from({ length: 17 }, (_, index) => `r${index}`)), EncodeError);
});
