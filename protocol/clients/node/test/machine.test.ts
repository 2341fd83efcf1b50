/** The protocol of a client, with a manual clock. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Banned,
  Busy,
  Code,
  ConnectionLost,
  EncodeError,
  Ended,
  Kicked,
  Kind,
  LimitReached,
  LoginRefused,
  mayReconnect,
  NotConnected,
  RecipientDisconnected,
  RecipientOffline,
  Replaced,
  RequestFailed,
  RequestTimeout,
  ServerFailed,
  SessionLimit,
  Uncertain,
  Unreachable,
  Unsupported,
  type ValueMap,
} from "../src/index.js";
import type { Packet } from "../src/codec.js";
import { PROBE_TIMEOUT_MS } from "../src/keepalives.js";
import { ClientMachine, CONNECT_TIMEOUT_MS, LOGIN_TIMEOUT_MS, LOGOUT_TIMEOUT_MS } from "../src/machine.js";
import { MAX_CONFIRMED } from "../src/session.js";
import { ClientDriver, KEEPALIVE_MS, packet, SERVER_TIME_S } from "./driver.js";

const END_CODES = Object.entries(Code)
  .map(([name, code]) => ({ code: code as number, reason: name.toLowerCase() }))
  .filter(({ code }) => code >= 200);

const ENDED = new Map<number, unknown>([
  [Code.REPLACED, Replaced],
  [Code.KICKED, Kicked],
  [Code.SESSION_LIMIT, SessionLimit],
  [Code.BANNED, Banned],
]);

function online(options: ConstructorParameters<typeof ClientDriver>[0] = {}): ClientDriver {
  const driver = new ClientDriver(options);
  driver.logIn();
  return driver;
}

function refusal(code: number, reason: string, more: ValueMap = {}): ValueMap {
  return { code, reason, message: "no", ...more };
}

// Login

test("the first packet is the login", () => {
  const login = { uid: "ann", device: "phone", idleTimeoutMs: 45_000, status: "away" } as const;
  const driver = new ClientDriver({ login });
  driver.establish();
  const payload = { uid: "ann", device: "phone", idle_timeout: 45, status: "away", v: 1, confirms: true, batch: true };
  assert.deepEqual(driver.sent, [packet(Kind.LOGIN, 1, payload)]);
});

test("a login is quiet only if the client is", () => {
  for (const [quiet, sent] of [
    [true, { quiet: true }],
    [false, {}],
  ] as const) {
    const driver = new ClientDriver({ login: { uid: "ann", quiet } });
    driver.establish();
    assert.deepEqual(driver.sent, [packet(Kind.LOGIN, 1, { uid: "ann", ...sent, v: 1, confirms: true, batch: true })]);
  }
  assert.throws(() => new ClientMachine({ uid: "ann", quiet: "yes" as unknown as boolean }), EncodeError);
});

function confirmed(driver: ClientDriver): unknown[] {
  return driver.sent.flatMap(({ payload }) => (payload["confirmed"] === undefined ? [] : [payload["confirmed"]]));
}

function deliver(confirm?: number): Packet {
  const wanted = confirm === undefined ? {} : { confirm };
  return packet(Kind.DELIVER, null, { from: "bob", body: 1, at_ms: 5, ...wanted });
}

test("messages that are read together are confirmed together and immediately", () => {
  const driver = new ClientDriver();
  driver.logIn();
  driver.receive(deliver(7), deliver(), deliver(2 ** 53 - 1));
  assert.deepEqual(confirmed(driver), [[7, 2 ** 53 - 1]]);
  driver.receive(deliver());
  assert.equal(confirmed(driver).length, 1);
  driver.receive(...Array.from({ length: MAX_CONFIRMED + 1 }, (_, number) => deliver(number)));
  assert.deepEqual(confirmed(driver)[2], [MAX_CONFIRMED]);
});

test("a client that leaves confirms nothing", () => {
  const driver = new ClientDriver();
  driver.logIn();
  driver.machine.logOut(undefined, driver.now);
  driver.receive(deliver(7));
  assert.deepEqual(confirmed(driver), []);
});

test("an invalid login throws before any attempt", () => {
  assert.throws(() => new ClientMachine({ uid: "a b" }), EncodeError);
  assert.throws(() => new ClientMachine({}), EncodeError);
});

test("the login's answer is reported", () => {
  assert.deepEqual(online().pushes, [
    {
      type: "connected",
      session: "s-1",
      idleTimeoutMs: 30_000,
      keepaliveMs: 12_000,
      timeMs: 1_700_000_000_000,
      again: false,
    },
  ]);
});

test("without a keepalive interval it uses a share of the idle time-out", () => {
  const driver = new ClientDriver();
  driver.establish();
  driver.receive(packet(Kind.OK, 1, { idle_timeout: 10 }));
  const [push] = driver.pushes;
  assert.equal(push?.type === "connected" && push.keepaliveMs, 4000);
});

test("no connection in time is a failed attempt", () => {
  const driver = new ClientDriver();
  driver.advance(CONNECT_TIMEOUT_MS);
  assert.deepEqual(
    [driver.machine.state, driver.pushes.map(({ type }) => type)],
    ["waiting to return", ["disconnected"]],
  );
});

test("a login without an answer is a failed attempt", () => {
  const driver = new ClientDriver();
  driver.establish();
  driver.advance(LOGIN_TIMEOUT_MS);
  const [push] = driver.pushes;
  assert.equal(push?.type === "disconnected" && push.reason, "login_timeout");
});

for (const { code, reason } of END_CODES) {
  test(`a login refused with ${reason} is ${mayReconnect(code) ? "tried again" : "final"}`, () => {
    const driver = new ClientDriver();
    driver.establish();
    const more = mayReconnect(code) ? { retry_after: 7 } : {};
    driver.receive(packet(Kind.ERROR, 1, refusal(code, reason, more)));
    if (!mayReconnect(code)) {
      assert.ok(driver.machine.error instanceof LoginRefused);
      assert.deepEqual([driver.machine.error.code, driver.machine.deadline], [code, Infinity]);
      return;
    }
    const push = { type: "disconnected", reason, message: "no", retryInMs: 8000, code };
    assert.deepEqual(driver.pushes, [push]);
    const states = [7999, 1].map((ms) => {
      driver.advance(ms);
      return driver.machine.state;
    });
    assert.deepEqual(states, ["waiting to return", "connecting"]);
  });

  for (const reconnect of [true, false]) {
    test(`a goodbye with ${reason} is decided by its reconnect flag: ${reconnect}`, () => {
      const driver = online();
      driver.receive(packet(Kind.GOODBYE, null, { code, reason, reconnect, retry_after: 2 }));
      const last = driver.pushes.at(-1);
      if (reconnect) {
        assert.deepEqual(last, { type: "disconnected", reason, message: "", retryInMs: 3000, code });
      } else {
        assert.deepEqual(last?.type, "goodbye");
        assert.equal(driver.ends[0]?.constructor, ENDED.get(code) ?? Ended);
      }
    });
  }
}

for (const code of [Code.BANNED, Code.SESSION_LIMIT]) {
  test(`a login refused with ${code} and a time is tried again after it`, () => {
    const driver = new ClientDriver();
    driver.establish();
    driver.receive(packet(Kind.ERROR, 1, refusal(code, "no", { retry_after: 7 })));
    const states = [7999, 1].map((ms) => {
      driver.advance(ms);
      return driver.machine.state;
    });
    assert.deepEqual(states, ["waiting to return", "connecting"]);
  });
}

test("a login refused with an unknown code and without an id is tried again", () => {
  const driver = new ClientDriver();
  driver.establish();
  driver.receive(packet(Kind.ERROR, null, refusal(999, "new")));
  assert.equal(driver.machine.state, "waiting to return");
});

for (const fails of ["unreachable", "closed", "refused"] as const) {
  test(`a failed first attempt ends a client that is not persistent: ${fails}`, () => {
    const driver = new ClientDriver({ persistent: false });
    if (fails !== "unreachable") {
      driver.establish();
    }
    if (fails === "refused") {
      driver.receive(packet(Kind.ERROR, 1, refusal(Code.BUSY, "busy")));
    } else {
      driver.disconnect();
    }
    assert.equal(driver.machine.state, "ended");
    assert.ok(driver.machine.error instanceof (fails === "refused" ? LoginRefused : Unreachable));
  });
}

test("a failed reconnect does not count as a first attempt", () => {
  const driver = online({ persistent: false });
  driver.disconnect();
  driver.advance(1000);
  driver.disconnect();
  assert.equal(driver.machine.state, "waiting to return");
});

// Keepalives

test("it sends keepalives while the server answers, never later than the interval", () => {
  const driver = online();
  driver.chance = 0.5;
  driver.advance(3_600_000, true);
  const gaps = driver.sentAt.slice(3).map((at, index) => at - (driver.sentAt[index + 2] as number));
  assert.equal(driver.machine.state, "online");
  assert.ok(
    driver.keepalives.length >= 300 && driver.keepalives.length <= 330,
    `${driver.keepalives.length}`,
  );
  assert.ok(Math.max(...gaps) <= KEEPALIVE_MS);
});

test("with askEvery 3 every third keepalive carries an id", () => {
  const driver = online({ askEvery: 3 });
  driver.advance(KEEPALIVE_MS * 9, true);
  const asks = driver.keepalives.slice(0, 9).map(({ id }) => id !== null);
  assert.deepEqual(asks, [true, false, false, true, false, false, true, false, false]);
});

for (const [askEvery, bound] of [
  [1, 2],
  [3, 4],
] as const) {
  test(`a dead server is detected within ${bound} intervals with askEvery ${askEvery}`, () => {
    for (let quarter = 0; quarter < 48; quarter += 1) {
      const driver = online({ askEvery });
      driver.advance(KEEPALIVE_MS * (1 + quarter / 4), true);
      driver.advance(KEEPALIVE_MS * bound);
      const lost = driver.pushes.find(({ type }) => type === "disconnected");
      assert.equal(lost?.type === "disconnected" && lost.reason, "dead_server");
    }
  });
}

test("an error reply to a keepalive is an answer", () => {
  const driver = online();
  driver.advance(KEEPALIVE_MS);
  driver.advance(KEEPALIVE_MS - 10);
  const id = Number(driver.keepalives[0]?.id);
  driver.receive(packet(Kind.ERROR, id, refusal(Code.RATE_LIMITED, "rate_limited")));
  driver.advance(KEEPALIVE_MS);
  assert.deepEqual([driver.machine.state, driver.machine.roundTripMs], ["online", KEEPALIVE_MS - 10]);
});

test("any received packet is a sign of life, even without an answer to the keepalive", () => {
  const driver = online();
  driver.advance(KEEPALIVE_MS);
  for (let push = 0; push < 3; push += 1) {
    driver.advance(KEEPALIVE_MS - 10);
    driver.receive(packet(Kind.DELIVER, null, { from: "bob", body: push, at_ms: 1 }));
  }
  assert.equal(driver.machine.state, "online");
  driver.advance(KEEPALIVE_MS);
  assert.equal(driver.machine.state, "waiting to return");
});

test("missed keepalives are not made up for", () => {
  const driver = online();
  driver.now += KEEPALIVE_MS * 2.5;
  const before = driver.sent.length;
  driver.apply(driver.machine.tick(driver.now));
  driver.apply(driver.machine.tick(driver.now));
  assert.equal(driver.sent.length - before, 1);
});

// After a sleep

test("after a sleep it asks the server for a sign of life, and no other time", () => {
  const driver = online({ askEvery: 3 });
  driver.advance(KEEPALIVE_MS, true);
  const before = driver.keepalives.length;
  driver.wake();
  driver.wake();
  const asked = driver.keepalives.slice(before);
  assert.deepEqual([asked.length, asked[0]?.id !== null, driver.sentAt.at(-1)], [1, true, driver.now]);
});

test("a server that does not answer soon after a sleep is dead", () => {
  const driver = online();
  driver.wake();
  driver.advance(PROBE_TIMEOUT_MS - 1);
  assert.equal(driver.machine.state, "online");
  driver.advance(1);
  assert.equal(driver.machine.state, "waiting to return");
});

test("an answer that was missing before the sleep must come soon, too", () => {
  const driver = online();
  driver.advance(KEEPALIVE_MS);
  const sent = driver.keepalives.length;
  driver.wake();
  driver.advance(PROBE_TIMEOUT_MS);
  assert.deepEqual([driver.machine.state, driver.keepalives.length], ["waiting to return", sent]);
});

test("after an answer keepalives are due as before the sleep", () => {
  const driver = online();
  driver.wake();
  driver.receive(packet(Kind.OK, Number(driver.keepalives[0]?.id)));
  driver.advance(KEEPALIVE_MS);
  driver.advance(PROBE_TIMEOUT_MS + 1);
  assert.deepEqual([driver.machine.state, driver.keepalives.length], ["online", 2]);
});

test("after a sleep a client that waits to return does so as at its first attempt", () => {
  const driver = new ClientDriver();
  for (let attempt = 0; attempt < 6; attempt += 1) {
    driver.disconnect();
    driver.advance(driver.machine.deadline - driver.now);
  }
  driver.disconnect();
  assert.equal(driver.machine.deadline - driver.now, 60_000);
  driver.wake();
  assert.equal(driver.machine.deadline - driver.now, 1000);
  driver.advance(400);
  driver.wake(); // no later than it was to be
  assert.equal(driver.machine.deadline - driver.now, 600);
});

test("a sleep spares no wait that the server has asked for", () => {
  const driver = online();
  driver.receive(packet(Kind.GOODBYE, null, refusal(Code.SERVER_DRAIN, "server_drain", { reconnect: true, retry_after: 20 })));
  driver.advance(5000);
  driver.wake();
  assert.equal(driver.machine.deadline - driver.now, 16_000);
});

test("a sleep has no effect in other states", () => {
  const driver = new ClientDriver();
  const { deadline } = driver.machine;
  driver.wake();
  driver.establish();
  driver.wake();
  assert.deepEqual([deadline - driver.now, driver.sent.length], [CONNECT_TIMEOUT_MS, 1]);
});

// The end of a connection

test("it reconnects after a broken connection", () => {
  const driver = online();
  driver.disconnect();
  driver.advance(1000);
  assert.equal(driver.machine.state, "connecting");
  driver.logIn();
  const [, lost, again] = driver.pushes;
  assert.deepEqual(lost, {
    type: "disconnected",
    reason: "closed",
    message: "broken",
    retryInMs: 1000,
    code: null,
  });
  assert.equal(again?.type === "connected" && again.again, true);
});

test("a partial packet of a lost connection is dropped", () => {
  const driver = online();
  driver.apply(driver.machine.received(new Uint8Array([0, 0]), driver.now));
  driver.disconnect();
  driver.advance(1000);
  driver.logIn();
});

test("the back-off doubles up to a minute", () => {
  const driver = new ClientDriver();
  const mostMs: number[] = [];
  for (let attempt = 0; attempt < 8; attempt += 1) {
    driver.disconnect();
    const push = driver.pushes.at(-1);
    mostMs.push(push?.type === "disconnected" ? push.retryInMs : NaN);
    driver.advance(driver.machine.deadline - driver.now);
  }
  assert.deepEqual(mostMs.slice(0, 3), [1000, 2000, 4000]);
  assert.equal(Math.max(...mostMs), 60_000);
});

for (const [name, ends] of [
  ["PROTOCOL_ERROR", true],
  ["TOO_LARGE", true],
  ["NOT_LOGGED_IN", true],
  ["UNSUPPORTED", false],
  ["RECIPIENT_OFFLINE", false],
] as const) {
  test(`a connection that ends after ${name} ${ends ? "ends the client" : "is restored"}`, () => {
    const driver = online();
    driver.receive(packet(Kind.ERROR, null, refusal(Code[name], name.toLowerCase())));
    driver.disconnect();
    assert.equal(driver.machine.state, ends ? "ended" : "waiting to return");
  });
}

test("an error followed by another packet did not end the connection", () => {
  const driver = online();
  driver.receive(packet(Kind.ERROR, null, refusal(Code.PROTOCOL_ERROR, "protocol_error")));
  driver.receive(packet(Kind.DELIVER, null, { from: "bob", body: 1, at_ms: 1 }));
  driver.disconnect();
  assert.equal(driver.machine.state, "waiting to return");
});

for (const [kind, payload, state] of [
  [Kind.WATCH, { uids: ["bob"] }, "waiting to return"],
  [Kind.QUERY, { uids: ["bob"], detail: true }, "waiting to return"],
  [Kind.MESSAGE, { to: "bob", body: 1 }, "ended"],
] as const) {
  test(`after a 315 to kind ${kind} and a lost connection the client is ${state}`, () => {
    const driver = online();
    const id = driver.request(kind, payload);
    driver.receive(packet(Kind.ERROR, id, refusal(Code.TOO_LARGE, "too_large")));
    driver.disconnect();
    assert.equal(driver.machine.state, state);
  });
}

test("invalid bytes end the connection", () => {
  const driver = online();
  driver.apply(driver.machine.received(new Uint8Array(4), driver.now));
  const push = driver.pushes.at(-1);
  assert.equal(push?.type === "disconnected" && push.reason, "bad_server");
});

test("packets after a goodbye are dropped", () => {
  const driver = online();
  driver.receive(
    packet(Kind.GOODBYE, null, { code: Code.REPLACED, reason: "replaced", reconnect: false }),
    packet(Kind.DELIVER, null, { from: "bob", body: "late", at_ms: 1 }),
  );
  assert.ok(driver.pushes.every(({ type }) => type !== "message"));
});

// Requests

for (const [code, type] of [
  [Code.UNSUPPORTED, Unsupported],
  [Code.RECIPIENT_OFFLINE, RecipientOffline],
  [Code.RECIPIENT_DISCONNECTED, RecipientDisconnected],
  [Code.BUSY, Busy],
  [Code.TOO_LARGE, LimitReached],
  [Code.SERVER_ERROR, ServerFailed],
  [Code.RATE_LIMITED, Busy],
  [Code.SESSION_LIMIT, RequestFailed],
] as const) {
  test(`error class of an error reply: ${code}`, () => {
    const driver = online();
    const id = driver.request(Kind.MESSAGE, { to: "bob", body: "hi" });
    driver.receive(packet(Kind.ERROR, id, refusal(code, "x", { retry_after: 0.5 })));
    const error = driver.results.get(id);
    assert.equal(error?.constructor, type);
    assert.equal(error instanceof Uncertain, type === ServerFailed);
    const { reason, message, retryAfterMs } = error as RequestFailed;
    assert.deepEqual([reason, message, retryAfterMs], ["x", "no", 500]);
  });
}

test("a request in flight when the client is ended is perhaps carried out", () => {
  const driver = online();
  const [sent, waiting] = [driver.sendMessage("bob", 1), driver.sendMessage("bob", 2)];
  driver.receive(packet(Kind.GOODBYE, null, { code: Code.KICKED, reason: "kicked", reconnect: false }));
  assert.ok(driver.results.get(sent) instanceof ConnectionLost);
  assert.ok(driver.results.get(waiting) instanceof Kicked, "it was not sent");
});

test("nothing that may wait follows a logout", () => {
  const driver = online();
  const [first, held] = [driver.sendMessage("bob", 1), driver.sendMessage("bob", 2)];
  const away = driver.sendMessage("eve", 3);
  driver.refuseAsDisconnected(away, 0.1);
  driver.machine.logOut(undefined, driver.now);
  driver.receive(packet(Kind.OK, first, { delivered: 1 }));
  driver.advance(1000);
  assert.equal(driver.sent.at(-1)?.kind, Kind.LOGOUT);
  driver.receive(packet(Kind.OK, Number(driver.sent.at(-1)?.id)));
  assert.ok(driver.results.get(held) instanceof NotConnected);
  assert.ok(driver.results.get(away) instanceof RecipientDisconnected);
});

test("a request times out during a logout, too", () => {
  const driver = online();
  const id = driver.request(Kind.QUERY, { uids: ["bob"] }, 1000);
  driver.machine.logOut(undefined, driver.now);
  driver.advance(1000);
  assert.ok(driver.results.get(id) instanceof RequestTimeout);
});

for (const how of ["abandoned", "timed out"] as const) {
  test(`a refusal of a watch that was ${how} is no reason to stay away`, () => {
    const driver = online();
    const id = driver.request(Kind.WATCH, { uids: ["bob"] }, 1000);
    if (how === "abandoned") {
      driver.apply(driver.machine.abandon(id, driver.now));
    } else {
      driver.advance(1000);
    }
    driver.receive(packet(Kind.ERROR, id, refusal(Code.TOO_LARGE, "too_large")));
    driver.disconnect();
    assert.equal(driver.machine.state, "waiting to return");
  });
}

test("the cost of a request does not grow with those in flight", () => {
  const driver = online();
  const send = (count: number): void => {
    for (let n = 0; n < count; n += 1) {
      driver.machine.request(Kind.QUERY, { uids: ["bob"] }, 10_000, driver.now);
      assert.ok(driver.machine.deadline > 0);
    }
  };
  const cost = (): number => {
    const times = Array.from({ length: 5 }, () => {
      const startedAt = performance.now();
      send(100);
      return performance.now() - startedAt;
    });
    return Math.min(...times);
  };
  send(1000);
  const few = cost();
  for (let n = 0; n < 20_000; n += 1) {
    driver.machine.request(Kind.QUERY, { uids: ["bob"] }, 10_000, driver.now);
  }
  const many = cost();
  assert.ok(many < 3 * few, `${many / few} times the cost`);
});

test("answers are matched to requests in any order", () => {
  const driver = online();
  const first = driver.request(Kind.MESSAGE, { to: "bob", body: 1 });
  const second = driver.request(Kind.MESSAGE, { to: "bob", body: 2 });
  driver.receive(packet(Kind.OK, second, { delivered: 2 }), packet(Kind.OK, first, { delivered: 1 }));
  assert.deepEqual(
    [driver.results.get(first), driver.results.get(second)],
    [{ delivered: 1 }, { delivered: 2 }],
  );
});

test("a request times out, and a late answer is dropped", () => {
  const driver = online();
  const id = driver.request(Kind.QUERY, { uids: ["bob"] }, 2000);
  driver.advance(2000);
  assert.ok(driver.results.get(id) instanceof RequestTimeout);
  driver.receive(packet(Kind.OK, id, { presence: {} }));
  assert.equal(driver.machine.state, "online");
});

test("a lost connection fails pending requests, and ids are never reused", () => {
  const driver = online();
  const id = driver.request(Kind.QUERY, { uids: ["bob"] });
  driver.disconnect();
  assert.ok(driver.results.get(id) instanceof ConnectionLost);
  assert.throws(() => driver.request(Kind.QUERY, { uids: ["bob"] }), NotConnected);
  driver.advance(1000);
  driver.logIn();
  assert.ok(driver.request(Kind.QUERY, { uids: ["bob"] }) > id);
});

test("an invalid request throws and sends nothing", () => {
  const driver = online();
  const before = driver.sent.length;
  assert.throws(() => driver.request(Kind.MESSAGE, { to: "bob", body: "x".repeat(17_000) }), EncodeError);
  assert.throws(() => driver.request(Kind.WATCH, { uids: [""] }), EncodeError);
  driver.apply([]);
  assert.equal(driver.sent.length, before);
});

test("messages and changes are reported in order, unknown kinds are ignored", () => {
  const driver = online();
  driver.receive(
    packet(Kind.DELIVER, null, { from: "bob", body: { text: "hi" }, at_ms: 5 }),
    packet(99, null, { new: true }),
    packet(Kind.PRESENCE, null, { uid: "bob", status: "away", since_ms: 4, id: "4-0", reason: "away" }),
  );
  const state = {
    status: "away",
    sinceMs: 4,
    lastSeenMs: null,
    id: "4-0",
    meta: {},
    reason: null,
    devices: null,
  };
  assert.deepEqual(driver.pushes.slice(1), [
    { type: "message", sender: "bob", body: { text: "hi" }, atMs: 5 },
    { type: "presence", uid: "bob", state, reason: "away" },
  ]);
});

// Logout and close

test("the answer to a logout ends the client", () => {
  const driver = online();
  const id = driver.machine.logOut("background", driver.now);
  driver.apply([]);
  assert.deepEqual(driver.sent.at(-1), packet(Kind.LOGOUT, id, { reason: "background" }));
  driver.receive(packet(Kind.OK, id));
  assert.deepEqual([driver.results.get(id), driver.machine.state, driver.machine.error], [{}, "ended", null]);
});

test("a logout without an answer ends the client after a time-out", () => {
  const driver = online();
  const id = driver.machine.logOut(undefined, driver.now);
  driver.advance(LOGOUT_TIMEOUT_MS);
  assert.ok(driver.results.get(id) instanceof RequestTimeout);
  assert.deepEqual([driver.machine.state, driver.machine.error], ["ended", null]);
});

test("a logout while offline throws NotConnected", () => {
  const driver = online();
  driver.disconnect();
  assert.throws(() => driver.machine.logOut(undefined, driver.now), NotConnected);
  assert.equal(driver.machine.state, "waiting to return");
});

test("login.change applies to later logins, and an invalid change has no effect", () => {
  const driver = online();
  driver.machine.login.change({ token: "fresh", status: "away", meta: { app: "2" } });
  assert.throws(() => {
    driver.machine.login.change({ token: "x".repeat(800) });
  }, EncodeError);
  driver.disconnect();
  driver.advance(1000);
  driver.establish();
  const payload = { uid: "ann", device: "phone", token: "fresh", status: "away", meta: { app: "2" } };
  assert.deepEqual(driver.sent.at(-1)?.payload, { ...payload, v: 1, confirms: true, batch: true });
});

const soonMs = SERVER_TIME_S * 1000 + 60_000;

for (const [lasting, timed, login, rest] of [
  [undefined, "dnd", { status: "dnd", until_ms: soonMs }, null],
  ["invisible", "dnd", { status: "invisible" }, { status: "dnd", untilMs: soonMs }],
  ["away", "busy", { status: "away" }, { status: "busy", untilMs: soonMs }],
  ["away", "invisible", { status: "invisible", until_ms: soonMs }, null],
] as const) {
  test(`after a reconnect ${timed} ends, and ${lasting ?? "online"} returns`, () => {
    const driver = online();
    if (lasting !== undefined) {
      driver.machine.login.granted({ status: lasting });
    }
    driver.machine.login.granted({ status: timed, untilMs: soonMs });
    driver.disconnect();
    driver.advance(1000);
    driver.establish();
    const identity = { uid: "ann", device: "phone", v: 1, confirms: true, batch: true };
    assert.deepEqual(driver.sent.at(-1)?.payload, { ...identity, ...login });
    assert.deepEqual(driver.machine.login.rest(), rest);
    driver.receive(packet(Kind.OK, 1, { time_ms: soonMs }));
    driver.disconnect();
    driver.advance(2000);
    driver.establish();
    assert.deepEqual(
      driver.sent.at(-1)?.payload,
      lasting === undefined ? identity : { ...identity, status: lasting },
    );
    assert.equal(driver.machine.login.rest(), null);
  });
}

test("a refused idle time-out changes no keepalives", () => {
  const driver = online();
  const id = driver.request(Kind.UPDATE, { idle_timeout: 0.1 });
  driver.receive(packet(Kind.ERROR, id, refusal(Code.UNSUPPORTED, "unsupported")));
  driver.advance(KEEPALIVE_MS, true);
  const before = driver.keepalives.length;
  driver.advance(2 * KEEPALIVE_MS, true);
  assert.ok(driver.keepalives.length - before <= 3);
});

test("a client disconnected while it connected stays so", () => {
  const driver = new ClientDriver();
  driver.apply(driver.machine.disconnect());
  driver.establish();
  assert.deepEqual([driver.machine.state, driver.sent], ["ended", []]);
});

test("disconnect ends the client in every state", () => {
  const states: ((driver: ClientDriver) => void)[] = [
    () => undefined,
    (driver) => driver.establish(),
    (driver) => driver.logIn(),
    (driver) => driver.disconnect(),
    (driver) => void (driver.logIn(), driver.machine.logOut(undefined, driver.now)),
  ];
  for (const reach of states) {
    const driver = new ClientDriver();
    reach(driver);
    driver.apply(driver.machine.disconnect());
    assert.deepEqual([driver.machine.state, driver.machine.error], ["ended", null]);
  }
});
