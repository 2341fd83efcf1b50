/** The client on real sockets, against a scripted server. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Busy,
  Code,
  ConnectionLost,
  EncodeError,
  Ended,
  type Events,
  Kind,
  LoginRefused,
  NotConnected,
  NoToken,
  type Options,
  type Packet,
  PresenceClient,
  RecipientOffline,
  Replaced,
  RequestFailed,
  RequestTimeout,
  Unsupported,
  Unreachable,
  type ValueMap,
} from "../src/index.js";
import { CONFIRM_MS } from "../src/client.js";
import { NODE } from "../src/node/environment.js";
import { token } from "./driver.js";
import { Peer, ScriptedServer } from "./scripted-server.js";

interface Context {
  readonly server: ScriptedServer;
  readonly client: PresenceClient;
  readonly peer: Peer;
  /** A summary of every event so far. */
  readonly events: string[];
}

function summarize<Name extends keyof Events>(name: Name, event: Events[Name]): string {
  const fields = event as unknown as Record<string, unknown> | null;
  const state = fields?.["state"] as { status: string } | undefined;
  const details = fields && [fields["uid"], state?.status, fields["reason"], fields["body"], fields["uids"]];
  return [name, ...(details ?? []).filter((part) => part !== undefined)].join(" ");
}

function recordEvents(client: PresenceClient): string[] {
  const events: string[] = [];
  const names = ["connected", "disconnected", "goodbye", "message", "presence", "watchEnded", "end"] as const;
  for (const name of names) {
    client.on(name, (event) => events.push(summarize(name, event)));
  }
  return events;
}

const NO_JITTER = { ...NODE, chance: () => 0 };

type TestBody = (context: Context) => Promise<void>;

/** Runs a test with a client that is connecting or logged in. */
function clientTest(name: string, loggedIn: boolean, body: TestBody, overrides: Partial<Options>): void {
  test(name, async () => {
    const server = await ScriptedServer.start();
    const options = { host: "127.0.0.1", port: server.port, uid: "ann", ...overrides };
    const client = new PresenceClient(options, NO_JITTER);
    try {
      const events = recordEvents(client);
      const connected = client.connect();
      connected.catch(() => undefined);
      const peer = await server.accept();
      if (loggedIn) {
        await peer.logIn();
        await connected;
      }
      await body({ server, client, peer, events });
    } finally {
      client.disconnect();
      server.stop();
    }
  });
}

function whenConnecting(name: string, body: TestBody, options: Partial<Options> = {}): void {
  clientTest(name, false, body, options);
}

function whenOnline(name: string, body: TestBody, options: Partial<Options> = {}): void {
  clientTest(name, true, body, options);
}

function nextEvent(client: PresenceClient, name: keyof Events): Promise<void> {
  return new Promise((resolve) => {
    client.once(name, () => resolve());
  });
}

function presence(uid: string, status: string, id: string, reason: string): Packet {
  return { kind: Kind.PRESENCE, id: null, payload: { uid, status, id, reason } };
}

function snapshot(states: Record<string, ValueMap>): ValueMap {
  return { presence: states };
}

whenConnecting("a message in one chunk with the login's answer is kept", async ({ peer, client, events }) => {
  const deliver = { kind: Kind.DELIVER, id: null, payload: { from: "bob", body: "hi", at_ms: 1 } };
  await peer.logIn(1, deliver);
  await client.connect();
  assert.deepEqual(events, ["connected", "message hi"]);
});

whenConnecting("a refused login rejects and ends the client", async ({ peer, client, events }) => {
  const rejected = assert.rejects(client.connect(), LoginRefused);
  await peer.refuse(Kind.LOGIN, Code.AUTH_FAILED, "auth_failed");
  await rejected;
  assert.deepEqual(events, ["end auth_failed"]);
});

test("connect rejects if no server listens", async () => {
  const server = await ScriptedServer.start();
  const { port } = server;
  server.stop();
  const client = new PresenceClient({ host: "127.0.0.1", port, uid: "ann" });
  await assert.rejects(client.connect(), Unreachable);
  assert.equal(client.state, "ended");
});

whenConnecting(
  "a persistent client repeats a failed first attempt",
  async (context) => {
    await context.peer.refuse(Kind.LOGIN, Code.BUSY, "busy");
    await (await context.server.accept()).logIn();
    await context.client.connect();
    assert.deepEqual(context.events, ["disconnected busy", "connected"]);
  },
  { persistent: true },
);

whenOnline("a message resolves with a count, or rejects", async ({ peer, client }) => {
  const sent = client.sendMessage("bob", { text: "hi" });
  const { payload } = await peer.grant(Kind.MESSAGE, { delivered: 2 });
  assert.deepEqual([await sent, payload], [2, { to: "bob", body: { text: "hi" } }]);
  const rejected = client.sendMessage("bob", null);
  await peer.refuse(Kind.MESSAGE, Code.RECIPIENT_OFFLINE, "recipient_offline");
  await assert.rejects(rejected, RecipientOffline);
});

whenOnline("a confirmed message resolves with a receipt", async ({ peer, client }) => {
  const sent = client.sendConfirmed("bob", "hi", { confirmMs: 500 });
  const counts = { delivered: 3, confirmed: 2, by_app: 1, unconfirmed: 1 };
  const { payload } = await peer.grant(Kind.MESSAGE, counts);
  assert.deepEqual(payload, { to: "bob", body: "hi", confirm: 0.5 });
  assert.deepEqual(await sent, { delivered: 3, confirmed: 2, byApp: 1, unconfirmed: 1 });
  const old = client.sendConfirmed("bob", "hi");
  assert.equal((await peer.grant(Kind.MESSAGE, { delivered: 2 })).payload["confirm"], CONFIRM_MS / 1000);
  assert.deepEqual(await old, { delivered: 2, confirmed: 0, byApp: 0, unconfirmed: 2 }, "of an older server");
  for (const [confirmMs, error] of [
    [0, RangeError],
    [30_001, EncodeError],
    ["5", TypeError],
  ] as const) {
    await assert.rejects(client.sendConfirmed("bob", 1, { confirmMs: confirmMs as number }), error);
  }
});

whenOnline("watch resolves before later changes in one chunk are emitted", async (context) => {
  const { peer, client, events } = context;
  const watch = client.watch(["bob"]).then((states) => events.push(`watched ${states.get("bob")?.status}`));
  const changed = nextEvent(client, "presence");
  await peer.grant(
    Kind.WATCH,
    snapshot({ bob: { status: "online", id: "10-0" } }),
    presence("bob", "offline", "11-0", "logout"),
  );
  await Promise.all([watch, changed]);
  assert.deepEqual(events, ["connected", "watched online", "presence bob offline logout"]);
  assert.equal(client.watched().get("bob")?.status, "offline");
});

whenOnline("older changes and those of unwatched users are dropped", async ({ peer, client, events }) => {
  const watch = client.watch(["bob", "eve"]);
  const states = snapshot({ bob: { status: "online", id: "10-0" }, eve: { status: "online", id: "9-0" } });
  await peer.grant(Kind.WATCH, states);
  await watch;
  const unwatch = client.unwatch(["eve"]);
  await peer.grant(Kind.UNWATCH);
  await unwatch;
  const changed = nextEvent(client, "presence");
  peer.send(
    presence("bob", "away", "9-5", "away"),
    presence("eve", "offline", "12-0", "logout"),
    presence("bob", "away", "12-1", "away"),
  );
  await changed;
  assert.deepEqual(events, ["connected", "presence bob away away"]);
});

whenOnline(
  "devices of watched users are asked for, also after a reconnect",
  async ({ server, peer, client }) => {
    const watch = client.watch(["bob"]);
    const first = await peer.grant(
      Kind.WATCH,
      snapshot({ bob: { status: "online", id: "1-0", devices: [] } }),
    );
    assert.deepEqual(first.payload, { uids: ["bob"], detail: true });
    assert.deepEqual((await watch).get("bob")?.devices, []);
    peer.socket.destroy();
    const next = await server.accept();
    await next.logIn();
    assert.deepEqual((await next.next(Kind.WATCH)).payload, { uids: ["bob"], detail: true });
  },
  { watchDevices: true },
);

whenOnline("a refused watch adds no users", async ({ peer, client }) => {
  const watch = client.watch(["bob"]);
  await peer.refuse(Kind.WATCH, Code.TOO_LARGE, "too_large");
  await assert.rejects(watch, RequestFailed);
  assert.equal(client.watched().size, 0);
});

/** Watches bob, eve and kim, loses the connection, and returns the next connection. */
async function reconnectedAfterWatch({ server, client, peer }: Context): Promise<Peer> {
  const watch = client.watch(["bob", "eve", "kim"]);
  const online = { status: "online", id: "10-0" };
  await peer.grant(Kind.WATCH, snapshot({ bob: online, eve: online, kim: online }));
  await watch;
  peer.socket.destroy();
  const next = await server.accept();
  await next.logIn();
  return next;
}

whenOnline("after a reconnect it watches again, and reports each missed change once", async (context) => {
  const next = await reconnectedAfterWatch(context);
  const changed = nextEvent(context.client, "presence");
  const { payload } = await next.grant(
    Kind.WATCH,
    snapshot({
      bob: { status: "online", id: "10-0" },
      eve: { status: "offline", last_seen_ms: 5 },
      kim: { status: "away", id: "11-0" },
    }),
    presence("kim", "away", "11-0", "away"),
    presence("bob", "offline", "12-0", "logout"),
  );
  await changed;
  while (context.client.watched().get("bob")?.status !== "offline") {
    await nextEvent(context.client, "presence");
  }
  assert.deepEqual(payload, { uids: ["bob", "eve", "kim"] });
  assert.deepEqual(context.events, [
    "connected",
    "disconnected closed",
    "connected",
    "presence eve offline meanwhile",
    "presence kim away meanwhile",
    "presence bob offline logout",
  ]);
});

whenOnline("it repeats the watch until a busy server grants it", async (context) => {
  const next = await reconnectedAfterWatch(context);
  await next.refuse(Kind.WATCH, Code.BUSY, "busy", { retry_after: 0.01 });
  const unwatch = context.client.unwatch(["eve"]);
  await next.grant(Kind.UNWATCH);
  await unwatch;
  const { payload } = await next.next(Kind.WATCH);
  assert.deepEqual(payload, { uids: ["bob", "kim"] });
});

whenOnline("watchEnded reports users whose watch the server refuses to restore", async (context) => {
  const next = await reconnectedAfterWatch(context);
  const ended = nextEvent(context.client, "watchEnded");
  await next.refuse(Kind.WATCH, Code.UNSUPPORTED, "unsupported");
  await ended;
  assert.deepEqual(
    [context.events.at(-1), context.client.watched().size],
    ["watchEnded unsupported bob,eve,kim", 0],
  );
});

whenOnline("the roster is watched, again after a reconnect, and its changes are events", async (context) => {
  const { client, peer, server, events } = context;
  const roster = client.watchRoster();
  const changes: Packet = {
    kind: Kind.CHANGES,
    id: null,
    payload: { changes: [["kim", "away", Code.WATCHED, 2, 0], ["bob", "removed", Code.REMOVED]] },
  };
  const { payload } = await peer.grant(Kind.WATCH, { states: ["bob"], roster: 1 }, changes);
  assert.deepEqual(payload, { uids: [], roster: true });
  assert.deepEqual([...(await roster).keys()], ["bob"]);
  while (client.watched().has("bob")) {
    await nextEvent(client, "presence");
  }
  peer.socket.destroy();
  const next = await server.accept();
  await next.logIn();
  const changed = nextEvent(client, "presence");
  assert.deepEqual((await next.grant(Kind.WATCH, { states: [], roster: 0 })).payload, payload);
  await changed;
  assert.deepEqual(events, [
    "connected",
    "presence kim away watched",
    "presence bob removed removed",
    "disconnected closed",
    "connected",
    "presence kim removed removed",
  ]);
});

whenOnline("an aborted request for the roster is undone", async ({ client, peer }) => {
  const controller = new AbortController();
  const roster = client.watchRoster({ signal: controller.signal });
  await peer.next(Kind.WATCH);
  controller.abort();
  await assert.rejects(roster, { name: "AbortError" });
  assert.deepEqual((await peer.next(Kind.UNWATCH)).payload, { uids: [], roster: true });
});

whenOnline("the roster is unwatched, and is not asked for again", async (context) => {
  const { client, peer, server, events } = context;
  const roster = client.watchRoster();
  await peer.grant(Kind.WATCH, { states: ["bob", "eve"], roster: 2 });
  await roster;
  const watch = client.watch(["eve"]);
  await peer.grant(Kind.WATCH, { states: ["eve"] });
  await watch;
  const unwatched = client.unwatchRoster();
  assert.deepEqual([...client.watched().keys()], ["eve"]);
  assert.deepEqual((await peer.grant(Kind.UNWATCH, {})).payload, { uids: [], roster: true });
  await unwatched;
  peer.socket.destroy();
  const next = await server.accept();
  await next.logIn();
  assert.deepEqual((await next.next(Kind.WATCH)).payload, { uids: ["eve"] });
  next.socket.destroy();
  await nextEvent(client, "disconnected");
  await client.unwatchRoster();
  assert.deepEqual(events.slice(1), ["disconnected closed", "connected", "disconnected closed"]);
});

whenOnline("a refusal of a roster that was unwatched is not reported", async ({ client, peer, events }) => {
  client.watchRosterNowait();
  const { id } = await peer.next(Kind.WATCH);
  const unwatched = client.unwatchRoster();
  peer.send({ kind: Kind.ERROR, id, payload: { code: Code.UNSUPPORTED, reason: "unsupported", message: "" } });
  await peer.grant(Kind.UNWATCH, {});
  await unwatched;
  const answer = client.query(["bob"]);
  await peer.grant(Kind.QUERY, { states: ["bob"] });
  await answer;
  assert.deepEqual(events, ["connected"]);
});

whenOnline("an older server has no roster", async ({ client, peer, events }) => {
  const roster = client.watchRoster();
  await peer.grant(Kind.WATCH, { presence: {} });
  await assert.rejects(roster, Unsupported);
  const ended = nextEvent(client, "watchEnded");
  client.watchRosterNowait();
  await peer.grant(Kind.WATCH, { presence: {} });
  await ended;
  assert.equal(events.at(-1), "watchEnded unsupported ");
});

whenOnline("an older server is asked for the users who were listed last", async (context) => {
  const { client, peer, server, events } = context;
  client.watchRosterNowait();
  await peer.grant(Kind.WATCH, { states: ["bob"], roster: 1 });
  await nextEvent(client, "presence");
  peer.socket.destroy();
  const next = await server.accept();
  await next.logIn();
  await next.grant(Kind.WATCH, { presence: {} });
  const changed = nextEvent(client, "presence");
  const { payload } = await next.grant(Kind.WATCH, snapshot({ bob: { status: "away", id: "2-0" } }));
  assert.deepEqual(payload, { uids: ["bob"] });
  await changed;
  assert.equal(events.at(-1), "presence bob away meanwhile");
});

whenOnline("while offline a request rejects immediately, and unwatch succeeds", async ({ peer, client }) => {
  const query = client.query(["bob"]);
  const lost = nextEvent(client, "disconnected");
  await peer.next(Kind.QUERY);
  peer.socket.destroy();
  await assert.rejects(query, ConnectionLost);
  await lost;
  await assert.rejects(client.watch(["bob"]), NotConnected);
  await client.unwatch();
});

whenOnline("a quiet client is quiet again after a reconnect, until it ends that", async ({ server, peer, client }) => {
  const logins: unknown[] = [];
  let current = peer;
  for (const quiet of [true, false]) {
    const update = client.update({ quiet });
    assert.deepEqual((await current.grant(Kind.UPDATE)).payload, { quiet });
    await update;
    const online = nextEvent(client, "connected");
    current.socket.destroy();
    current = await server.accept();
    logins.push((await current.logIn()).payload["quiet"]);
    await online;
  }
  assert.deepEqual(logins, [true, undefined]);
});

whenOnline("the status away survives a reconnect", async ({ server, peer, client }) => {
  const away = client.away();
  const { payload } = await peer.grant(Kind.UPDATE);
  await away;
  peer.socket.destroy();
  const login = await (await server.accept()).next(Kind.LOGIN);
  assert.deepEqual([payload, login.payload["status"]], [{ status: "away" }, "away"]);
});

const INVISIBLE = { status: "invisible", scope: "user" } as const;

for (const [what, before, change, answer, later] of [
  ["an invisible user", "busy", INVISIBLE, { scope: "user" }, "busy"],
  ["an invisible user in place of an invisible device", "invisible", INVISIBLE, { scope: "user" }, "online"],
  ["another status of the user", "busy", { status: "dnd", scope: "user" }, { scope: "user" }, "dnd"],
  ["what the user hides", "busy", { hide: ["last_seen"] }, { hide: ["last_seen"] }, "busy"],
] as const) {
  whenOnline(`${what}: the next login leaves that to the server`, async (context) => {
    const { client, peer } = context;
    const first = client.update({ status: before });
    await peer.grant(Kind.UPDATE);
    await first;
    const update = client.update(change);
    assert.deepEqual((await peer.grant(Kind.UPDATE, answer)).payload, change);
    await update;
    const { payload } = await (await reconnected(context)).logIn();
    assert.deepEqual(payload, { uid: "ann", status: later, v: 1, confirms: true, batch: true });
  });
}

for (const [change, later] of [
  [INVISIBLE, "invisible"],
  [{ hide: ["last_seen"] }, undefined],
] as const) {
  whenOnline(`an older server does not hide that for the user: ${JSON.stringify(change)}`, async (context) => {
    const update = assert.rejects(context.client.update(change), Unsupported);
    await context.peer.grant(Kind.UPDATE);
    await update;
    const { payload } = await (await reconnected(context)).logIn();
    assert.equal(payload["status"], later);
  });
}

whenOnline("a scope needs a status, and an invisible user has no end", async ({ client }) => {
  await assert.rejects(client.update({ scope: "user" }), TypeError);
  await assert.rejects(client.update({ ...INVISIBLE, forMs: 1000 }), TypeError);
});

whenOnline(
  "a watch without an answer is undone, because the server may have granted it",
  async (context) => {
    const watch = context.client.watch(["bob"]);
    const { id } = await context.peer.next(Kind.WATCH);
    await assert.rejects(watch, RequestTimeout);
    const { payload } = await context.peer.grant(Kind.UNWATCH);
    context.peer.send({ kind: Kind.OK, id, payload: snapshot({ bob: { status: "online", id: "10-0" } }) });
    assert.deepEqual([payload, context.client.watched().size], [{ uids: ["bob"] }, 0]);
  },
  { requestTimeoutMs: 20 },
);

async function reconnected({ server, peer, client }: Context): Promise<Peer> {
  const lost = nextEvent(client, "disconnected");
  peer.socket.destroy();
  await lost;
  return server.accept();
}

whenOnline("what no login can hold follows it until the server takes it", async (context) => {
  const { client, peer } = context;
  const [token, meta] = ["t".repeat(760), { about: "m".repeat(200) }];
  for (const change of [{ token }, { meta }, { private: { push: "p".repeat(200) } }]) {
    const update = client.update(change);
    await peer.grant(Kind.UPDATE);
    await update;
  }
  const next = await reconnected(context);
  const { payload } = await next.logIn();
  assert.deepEqual(payload, { uid: "ann", token, meta, v: 1, confirms: true, batch: true });
  await next.refuse(Kind.UPDATE, Code.RATE_LIMITED, "rate_limited", { retry_after: 0.01 });
  assert.deepEqual((await next.grant(Kind.UPDATE)).payload, { private: { push: "p".repeat(200) } });
});

/** The private data did not fit into the login, and the server was too busy to take them after it. */
async function reconnectedWithRest(context: Context): Promise<{ next: Peer; secret: ValueMap }> {
  const [token, meta, secret] = ["t".repeat(760), { about: "m".repeat(200) }, { push: "p".repeat(200) }];
  for (const change of [{ token }, { meta }, { private: secret }]) {
    const update = context.client.update(change);
    await context.peer.grant(Kind.UPDATE);
    await update;
  }
  const next = await reconnected(context);
  await next.logIn();
  await next.refuse(Kind.UPDATE, Code.RATE_LIMITED, "rate_limited", { retry_after: 0.1 });
  return { next, secret };
}

whenOnline("an update that was not sent leaves what follows the login as it is", async (context) => {
  const { client } = context;
  const { next, secret } = await reconnectedWithRest(context);
  await assert.rejects(client.update({ private: { push: "p".repeat(300) } }), EncodeError);
  await assert.rejects(client.update({ private: {} }, { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.deepEqual((await next.grant(Kind.UPDATE)).payload, { private: secret });
});

whenOnline("a refused update leaves what follows the login as it is", async (context) => {
  const { client } = context;
  const { next, secret } = await reconnectedWithRest(context);
  const update = client.update({ private: {}, meta: undefined });
  await next.refuse(Kind.UPDATE, Code.RATE_LIMITED, "rate_limited");
  await assert.rejects(update, Busy);
  assert.deepEqual((await next.grant(Kind.UPDATE)).payload, { private: secret });
});

whenOnline("what a listener requests at a reconnect follows what is restored", async (context) => {
  const { client, peer } = context;
  const soonMs = Date.now() + 60_000;
  for (const change of [{ status: "away" }, { status: "dnd", until: new Date(soonMs) }] as const) {
    const update = client.update(change);
    await peer.grant(Kind.UPDATE);
    await update;
  }
  client.on("connected", () => void client.back().catch(() => undefined));
  const next = await reconnected(context);
  await next.logIn();
  const updates = [await next.grant(Kind.UPDATE), await next.grant(Kind.UPDATE)];
  assert.deepEqual(
    updates.map(({ payload }) => payload["status"]),
    ["dnd", "online"],
  );
});

whenOnline("after a pass is taken at the second try hidden users are asked for again", async (context) => {
  const { client, peer } = context;
  const added = client.addPass("p");
  await peer.grant(Kind.WATCH, snapshot({}));
  await added;
  const watched = client.watch(["bob"]);
  await peer.grant(Kind.WATCH, snapshot({ bob: { status: "online", id: "1-0" } }));
  await watched;
  const next = await reconnected(context);
  await next.logIn();
  await next.refuse(Kind.WATCH, Code.BUSY, "busy", { retry_after: 0.01 });
  await next.grant(Kind.WATCH, snapshot({ bob: { status: "not_allowed" } }));
  assert.equal((await next.grant(Kind.WATCH, snapshot({}))).payload["pass"], "p");
  assert.deepEqual((await next.next(Kind.WATCH)).payload, { uids: ["bob"] });
});

whenOnline(
  "a pass that a busy server refused is given again, one that has expired is not",
  async (context) => {
    const { client, peer } = context;
    for (const pass of [token({ exp: 1_700_000_100 }), "p"]) {
      const added = client.addPass(pass);
      await peer.grant(Kind.WATCH, snapshot({}));
      await added;
    }
    const next = await reconnected(context);
    const answer = { session: "s", idle_timeout: 30, keepalive: 12, time_ms: 1_700_000_200_000, v: 1 };
    await next.grant(Kind.LOGIN, answer);
    await next.refuse(Kind.WATCH, Code.BUSY, "busy", { retry_after: 0.01 });
    assert.deepEqual((await next.grant(Kind.WATCH, snapshot({}))).payload, { uids: [], pass: "p" });
  },
);

whenOnline(
  "watches whose devices do not fit into one answer are asked for in parts",
  async (context) => {
    const uids = Array.from({ length: 40 }, (_, n) => `u${n}`);
    const states = Object.fromEntries(uids.map((uid) => [uid, { status: "online", id: "1-0" }]));
    const watched = context.client.watch(uids);
    await context.peer.grant(Kind.WATCH, snapshot(states));
    await watched;
    const next = await reconnected(context);
    await next.logIn();
    await next.refuse(Kind.WATCH, Code.TOO_LARGE, "too_large");
    const parts = [(await next.grant(Kind.WATCH, snapshot({}))).payload["uids"]];
    parts.push((await next.grant(Kind.WATCH, snapshot({}))).payload["uids"]);
    assert.deepEqual(parts, [uids.slice(0, 20), uids.slice(20)]);
    assert.deepEqual([...context.client.watched().keys()], uids);
  },
  { watchDevices: true },
);

whenOnline(
  "a request without an answer times out",
  async ({ client }) => {
    await assert.rejects(client.query(["bob"]), RequestTimeout);
  },
  { requestTimeoutMs: 20 },
);

whenConnecting(
  "it reconnects if the server answers no keepalive",
  async ({ server, peer, client, events }) => {
    peer.ignoresKeepalives = true;
    await peer.logIn(0.05);
    await (await server.accept()).logIn();
    await nextEvent(client, "connected");
    assert.deepEqual(events, ["connected", "disconnected dead_server", "connected"]);
  },
);

const LONG_TIMEOUT = { requestTimeoutMs: 500 };

whenOnline(
  "an answer in time counts even if the program was busy",
  async (context) => {
    const query = context.client.query(["bob"]);
    await context.peer.grant(Kind.QUERY);
    const deadline = performance.now() + 600;
    while (performance.now() < deadline);
    await query;
    assert.deepEqual(context.events, ["connected"]);
  },
  LONG_TIMEOUT,
);

whenOnline("a login of the same device elsewhere ends the client", async ({ peer, client, events }) => {
  const ended = new Promise((resolve) => client.once("end", resolve));
  peer.send({ kind: Kind.GOODBYE, id: null, payload: { code: 300, reason: "replaced", reconnect: false } });
  assert.ok((await ended) instanceof Replaced);
  await peer.closed;
  assert.deepEqual(events, ["connected", "goodbye replaced", "end replaced"]);
});

whenOnline("a logout ends the client with its answer", async ({ peer, client, events }) => {
  const logout = client.logout("background");
  const { payload } = await peer.grant(Kind.LOGOUT);
  await logout;
  await peer.closed;
  assert.deepEqual(
    [payload, events, client.state],
    [{ reason: "background" }, ["connected", "end"], "ended"],
  );
});

whenOnline(
  "a listener that disconnects the client keeps the order of events",
  async ({ peer, client, events }) => {
    client.once("message", () => client.disconnect());
    client.on("message", ({ body }) => events.push(`and ${String(body)}`)); // after the listener that disconnects
    const ended = nextEvent(client, "end");
    const deliver = (body: string): Packet => ({
      kind: Kind.DELIVER,
      id: null,
      payload: { from: "bob", body, at_ms: 1 },
    });
    peer.send(deliver("first"), deliver("second"));
    await ended;
    client.disconnect();
    assert.deepEqual(events, [
      "connected",
      "message first",
      "and first",
      "message second",
      "and second",
      "end",
    ]);
  },
);

// Tokens; the clock of the scripted server is always at 1 ms

const SHORT = token({ exp: 2, jti: 1 });
const LONG = token({ exp: 3600, jti: 2 });

test("the token function is called for the login, and again before the token expires", async () => {
  const server = await ScriptedServer.start();
  const tokens = [SHORT, LONG];
  const client = new PresenceClient({
    host: "127.0.0.1",
    port: server.port,
    token: () => Promise.resolve(tokens.shift() ?? ""),
  });
  try {
    const connected = client.connect();
    const peer = await server.accept();
    assert.deepEqual((await peer.logIn()).payload, { token: SHORT, v: 1, confirms: true, batch: true });
    await connected;
    const watched = client.watch(["bob"]);
    await peer.grant(Kind.WATCH, snapshot({ bob: { status: "not_allowed" } }));
    await watched;
    assert.deepEqual((await peer.grant(Kind.UPDATE)).payload, { token: LONG });
    assert.deepEqual((await peer.next(Kind.WATCH)).payload, { uids: ["bob"] }, "it may be seen now");
    assert.deepEqual(client.statistics().logins, 1);
  } finally {
    client.disconnect();
    server.stop();
  }
});

test("an error of the token function rejects the first attempt before it connects", async () => {
  for (const failure of [new Error("no way there"), "no error at all"]) {
    const token = (): string => {
      throw failure;
    };
    const client = new PresenceClient({ host: "127.0.0.1", port: 1, token });
    const events = recordEvents(client);
    await assert.rejects(client.connect(), NoToken);
    assert.deepEqual(events, ["end"]);
  }
});

test("a persistent client calls the token function again", async () => {
  const server = await ScriptedServer.start();
  let calls = 0;
  const source = (): Promise<string> =>
    (calls += 1) < 3 ? Promise.reject(new Error("no way there")) : Promise.resolve(LONG);
  const options = { host: "127.0.0.1", port: server.port, persistent: true, token: source };
  const client = new PresenceClient(options, NO_JITTER);
  try {
    const events = recordEvents(client);
    const connected = client.connect();
    await (await server.accept()).logIn();
    await connected;
    assert.deepEqual(events, ["disconnected no_token", "disconnected no_token", "connected"]);
  } finally {
    client.disconnect();
    server.stop();
  }
});

test("a client disconnected during the token call stays so", async () => {
  let resolveToken = (_token: string): void => undefined;
  const token = (): Promise<string> =>
    new Promise((resolve) => {
      resolveToken = resolve;
    });
  const client = new PresenceClient({ host: "127.0.0.1", port: 1, token });
  const connected = client.connect();
  await Promise.resolve();
  client.disconnect();
  await assert.rejects(connected, Ended);
  resolveToken(LONG);
  await new Promise(setImmediate);
  assert.equal(client.state, "ended");
});
