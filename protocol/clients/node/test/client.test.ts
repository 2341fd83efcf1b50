/** The client on real sockets, against a server whose every answer the test writes. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Code,
  ConnectionLost,
  EncodeError,
  Ended,
  type Events,
  Kind,
  LoginRefused,
  NoToken,
  NotConnected,
  type Options,
  type Packet,
  PresenceClient,
  RecipientOffline,
  Replaced,
  RequestFailed,
  RequestTimeout,
  Unreachable,
  type ValueMap,
} from "../src/index.js";
import { token } from "./driver.js";
import { Peer, ScriptedServer } from "./scripted-server.js";

interface Stage {
  readonly server: ScriptedServer;
  readonly client: PresenceClient;
  readonly peer: Peer;
  /** Every event so far: its name and what is most telling of it. */
  readonly told: string[];
}

function inShort<Name extends keyof Events>(name: Name, event: Events[Name]): string {
  const parts = event as unknown as Record<string, unknown> | null;
  const state = parts?.["state"] as { status: string } | undefined;
  const telling = parts && [parts["uid"], state?.status, parts["reason"], parts["body"], parts["uids"]];
  return [name, ...(telling ?? []).filter((part) => part !== undefined)].join(" ");
}

function listening(client: PresenceClient): string[] {
  const told: string[] = [];
  const names = ["connected", "disconnected", "goodbye", "message", "presence", "watchEnded", "end"] as const;
  for (const name of names) {
    client.on(name, (event) => told.push(inShort(name, event)));
  }
  return told;
}

type Play = (stage: Stage) => Promise<void>;

/** A test with a client that is about to log in, or has. */
function scene(name: string, options: Partial<Options>, online: boolean, play: Play): void {
  test(name, async () => {
    const server = await ScriptedServer.start();
    const where = { host: "127.0.0.1", port: server.port, chance: () => 0, ...options };
    const client = new PresenceClient({ uid: "ann", ...where });
    try {
      const told = listening(client);
      const connected = client.connect();
      connected.catch(() => undefined);
      const peer = await server.accept();
      if (online) {
        await peer.logIn();
        await connected;
      }
      await play({ server, client, peer, told });
    } finally {
      client.close();
      server.stop();
    }
  });
}

function connecting(name: string, options: Partial<Options>, play: Play): void {
  scene(name, options, false, play);
}

function loggedIn(name: string, options: Partial<Options>, play: Play): void {
  scene(name, options, true, play);
}

function happened(client: PresenceClient, name: keyof Events): Promise<void> {
  return new Promise((resolve) => {
    client.once(name, () => {
      resolve();
    });
  });
}

function presence(uid: string, status: string, id: string, reason: string): Packet {
  return { kind: Kind.PRESENCE, id: null, payload: { uid, status, id, reason } };
}

function states(all: Record<string, ValueMap>): ValueMap {
  return { presence: all };
}

connecting(
  "what comes in one piece with the login's answer is not lost",
  {},
  async ({ peer, client, told }) => {
    const deliver = { kind: Kind.DELIVER, id: null, payload: { from: "bob", body: "hi", at_ms: 1 } };
    await peer.logIn(1, deliver);
    await client.connect();
    assert.deepEqual(told, ["connected", "message hi"]);
  },
);

connecting("a refused login rejects and ends the client", {}, async ({ peer, client, told }) => {
  await peer.refuse(Kind.LOGIN, Code.AUTH_FAILED, "auth_failed");
  await assert.rejects(client.connect(), LoginRefused);
  assert.deepEqual(told, ["end"]);
});

test("no server at the first attempt rejects", async () => {
  const server = await ScriptedServer.start();
  const { port } = server;
  server.stop();
  const client = new PresenceClient({ host: "127.0.0.1", port, uid: "ann" });
  await assert.rejects(client.connect(), Unreachable);
  assert.equal(client.state, "ended");
});

connecting("a persistent client repeats a first attempt that fails", { persistent: true }, async (stage) => {
  await stage.peer.refuse(Kind.LOGIN, Code.BUSY, "busy");
  await (await stage.server.accept()).logIn();
  await stage.client.connect();
  assert.deepEqual(stage.told, ["disconnected busy", "connected"]);
});

loggedIn("a message is counted, and refused if nobody is there", {}, async ({ peer, client }) => {
  const sent = client.sendMessage("bob", { text: "hi" });
  const { payload } = await peer.grant(Kind.MESSAGE, { delivered: 2 });
  assert.deepEqual([await sent, payload], [2, { to: "bob", body: { text: "hi" } }]);
  const vain = client.sendMessage("bob", null);
  await peer.refuse(Kind.MESSAGE, Code.RECIPIENT_OFFLINE, "recipient_offline");
  await assert.rejects(vain, RecipientOffline);
});

loggedIn(
  "whoever awaits a watch has its states before what follows them in the same piece",
  {},
  async (stage) => {
    const { peer, client, told } = stage;
    const watch = client.watch(["bob"]).then((all) => told.push(`watched ${all.get("bob")?.status}`));
    const changed = happened(client, "presence");
    await peer.grant(
      Kind.WATCH,
      states({ bob: { status: "online", id: "10-0" } }),
      presence("bob", "offline", "11-0", "logout"),
    );
    await Promise.all([watch, changed]);
    assert.deepEqual(told, ["connected", "watched online", "presence bob offline logout"]);
    assert.equal(client.watched().get("bob")?.status, "offline");
  },
);

loggedIn(
  "older pushes, and those of who is watched no more, are dropped",
  {},
  async ({ peer, client, told }) => {
    const watch = client.watch(["bob", "eve"]);
    const snapshot = states({ bob: { status: "online", id: "10-0" }, eve: { status: "online", id: "9-0" } });
    await peer.grant(Kind.WATCH, snapshot);
    await watch;
    const unwatch = client.unwatch(["eve"]);
    await peer.grant(Kind.UNWATCH);
    await unwatch;
    const changed = happened(client, "presence");
    peer.send(
      presence("bob", "away", "9-5", "away"),
      presence("eve", "offline", "12-0", "logout"),
      presence("bob", "away", "12-1", "away"),
    );
    await changed;
    assert.deepEqual(told, ["connected", "presence bob away away"]);
  },
);

loggedIn("a refused watch watches nobody", {}, async ({ peer, client }) => {
  const watch = client.watch(["bob"]);
  await peer.refuse(Kind.WATCH, Code.TOO_LARGE, "too_large");
  await assert.rejects(watch, RequestFailed);
  assert.equal(client.watched().size, 0);
});

/** Watch bob, eve and kim, and lose the connection; return the peer of the next one. */
async function watchedAndLost({ server, client, peer }: Stage): Promise<Peer> {
  const watch = client.watch(["bob", "eve", "kim"]);
  const online = { status: "online", id: "10-0" };
  await peer.grant(Kind.WATCH, states({ bob: online, eve: online, kim: online }));
  await watch;
  peer.socket.destroy();
  const next = await server.accept();
  await next.logIn();
  return next;
}

loggedIn("after a return it watches again, and tells what changed meanwhile once", {}, async (stage) => {
  const next = await watchedAndLost(stage);
  const changed = happened(stage.client, "presence");
  const { payload } = await next.grant(
    Kind.WATCH,
    states({
      bob: { status: "online", id: "10-0" },
      eve: { status: "offline", last_seen_ms: 5 },
      kim: { status: "away", id: "11-0" },
    }),
    presence("kim", "away", "11-0", "away"),
    presence("bob", "offline", "12-0", "logout"),
  );
  await changed;
  while (stage.client.watched().get("bob")?.status !== "offline") {
    await happened(stage.client, "presence");
  }
  assert.deepEqual(payload, { uids: ["bob", "eve", "kim"] });
  assert.deepEqual(stage.told, [
    "connected",
    "disconnected closed",
    "connected",
    "presence eve offline meanwhile",
    "presence kim away meanwhile",
    "presence bob offline logout",
  ]);
});

loggedIn("it watches again until a busy server grants it", {}, async (stage) => {
  const next = await watchedAndLost(stage);
  await next.refuse(Kind.WATCH, Code.BUSY, "busy", { retry_after: 0.01 });
  const unwatch = stage.client.unwatch(["eve"]);
  await next.grant(Kind.UNWATCH);
  await unwatch;
  const { payload } = await next.next(Kind.WATCH);
  assert.deepEqual(payload, { uids: ["bob", "kim"] });
});

loggedIn("who may not be watched again is watched no more, and that is told", {}, async (stage) => {
  const next = await watchedAndLost(stage);
  const told = happened(stage.client, "watchEnded");
  await next.refuse(Kind.WATCH, Code.UNSUPPORTED, "unsupported");
  await told;
  assert.deepEqual([stage.told.at(-1), stage.client.watched().size], ["watchEnded bob,eve,kim", 0]);
});

loggedIn("while offline a request rejects at once, and an unwatch is done", {}, async ({ peer, client }) => {
  const asked = client.query(["bob"]);
  const lost = happened(client, "disconnected");
  await peer.next(Kind.QUERY);
  peer.socket.destroy();
  await assert.rejects(asked, ConnectionLost);
  await lost;
  await assert.rejects(client.watch(["bob"]), NotConnected);
  await client.unwatch();
});

loggedIn("whoever is away stays so over a return", {}, async ({ server, peer, client }) => {
  const away = client.away();
  const { payload } = await peer.grant(Kind.UPDATE);
  await away;
  peer.socket.destroy();
  const login = await (await server.accept()).next(Kind.LOGIN);
  assert.deepEqual([payload, login.payload["status"]], [{ status: "away" }, "away"]);
});

loggedIn(
  "a watch without an answer is taken back, for it may have been granted",
  { requestTimeoutMs: 20 },
  async (stage) => {
    const watch = stage.client.watch(["bob"]);
    const { id } = await stage.peer.next(Kind.WATCH);
    await assert.rejects(watch, RequestTimeout);
    const { payload } = await stage.peer.grant(Kind.UNWATCH);
    stage.peer.send({ kind: Kind.OK, id, payload: states({ bob: { status: "online", id: "10-0" } }) });
    assert.deepEqual([payload, stage.client.watched().size], [{ uids: ["bob"] }, 0]);
  },
);

loggedIn("an update that later logins could not carry is not sent", {}, async ({ client }) => {
  await client.connect();
  await assert.rejects(client.update({ token: "x".repeat(768), meta: { m: "x".repeat(250) } }), EncodeError);
});

loggedIn("a request without an answer times out", { requestTimeoutMs: 20 }, async ({ client }) => {
  await assert.rejects(client.query(["bob"]), RequestTimeout);
});

connecting(
  "a server that answers no beat is left, and found again",
  {},
  async ({ server, peer, client, told }) => {
    peer.deaf = true;
    await peer.logIn(0.05);
    await (await server.accept()).logIn();
    await happened(client, "connected");
    assert.deepEqual(told, ["connected", "disconnected dead_server", "connected"]);
  },
);

const patient = { requestTimeoutMs: 500 };

loggedIn("an answer that came in time is one, however busy the program was", patient, async (stage) => {
  const asked = stage.client.query(["bob"]);
  await stage.peer.grant(Kind.QUERY);
  const until = performance.now() + 600;
  while (performance.now() < until);
  await asked;
  assert.deepEqual(stage.told, ["connected"]);
});

loggedIn("a take-over ends the client", {}, async ({ peer, client, told }) => {
  const ended = new Promise((resolve) => client.once("end", resolve));
  peer.send({ kind: Kind.GOODBYE, id: null, payload: { code: 300, reason: "replaced", reconnect: false } });
  assert.ok((await ended) instanceof Replaced);
  await peer.closed;
  assert.deepEqual(told, ["connected", "goodbye replaced", "end"]);
});

loggedIn(
  "a logout ends the client with its answer, and nothing is left",
  {},
  async ({ peer, client, told }) => {
    const logout = client.logout("background");
    const { payload } = await peer.grant(Kind.LOGOUT);
    await logout;
    await peer.closed;
    assert.deepEqual(
      [payload, told, client.state],
      [{ reason: "background" }, ["connected", "end"], "ended"],
    );
  },
);

loggedIn(
  "what a listener does meanwhile does not change the order of what is told",
  {},
  async ({ peer, client, told }) => {
    client.once("message", () => {
      client.close();
    });
    client.on("message", ({ body }) => told.push(`and ${String(body)}`)); // after the one that closes
    const ended = happened(client, "end");
    const deliver = (body: string): Packet => ({
      kind: Kind.DELIVER,
      id: null,
      payload: { from: "bob", body, at_ms: 1 },
    });
    peer.send(deliver("first"), deliver("second"));
    await ended;
    client.close();
    assert.deepEqual(told, [
      "connected",
      "message first",
      "and first",
      "message second",
      "and second",
      "end",
    ]);
  },
);

// Tokens; the scripted server's clock stands at its first millisecond

const SHORT = token({ exp: 2, jti: 1 });
const LONG = token({ exp: 3600, jti: 2 });

test("a function makes the token of the login, and a fresh one before it ends", async () => {
  const server = await ScriptedServer.start();
  const made = [SHORT, LONG];
  const client = new PresenceClient({
    host: "127.0.0.1",
    port: server.port,
    token: () => Promise.resolve(made.shift() ?? ""),
  });
  try {
    const connected = client.connect();
    const peer = await server.accept();
    assert.deepEqual((await peer.logIn()).payload, { token: SHORT, v: 1 });
    await connected;
    assert.deepEqual((await peer.grant(Kind.UPDATE)).payload, { token: LONG });
    assert.deepEqual(client.statistics().logins, 1);
  } finally {
    client.close();
    server.stop();
  }
});

test("what it throws rejects the first attempt, before anything is connected to", async () => {
  for (const failure of [new Error("no way there"), "no error at all"]) {
    const token = (): string => {
      throw failure;
    };
    const client = new PresenceClient({ host: "127.0.0.1", port: 1, token });
    const told = listening(client);
    await assert.rejects(client.connect(), NoToken);
    assert.deepEqual(told, ["end"]);
  }
});

test("a persistent client calls it again", async () => {
  const server = await ScriptedServer.start();
  let calls = 0;
  const source = (): Promise<string> =>
    (calls += 1) < 3 ? Promise.reject(new Error("no way there")) : Promise.resolve(LONG);
  const where = { host: "127.0.0.1", port: server.port, chance: () => 0 };
  const client = new PresenceClient({ ...where, persistent: true, token: source });
  try {
    const told = listening(client);
    const connected = client.connect();
    await (await server.accept()).logIn();
    await connected;
    assert.deepEqual(told, ["disconnected no_token", "disconnected no_token", "connected"]);
  } finally {
    client.close();
    server.stop();
  }
});

test("a client that is closed while a token is made stays closed", async () => {
  let give = (_token: string): void => undefined;
  const token = (): Promise<string> =>
    new Promise((resolve) => {
      give = resolve;
    });
  const client = new PresenceClient({ host: "127.0.0.1", port: 1, token });
  const connected = client.connect();
  await Promise.resolve();
  client.close();
  await assert.rejects(connected, Ended);
  give(LONG);
  await new Promise(setImmediate);
  assert.equal(client.state, "ended");
});
