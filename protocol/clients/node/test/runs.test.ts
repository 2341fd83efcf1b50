/** Runs of a client, from `connect` to `end`, in virtual time. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Code,
  EncodeError,
  Ended,
  Kind,
  LoginRefused,
  NoToken,
  NotConnected,
  type Options,
  PresenceClient,
  Replaced,
  Unreachable,
} from "../src/index.js";
import { LOGIN_OK } from "./driver.js";
import { VirtualServer, VirtualTime } from "./virtual.js";

const MESSAGE = { kind: Kind.DELIVER, id: null, payload: { from: "bob", body: "hi", at_ms: 1 } };

interface Context {
  readonly time: VirtualTime;
  readonly server: VirtualServer;
  readonly client: PresenceClient;
  readonly events: string[];
}

function created(options: Partial<Options> = {}): Context {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann", ...options }, time);
  const events: string[] = [];
  for (const name of ["connected", "disconnected", "end"] as const) {
    client.on(name, () => events.push(name));
  }
  return { time, server, client, events };
}

async function online(options: Partial<Options> = {}): Promise<Context> {
  const context = created(options);
  const connected = context.client.connect();
  context.server.peer.logIn();
  await connected;
  return context;
}

test("connect returns the same promise until the client has ended", async () => {
  const { client, server, time } = created({ persistent: true });
  const first = client.connect();
  assert.equal(client.connect(), first);
  server.peer.close();
  assert.equal(client.connect(), first);
  await time.advance(1000);
  server.peer.logIn();
  await first;
  assert.equal(client.connect(), first);
  assert.equal(server.peers.length, 2);
});

test("connect and disconnect alternate, and each run has one end", async () => {
  const { client, server, events } = created();
  for (let run = 0; run < 3; run += 1) {
    const connected = client.connect();
    server.peer.logIn();
    assert.equal((await connected).again, run > 0);
    client.disconnect();
    client.disconnect();
    assert.deepEqual([client.state, server.peer.state], ["ended", "closed"]);
  }
  assert.deepEqual(events, ["connected", "end", "connected", "end", "connected", "end"]);
});

test("a disconnect before the first connect changes nothing", async () => {
  const { client, server, events } = created();
  client.disconnect();
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  assert.deepEqual(events, ["connected"]);
});

test("a disconnect while it connects rejects, and the next connect starts anew", async () => {
  const { client, server, events } = created();
  const rejected = assert.rejects(client.connect(), Ended);
  client.disconnect();
  const connected = client.connect();
  server.peer.logIn();
  await Promise.all([rejected, connected]);
  assert.deepEqual(
    [events, server.peers.map(({ state }) => state)],
    [
      ["end", "connected"],
      ["closed", "open"],
    ],
  );
});

test("after a logout connect logs in again", async () => {
  const { client, server, events } = await online();
  const loggedOut = client.logout();
  server.peer.grant(Kind.LOGOUT);
  await loggedOut;
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  assert.deepEqual([events, client.state], [["connected", "end", "connected"], "online"]);
});

test("connect during a logout logs in after it", async () => {
  const { client, server, events } = await online();
  const loggedOut = client.logout();
  const connected = client.connect();
  assert.equal(client.connect(), connected);
  assert.equal(server.peers.length, 1);
  server.peer.grant(Kind.LOGOUT);
  await loggedOut;
  server.peer.logIn();
  await connected;
  assert.deepEqual(events, ["connected", "end", "connected"]);
});

test("a disconnect during a logout takes back the connect after it", async () => {
  const { client, server, events } = await online();
  const loggedOut = client.logout().catch(() => undefined);
  const rejected = assert.rejects(client.connect(), Ended);
  client.disconnect();
  await Promise.all([loggedOut, rejected]);
  assert.deepEqual([events, server.peers.length], [["connected", "end"], 1]);
});

test("a logout before connect is refused, and changes nothing", async () => {
  const { client, server, events } = created();
  await assert.rejects(client.logout(), NotConnected);
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  assert.deepEqual(events, ["connected"]);
});

test("a logout while it connects ends the run immediately", async () => {
  const { client, events } = created();
  const rejected = assert.rejects(client.connect(), Ended);
  const loggedOut = assert.rejects(client.logout(), NotConnected);
  assert.equal(client.state, "ended");
  await Promise.all([rejected, loggedOut]);
  assert.deepEqual(events, ["end"]);
});

test("after a refused login it tries again with another token", async () => {
  const { client, server, events } = created({ token: "old" });
  const refused = client.connect();
  server.peer.open();
  server.peer.refuse(Kind.LOGIN, Code.AUTH_FAILED);
  await assert.rejects(refused, LoginRefused);
  client.logInWith({ token: "new" });
  const connected = client.connect();
  assert.equal(server.peer.logIn().payload["token"], "new");
  await connected;
  assert.deepEqual(events, ["end", "connected"]);
});

test("the first attempt of a later run must succeed, too", async () => {
  const { client, server } = await online();
  client.disconnect();
  const connected = client.connect();
  server.peer.close("no way there");
  await assert.rejects(connected, Unreachable);
});

test("a client that has ended may connect in the listener of the end", async () => {
  const { client, server, events } = await online();
  const goodbye = { code: Code.REPLACED, reason: "replaced", reconnect: false };
  const again = new Promise<unknown>((resolve) => {
    client.once("end", (error) => {
      assert.ok(error instanceof Replaced);
      resolve(client.connect());
      server.peer.logIn();
    });
  });
  server.peer.send({ kind: Kind.GOODBYE, id: null, payload: goodbye });
  await again;
  assert.deepEqual(events, ["connected", "end", "connected"]);
});

test("what the client has and watches outlives a run", async () => {
  const { client, server, time } = await online();
  const requests = [client.watch(["bob"]), client.update({ meta: { app: "2" } }), client.addPass("p")];
  const bob = { status: "online", id: "1-0" };
  server.peer.grant(Kind.WATCH, { presence: { bob } });
  server.peer.grant(Kind.UPDATE);
  server.peer.grant(Kind.WATCH, { presence: {} });
  await time.settle();
  await Promise.all(requests);
  client.disconnect();
  const connected = client.connect();
  assert.deepEqual(server.peer.logIn().payload["meta"], { app: "2" });
  await connected;
  assert.equal(server.peer.grant(Kind.WATCH, { presence: {} }).payload["pass"], "p");
  await time.settle();
  assert.deepEqual(server.peer.take(Kind.WATCH).payload, { uids: ["bob"] });
});

test("a listener that throws stops neither connect nor other listeners", async () => {
  const { client, server, events, time } = created();
  const failure = new Error("a listener's own");
  client.on("connected", () => {
    throw failure;
  });
  client.on("connected", () => events.push("and another"));
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  assert.deepEqual(events, ["connected", "and another"]);
  assert.deepEqual(time.thrown, [failure]);
});

test("waitOnline waits for a login or the end", async () => {
  const { client, server, time } = created({ persistent: true });
  const waiting = [client.waitOnline()];
  client.connect().catch(() => undefined);
  server.peer.close();
  waiting.push(client.waitOnline());
  await time.advance(1000);
  server.peer.open();
  server.peer.grant(Kind.LOGIN, LOGIN_OK);
  await Promise.all(waiting);
  await client.waitOnline();
  server.peer.close();
  const rejected = assert.rejects(client.waitOnline(), Ended);
  client.disconnect();
  await rejected;
  await assert.rejects(client.waitOnline(), Ended);
});

test("a wait during a logout is for the connect that follows it", async () => {
  const { client, server } = await online();
  const loggedOut = client.logout();
  const connected = client.connect();
  const waiting = client.waitOnline();
  const messages = client.messages();
  server.peer.grant(Kind.LOGOUT);
  await loggedOut;
  server.peer.logIn();
  await Promise.all([connected, waiting]);
  server.peer.send(MESSAGE);
  assert.equal((await messages.next()).value?.type, "message");
});

test("a disconnect during a logout rejects the wait for the connect that follows it", async () => {
  const { client } = await online();
  const loggedOut = client.logout().catch(() => undefined);
  const connected = assert.rejects(client.connect(), Ended);
  const waiting = assert.rejects(client.waitOnline(), Ended);
  const messages = client.messages();
  client.disconnect();
  await Promise.all([loggedOut, connected, waiting]);
  assert.deepEqual(await messages.next(), { value: undefined, done: true });
});

test("what a listener begins after a disconnect belongs to its next connect", async () => {
  const { client, server } = await online();
  const begun = new Promise<[Promise<void>, ReturnType<typeof client.messages>, Promise<unknown>]>((resolve) => {
    client.once("disconnected", () => {
      client.disconnect();
      const messages = client.messages();
      const connected = client.connect();
      resolve([client.waitOnline(), messages, connected]);
    });
  });
  server.peer.close();
  const [waiting, messages, connected] = await begun;
  server.peer.logIn();
  await Promise.all([waiting, connected]);
  server.peer.send(MESSAGE);
  assert.equal((await messages.next()).value?.type, "message");
});

test("a connect that nobody awaits may be taken back by the program", async () => {
  const { client, events, time } = created({ persistent: true });
  void client.connect();
  client.disconnect();
  await time.settle(); // an unhandled rejection would end the process
  assert.deepEqual(events, ["end"]);
});

test("a connect after a logout that nobody awaits may be taken back, too", async () => {
  const { client, time } = await online();
  const loggedOut = client.logout().catch(() => undefined);
  void client.connect();
  client.disconnect();
  await loggedOut;
  await time.settle();
  assert.equal(client.state, "ended");
});

test("a logout is sent although its signal was aborted before", async () => {
  const { client, server, time, events } = await online();
  const reason = new Error("no time");
  await assert.rejects(client.logout("background", { signal: AbortSignal.abort(reason) }), reason);
  assert.deepEqual(server.peer.grant(Kind.LOGOUT).payload, { reason: "background" });
  await time.settle();
  assert.deepEqual([client.state, events], ["ended", ["connected", "end"]]);
});

test("a logout with a wrong reason changes nothing", async () => {
  const { client, server } = await online();
  const loggedOut = client.logout();
  const connected = client.connect();
  await assert.rejects(client.logout("bye" as never), EncodeError);
  server.peer.grant(Kind.LOGOUT);
  await loggedOut;
  server.peer.logIn();
  await connected;
});

test("an exception of the connector is a failed attempt", async () => {
  const connect = (): never => {
    throw new RangeError("no such option");
  };
  const { client } = created({ connector: { connect } });
  await assert.rejects(client.connect(), { name: "Unreachable", message: "no such option" });
});

test("an exception of the connector after a token call is one, too", async () => {
  const connect = (): never => {
    throw new RangeError("no such option");
  };
  const { client } = created({ connector: { connect }, token: () => "t" });
  await assert.rejects(client.connect(), Unreachable);
});

test("an exception of a connection is its end", async () => {
  const { client, server, events, time } = await online();
  const { peer } = server;
  peer.write = () => {
    throw new Error("no pipe any more");
  };
  await assert.rejects(client.query(["bob"]), { name: "ConnectionLost", message: "no pipe any more" });
  assert.deepEqual([events, peer.state], [["connected", "disconnected"], "closed"]);
  await time.advance(0);
  server.peer.logIn();
  await client.waitOnline();
});

test("a connection may report its end while it is destroyed", async () => {
  const { client, server, events } = await online();
  const loggedOut = client.logout().catch(() => undefined);
  const connected = client.connect();
  const { peer } = server;
  peer.destroy = () => peer.close();
  peer.send({ kind: Kind.OK, id: peer.take(Kind.LOGOUT).id, payload: {} });
  server.peer.logIn();
  await Promise.all([loggedOut, connected]);
  assert.deepEqual(events, ["connected", "end", "connected"]);
  client.disconnect();
  assert.deepEqual(
    server.peers.map(({ state }) => state),
    ["closed", "closed"],
  );
});

test("a token function may throw what has no text", async () => {
  const thrown: unknown = Object.create(null);
  const { client } = created({ token: () => Promise.reject(thrown) });
  await assert.rejects(client.connect(), (error) => error instanceof NoToken && (error.cause as Error).cause === thrown);
});

test("an answer in time counts even if the program was busy while the input was read", async () => {
  const { client, server, time } = await online({ requestTimeoutMs: 500 });
  const query = client.query(["bob"]);
  time.fireDue(); // of the first keepalive: from now on the input is read
  time.time += 600; // the program is busy, and the answer arrives
  time.inputRead();
  server.peer.grant(Kind.QUERY, { presence: {} });
  await time.settle();
  await query;
});
