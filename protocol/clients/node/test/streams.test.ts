/** Iterators over messages and changes, and calls that are aborted. */

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";

import {
  Code,
  type Delivered,
  Ended,
  Kind,
  NotConnected,
  type Options,
  type Packet,
  PresenceClient,
  Replaced,
} from "../src/index.js";
import { VirtualServer, VirtualTime } from "./virtual.js";

interface Context {
  readonly time: VirtualTime;
  readonly server: VirtualServer;
  readonly client: PresenceClient;
}

async function online(options: Partial<Options> = {}): Promise<Context> {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann", ...options }, time);
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  return { time, server, client };
}

function delivery(body: number): Packet {
  return { kind: Kind.DELIVER, id: null, payload: { from: "bob", body, at_ms: 1 } };
}

function change(uid: string, number: number): Packet {
  const payload = { uid, status: "online", id: `${number}-0`, reason: "login" };
  return { kind: Kind.PRESENCE, id: null, payload };
}

/** What an iterator gives until it ends; its error comes last. */
async function all(iterator: AsyncIterable<unknown>): Promise<unknown[]> {
  const elements: unknown[] = [];
  try {
    for await (const each of iterator) {
      elements.push(each);
    }
  } catch (error) {
    elements.push(error);
  }
  return elements;
}

function bodies(elements: readonly unknown[]): unknown[] {
  return elements.map((each) => {
    const { type, body, count } = each as { type: string; body?: unknown; count?: number };
    return type === "dropped" ? `${count} dropped` : body;
  });
}

test("an iterator gives the messages from its call to the end", async () => {
  const { client, server } = await online();
  server.peer.send(delivery(0));
  const messages = client.messages<number>();
  server.peer.send(delivery(1), delivery(2));
  const given = await messages.next();
  assert.equal((given.value as Delivered<number>).body, 1);
  client.disconnect();
  assert.deepEqual(bodies(await all(messages)), [2]);
});

test("a reader that waits gets the next message", async () => {
  const { client, server } = await online();
  const messages = client.messages();
  const next = [messages.next(), messages.next()];
  server.peer.send(delivery(1), delivery(2));
  assert.deepEqual(bodies((await Promise.all(next)).map(({ value }) => value as unknown)), [1, 2]);
});

test("an iterator throws the error that has ended the client, once", async () => {
  const { client, server } = await online();
  const messages = client.messages();
  const waiting = assert.rejects(messages.next(), Replaced);
  const goodbye = { code: Code.REPLACED, reason: "replaced", reconnect: false };
  server.peer.send({ kind: Kind.GOODBYE, id: null, payload: goodbye });
  await waiting;
  assert.deepEqual(await messages.next(), { value: undefined, done: true });
});

test("each iterator gets every message, and one that is left gets none", async () => {
  const { client, server } = await online();
  const [one, other] = [client.messages(), client.messages()];
  await one.return?.();
  server.peer.send(delivery(1));
  client.disconnect();
  assert.deepEqual([bodies(await all(one)), bodies(await all(other))], [[], [1]]);
});

test("an iterator outlives a lost connection", async () => {
  const { client, server, time } = await online();
  const [messages, changes] = [client.messages(), client.connectionChanges()];
  server.peer.close();
  await time.advance(0);
  server.peer.logIn();
  server.peer.send(delivery(1));
  client.disconnect();
  assert.deepEqual(bodies(await all(messages)), [1]);
  const types = (await all(changes)).map((each) => (each as { type: string }).type);
  assert.deepEqual(types, ["disconnected", "connected"]);
});

test("what does not fit is dropped, and an element stands in its place", async () => {
  const { client, server } = await online({ maxMessages: 3 });
  const messages = client.messages();
  server.peer.send(...[1, 2, 3, 4, 5].map(delivery));
  const first = await messages.next();
  assert.deepEqual(first.value, { type: "dropped", kind: "messages", count: 2 });
  server.peer.send(...[6, 7].map(delivery));
  client.disconnect();
  assert.deepEqual(bodies(await all(messages)), ["2 dropped", 5, 6, 7]);
  assert.equal(client.statistics().pushesDropped, 4);
});

test("a flood of changes drops no message", async () => {
  const { client, server, time } = await online({ maxChanges: 10 });
  client.watchNowait(["bob"]);
  server.peer.grant(Kind.WATCH, { presence: { bob: { status: "offline" } } });
  await time.settle();
  const messages = client.messages();
  server.peer.send(delivery(1), ...Array.from({ length: 2000 }, (_, n) => change("bob", n + 1)));
  client.disconnect();
  assert.deepEqual(bodies(await all(messages)), [1]);
});

test("of the changes of a user the superseded ones are left out first", async () => {
  const { client, server, time } = await online({ maxChanges: 3 });
  const users = ["bob", "eve", "kim"];
  client.watchNowait(users);
  const offline = { status: "offline" };
  server.peer.grant(Kind.WATCH, { presence: { bob: offline, eve: offline, kim: offline } });
  await time.settle();
  const changes = client.presenceChanges();
  server.peer.send(change("bob", 1), change("eve", 2), change("bob", 3), change("kim", 4), change("bob", 5));
  client.disconnect();
  const given = (await all(changes)).map((each) => {
    const { uid, state } = each as { uid: string; state: { id: string } };
    return `${uid} ${state.id}`;
  });
  assert.deepEqual(given, ["eve 2-0", "kim 4-0", "bob 5-0"]);
  const { pushesDropped, pushesSuperseded } = client.statistics();
  assert.deepEqual([pushesDropped, pushesSuperseded], [0, 2]);
});

test("an aborted iterator rejects with the signal's reason", async () => {
  const { client, server } = await online();
  const controller = new AbortController();
  const messages = client.messages({ signal: controller.signal });
  server.peer.send(delivery(1));
  const reason = new Error("the view is closed");
  controller.abort(reason);
  assert.deepEqual(await all(messages), [reason]);
  assert.deepEqual(await all(client.messages({ signal: controller.signal })), [reason]);
});

// Requests

const REASON = new Error("nobody waits any more");

test("an aborted signal sends nothing", async () => {
  const { client, server } = await online();
  const signal = AbortSignal.abort(REASON);
  const calls = [
    client.sendMessage("bob", 1, { signal }),
    client.query(["bob"], { signal }),
    client.watch(["bob"], { signal }),
    client.unwatch(["bob"], { signal }),
    client.addPass("p", { signal }),
    client.update({ status: "away" }, { signal }),
    client.setIdleTimeout(1000, { signal }),
  ];
  for (const call of calls) {
    await assert.rejects(call, REASON);
  }
  assert.deepEqual([server.peer.received, client.state], [[], "online"]);
});

test("an answer to a watch from before an unwatch is not that of a later watch", async () => {
  const { client, server, time } = await online();
  const { peer } = server;
  const calls = [client.watch(["bob"]), client.unwatch(["bob"]), client.watch(["bob"])];
  const settled = Promise.allSettled(calls);
  peer.grant(Kind.WATCH, { presence: { bob: { status: "online", id: "1-0" } } });
  peer.grant(Kind.UNWATCH);
  peer.refuse(Kind.WATCH, Code.BUSY);
  await time.advance(0);
  assert.deepEqual(
    (await settled).map(({ status }) => status),
    ["fulfilled", "fulfilled", "rejected"],
  );
  assert.deepEqual([...client.watched().keys()], []);
});

test("an unwatch whose signal was aborted before changes nothing", async () => {
  const { client, server } = await online();
  client.watchNowait(["bob"]);
  server.peer.take(Kind.WATCH);
  await assert.rejects(client.unwatch(["bob"], { signal: AbortSignal.abort(REASON) }), REASON);
  assert.deepEqual([...client.watched().keys()], ["bob"]);
});

test("many calls may share a signal, and leave nothing on it", async () => {
  const { client, server, time } = await online();
  const { signal } = new AbortController();
  const queries = Array.from({ length: 50 }, () => client.query(["bob"], { signal }));
  const iterators = Array.from({ length: 50 }, () => client.messages({ signal }));
  assert.equal(getEventListeners(signal, "abort").length, 1); // Node warns of a leak from the eleventh on
  queries.forEach(() => server.peer.grant(Kind.QUERY, { presence: {} }));
  await time.settle();
  await Promise.all([...queries, ...iterators.map((each) => each.return?.())]);
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("what is no signal is refused before anything is sent", async () => {
  const { client, server } = await online();
  const signal = {} as AbortSignal;
  await assert.rejects(client.query(["bob"], { signal }), { name: "TypeError", message: /AbortSignal/ });
  await assert.rejects(client.logout("logout", { signal }), TypeError);
  assert.throws(() => client.messages({ signal }), TypeError);
  assert.deepEqual([server.peer.received, client.state], [[], "online"]);
});

test("an aborted request rejects, and its answer changes nothing", async () => {
  const { client, server, time } = await online();
  const controller = new AbortController();
  const query = assert.rejects(client.query(["bob"], { signal: controller.signal }), REASON);
  controller.abort(REASON);
  await query;
  server.peer.grant(Kind.QUERY, { presence: {} });
  await time.settle();
  assert.equal(client.state, "online");
});

test("an aborted watch is undone", async () => {
  const { client, server } = await online();
  const controller = new AbortController();
  const watch = assert.rejects(client.watch(["bob"], { signal: controller.signal }), REASON);
  controller.abort(REASON);
  await watch;
  server.peer.grant(Kind.WATCH, { presence: { bob: { status: "online", id: "1-0" } } });
  assert.deepEqual(server.peer.take(Kind.UNWATCH).payload, { uids: ["bob"] });
  assert.equal(client.watched().size, 0);
});

test("an aborted message is not sent again", async () => {
  const { client, server, time } = await online();
  const controller = new AbortController();
  const message = assert.rejects(client.sendMessage("bob", 1, { signal: controller.signal }), REASON);
  server.peer.refuse(Kind.MESSAGE, Code.RECIPIENT_DISCONNECTED, { retry_after: 1 });
  controller.abort(REASON);
  await message;
  await time.advance(5000);
  assert.equal(server.peer.received.length, 0);
});

test("a logout goes on although its call is aborted", async () => {
  const { client, server } = await online();
  const controller = new AbortController();
  const loggedOut = assert.rejects(client.logout("logout", { signal: controller.signal }), REASON);
  controller.abort(REASON);
  await loggedOut;
  server.peer.grant(Kind.LOGOUT);
  assert.equal(client.state, "ended");
});

test("an aborted wait for the login rejects", async () => {
  const { client } = await online();
  client.disconnect();
  client.connect().catch(() => undefined);
  const controller = new AbortController();
  const waiting = assert.rejects(client.waitOnline({ signal: controller.signal }), REASON);
  controller.abort(REASON);
  await waiting;
});

test("an interface is a body, and comes back as one", async () => {
  interface Move {
    readonly x: number;
    readonly tags?: string[];
  }
  const { client, server } = await online();
  const move: Move = { x: 1 };
  const sent = client.sendMessage("bob", move);
  assert.deepEqual(server.peer.grant(Kind.MESSAGE, { delivered: 1 }).payload["body"], { x: 1 });
  await sent;
  const moves = client.messages<Move>();
  server.peer.send({ kind: Kind.DELIVER, id: null, payload: { from: "bob", body: { x: 2 }, at_ms: 1 } });
  const { value } = await moves.next();
  assert.equal(value.type === "message" && value.body.x, 2);
});

test("requests before connect and after the end say which it is", async () => {
  const client = new PresenceClient({ connector: new VirtualServer(), uid: "ann" }, new VirtualTime());
  await assert.rejects(client.query(["bob"]), NotConnected);
  client.connect().catch(() => undefined);
  client.disconnect();
  await assert.rejects(client.query(["bob"]), Ended);
});
