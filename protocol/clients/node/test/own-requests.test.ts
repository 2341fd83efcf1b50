/** What the client requests by itself, in virtual time. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, Kind, type Options, type Packet, PresenceClient, type ValueMap } from "../src/index.js";
import { LOGIN_OK, SERVER_TIME_S, token } from "./driver.js";
import { type VirtualPeer, VirtualServer, VirtualTime } from "./virtual.js";

const ONLINE = { status: "online", id: "1-0" };
const HIDDEN = { status: "not_allowed" };

interface Context {
  readonly time: VirtualTime;
  readonly server: VirtualServer;
  readonly client: PresenceClient;
}

/** A client of a server that grants everything; `answer` returns the states of users, or a refusal's code. */
async function online(
  answer: (packet: Packet) => ValueMap | number | null,
  options: Partial<Options> = {},
  chance = 0.99,
): Promise<Context> {
  const time = new VirtualTime(() => chance);
  const onPacket = (packet: Packet, peer: VirtualPeer): void => {
    const { id, kind } = packet;
    queueMicrotask(() => {
      const states = kind === Kind.WATCH ? answer(packet) : {};
      if (kind === Kind.LOGIN) {
        peer.send({ kind: Kind.OK, id, payload: LOGIN_OK });
      } else if (typeof states === "number") {
        const payload = { code: states, reason: "busy", message: "for a test", retry_after: 0.1 };
        peer.send({ kind: Kind.ERROR, id, payload });
      } else if (states !== null) {
        peer.send({ kind: Kind.OK, id, payload: kind === Kind.WATCH ? { presence: states } : {} });
      }
    });
  };
  const server = new VirtualServer(onPacket);
  const client = new PresenceClient({ connector: server, uid: "ann", ...options }, time);
  const connected = client.connect();
  server.peer.open();
  await connected;
  return { time, server, client };
}

async function reconnect({ time, server }: Context): Promise<VirtualPeer> {
  const connections = server.peers.length;
  server.peer.close();
  while (server.peers.length === connections) {
    await time.advance(100);
  }
  server.peer.open();
  await time.advance(1000);
  return server.peer;
}

function uidsOf({ payload }: Packet): string[] {
  return payload["uids"] as string[];
}

/** Waits in virtual time. */
async function settled<T>({ time }: Context, promise: Promise<T>): Promise<T> {
  await time.settle();
  return promise;
}

test("a busy server an hour ago makes no pause longer", async () => {
  const refusedAt = new Map<string, number>();
  const pauses: number[] = [];
  const context = await online((packet) => {
    const uid = uidsOf(packet)[0] as string;
    const before = refusedAt.get(uid);
    refusedAt.set(uid, context.time.now());
    if (before === undefined) {
      return Code.BUSY;
    }
    pauses.push(context.time.now() - before);
    return { [uid]: ONLINE };
  });
  for (let hour = 0; hour < 10; hour += 1) {
    context.client.watchNowait([`u${hour}`]);
    await context.time.advance(3_600_000);
  }
  assert.deepEqual(
    pauses,
    Array.from({ length: 10 }, () => 100 + 990),
  );
});

test("the pauses of one request grow while the server is busy", async () => {
  const times: number[] = [];
  const context = await online(() => {
    times.push(context.time.now());
    return Code.BUSY;
  });
  context.client.watchNowait(["bob"]);
  await context.time.advance(60_000);
  const pauses = times.slice(1).map((at, index) => at - (times[index] as number));
  assert.deepEqual(
    pauses.slice(0, 5),
    [0, 1, 2, 3, 4].map((n) => 100 + 990 * 2 ** n),
  );
});

test("a busy answer to one request does not hold up another", async () => {
  const asked: string[] = [];
  const context = await online((packet) => {
    asked.push(...uidsOf(packet));
    return asked.length === 1 ? Code.BUSY : { eve: ONLINE };
  });
  context.client.watchNowait(["bob"]);
  await context.time.settle();
  context.client.watchNowait(["eve"]);
  await context.time.settle();
  assert.deepEqual(asked, ["bob", "eve"]);
});

test("a reconnect with passes asks for each user once, after the last pass", async () => {
  const users = Array.from({ length: 912 }, (_, n) => `u${n}`);
  const context = await online((packet) => Object.fromEntries(uidsOf(packet).map((uid) => [uid, HIDDEN])));
  const { client } = context;
  for (const part of [users.slice(0, 500), users.slice(500)]) {
    await settled(context, client.watch(part));
  }
  for (let pass = 0; pass < 12; pass += 1) {
    await settled(context, client.addPass(`p${pass}`));
  }
  const peer = await reconnect(context);
  const watches = peer.of(Kind.WATCH);
  assert.equal(watches.filter(({ payload }) => payload["pass"] !== undefined).length, 12);
  assert.deepEqual(watches.slice(0, 12).flatMap(uidsOf), []);
  assert.deepEqual(watches.flatMap(uidsOf), users);
});

test("several passes given together make one question for hidden users", async () => {
  const asked: string[][] = [];
  const context = await online((packet) => {
    asked.push(uidsOf(packet));
    return { bob: HIDDEN };
  });
  const { client } = context;
  await settled(context, client.watch(["bob"]));
  await settled(context, Promise.all(["p", "q", "r"].map((pass) => client.addPass(pass))));
  await context.time.settle();
  assert.deepEqual(asked, [["bob"], [], [], [], ["bob"]]);
});

test("a pass taken while hidden users are asked for makes one more question", async () => {
  const asked: string[][] = [];
  const context = await online((packet) => {
    asked.push(uidsOf(packet));
    return asked.length === 3 ? null : { bob: HIDDEN }; // the first question has no answer yet
  });
  const { client, server } = context;
  await settled(context, client.watch(["bob"]));
  await settled(context, client.addPass("p"));
  await context.time.settle();
  const question = server.peer.received.at(-1) as Packet;
  await settled(context, Promise.all([client.addPass("q"), client.addPass("r")]));
  assert.deepEqual(asked, [["bob"], [], ["bob"], [], []]);
  server.peer.send({ kind: Kind.OK, id: question.id, payload: { presence: { bob: HIDDEN } } });
  await context.time.settle();
  assert.deepEqual(asked.slice(5), [["bob"]]);
});

test("a watch that is refused is undone if an aborted call for the same user may be granted", async () => {
  const context = await online(() => null);
  const { client, server } = context;
  client.watchNowait(["bob"]);
  await context.time.settle();
  const own = server.peer.received.at(-1) as Packet;
  const controller = new AbortController();
  const call = client.watch(["bob"], { signal: controller.signal });
  controller.abort();
  await assert.rejects(call);
  const payload = { code: Code.TOO_LARGE, reason: "x", message: "" };
  server.peer.send({ kind: Kind.ERROR, id: own.id, payload });
  await context.time.settle();
  assert.deepEqual(server.peer.of(Kind.UNWATCH).map(uidsOf), [["bob"]]);
});

for (const who of ["the program", "the client"] as const) {
  test(`a watch of ${who} that was sent before a pass, and answered after it, is asked for again`, async () => {
    const context = await online((packet) => (packet.payload["pass"] === undefined ? null : {}));
    const { client, server, time } = context;
    if (who === "the program") {
      client.watch(["bob"]).catch(() => undefined);
    } else {
      client.watchNowait(["bob"]);
    }
    await settled(context, client.addPass("p"));
    const [watch] = server.peer.of(Kind.WATCH) as [Packet];
    server.peer.send({ kind: Kind.OK, id: watch.id, payload: { presence: { bob: HIDDEN } } });
    await time.settle();
    assert.deepEqual(server.peer.of(Kind.WATCH).map(uidsOf), [["bob"], [], ["bob"]]);
  });
}

test("a busy pass holds up the restored watches only until its answer", async () => {
  let busy = true;
  const context = await online((packet) => {
    const isPass = packet.payload["pass"] !== undefined;
    return isPass && busy && context.server.peers.length > 1 ? Code.BUSY : { bob: HIDDEN };
  });
  const { client, time } = context;
  await settled(context, client.watch(["bob"]));
  await settled(context, client.addPass("p"));
  const peer = await reconnect(context);
  const kinds = (): string[] =>
    peer.of(Kind.WATCH).map(({ payload }) => (payload["pass"] === undefined ? "users" : "pass"));
  assert.deepEqual(kinds(), ["pass", "users"]);
  busy = false;
  await time.advance(2000);
  assert.deepEqual(kinds(), ["pass", "users", "pass", "users"]);
});

test("at most two requests of the client itself are in flight", async () => {
  const context = await online(() => null);
  for (let n = 0; n < 5; n += 1) {
    context.client.watchNowait([`u${n}`]);
  }
  await context.time.settle();
  assert.equal(context.server.peer.of(Kind.WATCH).length, 2);
});

test("users watched without waiting are unknown until their state arrives as a change", async () => {
  const context = await online(() => ({ bob: ONLINE }));
  const { client, time } = context;
  const changes: string[] = [];
  client.on("presence", ({ uid, state, reason }) => changes.push(`${uid} ${state.status} ${reason}`));
  client.watchNowait(["bob"]);
  assert.equal(client.watched().get("bob")?.status, "unknown");
  await time.settle();
  client.watchNowait(["bob"]);
  await time.settle();
  assert.deepEqual(changes, ["bob online watched"]);
  assert.equal(context.server.peer.of(Kind.WATCH).length, 1);
});

test("users watched before connect are asked for at the login", async () => {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann" }, time);
  client.watchNowait(["bob"]);
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  assert.deepEqual(server.peer.take(Kind.WATCH).payload, { uids: ["bob"] });
});

test("watchEnded reports that a watch was refused for good", async () => {
  const { client, time } = await online(() => Code.TOO_LARGE);
  const ended: unknown[] = [];
  client.on("watchEnded", (event) => ended.push(event));
  client.watchNowait(["bob"]);
  await time.settle();
  const refusal = { code: Code.TOO_LARGE, reason: "busy", message: "for a test" };
  assert.deepEqual(ended, [{ type: "watchEnded", uids: ["bob"], ...refusal }]);
  assert.equal(client.watched().size, 0);
});

test("a refused request of the client leaves a pending one of the program", async () => {
  let asked = 0;
  const context = await online(() => ((asked += 1) === 1 ? Code.TOO_LARGE : { bob: ONLINE }));
  const { client, time } = context;
  const ended: unknown[] = [];
  client.on("watchEnded", (event) => ended.push(event));
  client.watchNowait(["bob"]);
  const watched = client.watch(["bob"]);
  await time.settle();
  assert.equal((await watched).get("bob")?.status, "online");
  assert.deepEqual([ended, client.watched().get("bob")?.status], [[], "online"]);
});

test("a user whom two requests are refused is not watched", async () => {
  let asked = 0;
  const context = await online(() => ((asked += 1) === 1 ? Code.TOO_LARGE : Code.BUSY));
  const { client, time } = context;
  client.watchNowait(["bob"]);
  const watched = assert.rejects(client.watch(["bob"]), { code: Code.BUSY });
  await time.settle();
  await watched;
  assert.equal(client.watched().size, 0);
});

test("a user for whom another request of the client still asks is not lost", async () => {
  let asked = 0;
  const context = await online(() => ((asked += 1) === 1 ? Code.TOO_LARGE : { bob: ONLINE }));
  const { client, time } = context;
  const ended: string[] = [];
  client.on("watchEnded", ({ uids }) => ended.push(...uids));
  client.watchNowait(["ann", "bob"]);
  client.unwatch(["bob"]).catch(() => undefined);
  client.watchNowait(["bob"]);
  await time.settle();
  assert.deepEqual([ended, client.watched().get("bob")?.status], [["ann"], "online"]);
});

test("a server that fails is asked again", async () => {
  let fails = true;
  const context = await online(() => (fails ? Code.SERVER_ERROR : { bob: ONLINE }));
  context.client.watchNowait(["bob"]);
  await context.time.settle();
  fails = false;
  await context.time.advance(2000);
  assert.equal(context.client.watched().get("bob")?.status, "online");
});

test("a renewed token makes one question for hidden users", async () => {
  const tokens = [10, 3600].map((s, jti) => token({ exp: SERVER_TIME_S + s, jti }));
  const asked: string[][] = [];
  const answer = (packet: Packet): ValueMap => {
    asked.push(uidsOf(packet));
    return { bob: HIDDEN };
  };
  const time = new VirtualTime();
  const server = new VirtualServer((packet, peer) => {
    const payload =
      packet.kind === Kind.LOGIN ? LOGIN_OK : packet.kind === Kind.WATCH ? { presence: answer(packet) } : {};
    queueMicrotask(() => peer.send({ kind: Kind.OK, id: packet.id, payload }));
  });
  const client = new PresenceClient({ connector: server, token: () => tokens.shift() ?? "" }, time);
  const connected = client.connect();
  await time.settle();
  server.peer.open();
  await connected;
  await settled({ time, server, client }, client.watch(["bob"]));
  await time.advance(10_000);
  assert.deepEqual(asked, [["bob"], ["bob"]]);
});
