/** What a client sends when, and what an answer means; time stands in the test's hand. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Busy,
  Code,
  ConnectionLost,
  EncodeError,
  Ended,
  Kind,
  LoginRefused,
  mayReturn,
  NotConnected,
  OutcomeUnknown,
  RecipientDisconnected,
  RecipientOffline,
  Replaced,
  RequestFailed,
  RequestTimeout,
  Unreachable,
  Unsupported,
} from "../src/index.js";
import { CONNECT_TIMEOUT_MS, LOGIN_TIMEOUT_MS, LOGOUT_TIMEOUT_MS, Machine } from "../src/machine.js";
import { RETRY_MS } from "../src/session.js";
import { Driven, KEEPALIVE_MS, packet } from "./driver.js";

const CODES = Object.entries(Code).map(([name, code]) => ({
  code: code as number,
  reason: name.toLowerCase(),
}));
const ENDINGS = CODES.filter(({ code }) => code >= 200);

function online(options: ConstructorParameters<typeof Driven>[0] = {}): Driven {
  const driven = new Driven(options);
  driven.logIn();
  return driven;
}

function refusal(code: number, reason: string, more = {}): { code: number; reason: string; message: string } {
  return { code, reason, message: "no", ...more };
}

// Login

test("the first packet is the login", () => {
  const driven = new Driven({
    login: { uid: "ann", device: "phone", idleTimeoutMs: 45_000, status: "away" },
  });
  driven.establish();
  const payload = { uid: "ann", device: "phone", idle_timeout: 45, status: "away", v: 1 };
  assert.deepEqual(driven.sent, [packet(Kind.LOGIN, 1, payload)]);
});

test("a login that breaks a rule is refused before anything is tried", () => {
  assert.throws(() => new Machine({ uid: "a b" }), EncodeError);
  assert.throws(() => new Machine({}), EncodeError);
});

test("the login's answer is told", () => {
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

test("a server that tells no interval is beaten at a share of its time-out", () => {
  const driven = new Driven();
  driven.establish();
  driven.receive(packet(Kind.OK, 1, { idle_timeout: 10 }));
  const [push] = driven.pushes;
  assert.equal(push?.type === "connected" && push.keepaliveMs, 4000);
});

test("no connection in time is a failed attempt", () => {
  const driven = new Driven();
  driven.run(CONNECT_TIMEOUT_MS);
  assert.deepEqual(
    [driven.machine.state, driven.pushes.map(({ type }) => type)],
    ["waiting", ["disconnected"]],
  );
});

test("a login without an answer is a failed attempt", () => {
  const driven = new Driven();
  driven.establish();
  driven.run(LOGIN_TIMEOUT_MS);
  const [push] = driven.pushes;
  assert.equal(push?.type === "disconnected" && push.reason, "login_timeout");
});

for (const { code, reason } of ENDINGS) {
  test(`a login refused with ${reason} is ${mayReturn(code) ? "tried again in time" : "the end"}`, () => {
    const driven = new Driven();
    driven.establish();
    driven.receive(packet(Kind.ERROR, 1, refusal(code, reason, { retry_after: 7 })));
    if (!mayReturn(code)) {
      assert.ok(driven.machine.error instanceof LoginRefused);
      assert.deepEqual([driven.machine.error.code, driven.machine.deadline], [code, Infinity]);
      return;
    }
    const push = { type: "disconnected", reason, message: "no", retryInMs: 8000, code };
    assert.deepEqual(driven.pushes, [push]);
    const states = [7999, 1].map((ms) => {
      driven.run(ms);
      return driven.machine.state;
    });
    assert.deepEqual(states, ["waiting", "connecting"]);
  });

  for (const reconnect of [true, false]) {
    test(`of a goodbye with ${reason} its own word decides: ${reconnect}`, () => {
      const driven = online();
      driven.receive(packet(Kind.GOODBYE, null, { code, reason, reconnect, retry_after: 2 }));
      const last = driven.pushes.at(-1);
      if (reconnect) {
        assert.deepEqual(last, { type: "disconnected", reason, message: "", retryInMs: 3000, code });
      } else {
        assert.deepEqual(last?.type, "goodbye");
        assert.ok(driven.machine.error instanceof (code === Code.REPLACED ? Replaced : Ended));
      }
    });
  }
}

test("a refusal with an unknown code is tried again, without an id too", () => {
  const driven = new Driven();
  driven.establish();
  driven.receive(packet(Kind.ERROR, null, refusal(999, "new")));
  assert.equal(driven.machine.state, "waiting");
});

for (const fails of ["unreachable", "closed", "refused"] as const) {
  test(`a first attempt that decides ends the client: ${fails}`, () => {
    const driven = new Driven({ persistent: false });
    if (fails !== "unreachable") {
      driven.establish();
    }
    if (fails === "refused") {
      driven.receive(packet(Kind.ERROR, 1, refusal(Code.BUSY, "busy")));
    } else {
      driven.lose();
    }
    assert.equal(driven.machine.state, "ended");
    assert.ok(driven.machine.error instanceof (fails === "refused" ? LoginRefused : Unreachable));
  });
}

test("later losses are no first attempt", () => {
  const driven = online({ persistent: false });
  driven.lose();
  driven.run(1000);
  driven.lose();
  assert.equal(driven.machine.state, "waiting");
});

// Beats

test("it beats for as long as the server answers, never later than the interval", () => {
  const driven = online();
  driven.chance = 0.5;
  driven.run(3_600_000, true);
  const gaps = driven.sentAt.slice(3).map((at, index) => at - (driven.sentAt[index + 2] as number));
  assert.equal(driven.machine.state, "online");
  assert.ok(driven.beats.length >= 300 && driven.beats.length <= 330, `${driven.beats.length}`);
  assert.ok(Math.max(...gaps) <= KEEPALIVE_MS);
});

test("every third beat carries an id, if that is asked for", () => {
  const driven = online({ askEvery: 3 });
  driven.run(KEEPALIVE_MS * 9, true);
  const asks = driven.beats.slice(0, 9).map(({ id }) => id !== null);
  assert.deepEqual(asks, [true, false, false, true, false, false, true, false, false]);
});

for (const [askEvery, bound] of [
  [1, 2],
  [3, 4],
] as const) {
  test(`a dead server is noticed within ${bound} intervals if one beat of ${askEvery} asks`, () => {
    for (let quarter = 0; quarter < 48; quarter += 1) {
      const driven = online({ askEvery });
      driven.run(KEEPALIVE_MS * (1 + quarter / 4), true);
      driven.run(KEEPALIVE_MS * bound);
      const lost = driven.pushes.find(({ type }) => type === "disconnected");
      assert.equal(lost?.type === "disconnected" && lost.reason, "dead_server");
    }
  });
}

test("an answer in time is one, and a refused beat is a sign of life", () => {
  const driven = online();
  driven.run(KEEPALIVE_MS);
  driven.run(KEEPALIVE_MS - 10);
  const id = Number(driven.beats[0]?.id);
  driven.receive(packet(Kind.ERROR, id, refusal(Code.RATE_LIMITED, "rate_limited")));
  driven.run(KEEPALIVE_MS);
  assert.deepEqual([driven.machine.state, driven.machine.roundTripMs], ["online", KEEPALIVE_MS - 10]);
});

test("whatever arrives is a sign of life, though the beat's answer does not", () => {
  const driven = online();
  driven.run(KEEPALIVE_MS);
  for (let push = 0; push < 3; push += 1) {
    driven.run(KEEPALIVE_MS - 10);
    driven.receive(packet(Kind.DELIVER, null, { from: "bob", body: push, at_ms: 1 }));
  }
  assert.equal(driven.machine.state, "online");
  driven.run(KEEPALIVE_MS);
  assert.equal(driven.machine.state, "waiting");
});

test("after a pause, missed beats are not made up for", () => {
  const driven = online();
  driven.now += KEEPALIVE_MS * 2.5;
  const before = driven.sent.length;
  driven.note(driven.machine.tick(driven.now));
  driven.note(driven.machine.tick(driven.now));
  assert.equal(driven.sent.length - before, 1);
});

// The end of a connection

test("a broken connection is come back from", () => {
  const driven = online();
  driven.lose();
  driven.run(1000);
  assert.equal(driven.machine.state, "connecting");
  driven.logIn();
  const [, lost, again] = driven.pushes;
  assert.deepEqual(lost, {
    type: "disconnected",
    reason: "closed",
    message: "broken",
    retryInMs: 1000,
    code: null,
  });
  assert.equal(again?.type === "connected" && again.again, true);
});

test("half a packet of a lost connection is forgotten", () => {
  const driven = online();
  driven.note(driven.machine.received(new Uint8Array([0, 0]), driven.now));
  driven.lose();
  driven.run(1000);
  driven.logIn();
});

test("returns are spread over a time that doubles to a minute", () => {
  const driven = new Driven();
  const mostMs: number[] = [];
  for (let attempt = 0; attempt < 8; attempt += 1) {
    driven.lose();
    const push = driven.pushes.at(-1);
    mostMs.push(push?.type === "disconnected" ? push.retryInMs : NaN);
    driven.run(driven.machine.deadline - driven.now);
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
  test(`a connection that ends behind ${name} ${ends ? "forbids" : "allows"} a return`, () => {
    const driven = online();
    driven.receive(packet(Kind.ERROR, null, refusal(Code[name], name.toLowerCase())));
    driven.lose();
    assert.equal(driven.machine.state, ends ? "ended" : "waiting");
  });
}

test("an error behind which something else came did not end the connection", () => {
  const driven = online();
  driven.receive(packet(Kind.ERROR, null, refusal(Code.PROTOCOL_ERROR, "protocol_error")));
  driven.receive(packet(Kind.DELIVER, null, { from: "bob", body: 1, at_ms: 1 }));
  driven.lose();
  assert.equal(driven.machine.state, "waiting");
});

for (const [kind, payload, state] of [
  [Kind.WATCH, { uids: ["bob"] }, "waiting"],
  [Kind.MESSAGE, { to: "bob", body: 1 }, "ended"],
] as const) {
  test(`a connection that ends behind a 315 to kind ${kind} leaves the client ${state}`, () => {
    const driven = online();
    const id = driven.ask(kind, payload);
    driven.receive(packet(Kind.ERROR, id, refusal(Code.TOO_LARGE, "too_large")));
    driven.lose();
    assert.equal(driven.machine.state, state);
  });
}

test("bytes that break the protocol end the connection", () => {
  const driven = online();
  driven.note(driven.machine.received(new Uint8Array(4), driven.now));
  const push = driven.pushes.at(-1);
  assert.equal(push?.type === "disconnected" && push.reason, "bad_server");
});

test("what follows a goodbye is dropped", () => {
  const driven = online();
  driven.receive(
    packet(Kind.GOODBYE, null, { code: Code.REPLACED, reason: "replaced", reconnect: false }),
    packet(Kind.DELIVER, null, { from: "bob", body: "late", at_ms: 1 }),
  );
  assert.ok(driven.pushes.every(({ type }) => type !== "message"));
});

// Requests

for (const [code, type] of [
  [Code.UNSUPPORTED, Unsupported],
  [Code.RECIPIENT_OFFLINE, RecipientOffline],
  [Code.RECIPIENT_DISCONNECTED, RecipientDisconnected],
  [Code.BUSY, Busy],
  [Code.SERVER_ERROR, OutcomeUnknown],
  [Code.RATE_LIMITED, Busy],
  [Code.SESSION_LIMIT, RequestFailed],
] as const) {
  test(`an error reply is typed: ${code}`, () => {
    const driven = online();
    const id = driven.ask(Kind.MESSAGE, { to: "bob", body: "hi" });
    driven.receive(packet(Kind.ERROR, id, refusal(code, "x", { retry_after: 0.5 })));
    const error = driven.answers.get(id);
    assert.ok(error instanceof RequestFailed);
    assert.equal(error.constructor, type);
    assert.deepEqual(error.refusal, { code, reason: "x", message: "no", retryAfterMs: 500 });
  });
}

/** Id and body of each message that was sent since the last call. */
function messages(driven: Driven): unknown[] {
  return driven.sent
    .splice(0)
    .filter(({ kind }) => kind === Kind.MESSAGE)
    .map(({ id, payload }) => [id, payload["body"]]);
}

function gone(driven: Driven, id: number, retryAfter = 4): void {
  const extra = { retry_after: retryAfter };
  driven.receive(packet(Kind.ERROR, id, refusal(Code.RECIPIENT_DISCONNECTED, "x", extra)));
}

test("a message is sent again while its recipient may return, and what follows stays behind it", () => {
  const driven = online();
  messages(driven);
  const one = driven.send("bob", 1);
  const two = driven.send("bob", 2);
  gone(driven, one);
  const three = driven.send("bob", 3);
  gone(driven, two);
  assert.deepEqual(messages(driven), [[one, 1], [two, 2]]);
  driven.run(RETRY_MS - 1);
  assert.deepEqual(messages(driven), []);
  driven.run(1);
  assert.deepEqual(messages(driven), [[one, 1], [two, 2], [three, 3]]);
  driven.receive(packet(Kind.OK, one, { delivered: 1 }));
  assert.deepEqual(driven.answers.get(one), { delivered: 1 });
});

test("a recipient that does not return in time is told", () => {
  const driven = online();
  const id = driven.send("bob", 1, 2500);
  gone(driven, id);
  const lost = driven.send("eve", 1);
  gone(driven, lost);
  for (let turn = 0; turn < 30; turn += 1) {
    driven.run(100);
    if (messages(driven).some((each) => Array.isArray(each) && each[0] === id)) {
      gone(driven, id, 60);
    }
  }
  assert.ok(driven.answers.get(id) instanceof RecipientDisconnected);
});

test("a message that waits is surely not delivered when the connection ends", () => {
  const driven = online();
  const id = driven.send("bob", 1);
  gone(driven, id);
  driven.lose();
  assert.ok(driven.answers.get(id) instanceof RecipientDisconnected);
});

test("answers find their requests in any order", () => {
  const driven = online();
  const [first, second] = [1, 2].map((body) => driven.ask(Kind.MESSAGE, { to: "bob", body })) as [
    number,
    number,
  ];
  driven.receive(packet(Kind.OK, second, { delivered: 2 }), packet(Kind.OK, first, { delivered: 1 }));
  assert.deepEqual(
    [driven.answers.get(first), driven.answers.get(second)],
    [{ delivered: 1 }, { delivered: 2 }],
  );
});

test("a request without an answer times out, and a late answer is dropped", () => {
  const driven = online();
  const id = driven.ask(Kind.QUERY, { uids: ["bob"] }, 2000);
  driven.run(2000);
  assert.ok(driven.answers.get(id) instanceof RequestTimeout);
  driven.receive(packet(Kind.OK, id, { presence: {} }));
  assert.equal(driven.machine.state, "online");
});

test("a lost connection answers what is due, and ids are never used again", () => {
  const driven = online();
  const id = driven.ask(Kind.QUERY, { uids: ["bob"] });
  driven.lose();
  assert.ok(driven.answers.get(id) instanceof ConnectionLost);
  assert.throws(() => driven.ask(Kind.QUERY, { uids: ["bob"] }), NotConnected);
  driven.run(1000);
  driven.logIn();
  assert.ok(driven.ask(Kind.QUERY, { uids: ["bob"] }) > id);
});

test("a request that breaks a rule is refused here and sends nothing", () => {
  const driven = online();
  const before = driven.sent.length;
  assert.throws(() => driven.ask(Kind.MESSAGE, { to: "bob", body: "x".repeat(17_000) }), EncodeError);
  assert.throws(() => driven.ask(Kind.WATCH, { uids: [""] }), EncodeError);
  driven.note([]);
  assert.equal(driven.sent.length, before);
});

test("messages and presence are handed out in order, unknown kinds are not", () => {
  const driven = online();
  driven.receive(
    packet(Kind.DELIVER, null, { from: "bob", body: { text: "hi" }, at_ms: 5 }),
    packet(99, null, { new: true }),
    packet(Kind.PRESENCE, null, { uid: "bob", status: "away", since_ms: 4, id: "4-0", reason: "away" }),
  );
  const state = { status: "away", sinceMs: 4, lastSeenMs: null, id: "4-0", meta: {} };
  assert.deepEqual(driven.pushes.slice(1), [
    { type: "message", from: "bob", body: { text: "hi" }, atMs: 5 },
    { type: "presence", uid: "bob", state, reason: "away" },
  ]);
});

// The client's own end

test("a logout ends with its answer", () => {
  const driven = online();
  const id = driven.machine.logOut("background", driven.now);
  driven.note([]);
  assert.deepEqual(driven.sent.at(-1), packet(Kind.LOGOUT, id, { reason: "background" }));
  driven.receive(packet(Kind.OK, id));
  assert.deepEqual([driven.answers.get(id), driven.machine.state, driven.machine.error], [{}, "ended", null]);
});

test("a logout without an answer ends all the same", () => {
  const driven = online();
  const id = driven.machine.logOut(undefined, driven.now);
  driven.run(LOGOUT_TIMEOUT_MS);
  assert.ok(driven.answers.get(id) instanceof RequestTimeout);
  assert.deepEqual([driven.machine.state, driven.machine.error], ["ended", null]);
});

test("a logout while offline ends and says that nobody was told", () => {
  const driven = online();
  driven.lose();
  assert.throws(() => driven.machine.logOut(undefined, driven.now), NotConnected);
  assert.equal(driven.machine.state, "ended");
  assert.throws(() => driven.ask(Kind.QUERY, { uids: ["bob"] }), Ended);
});

test("what later logins carry can be changed, and a bad change changes nothing", () => {
  const driven = online();
  driven.machine.login.change({ token: "fresh", status: "away", meta: { app: "2" } });
  assert.throws(() => {
    driven.machine.login.change({ token: "x".repeat(800) });
  }, EncodeError);
  driven.lose();
  driven.run(1000);
  driven.establish();
  const payload = { uid: "ann", device: "phone", token: "fresh", status: "away", meta: { app: "2" }, v: 1 };
  assert.deepEqual(driven.sent.at(-1)?.payload, payload);
});

test("a close ends it in every state", () => {
  const states: ((driven: Driven) => void)[] = [
    () => undefined,
    (driven) => driven.establish(),
    (driven) => driven.logIn(),
    (driven) => driven.lose(),
    (driven) => void (driven.logIn(), driven.machine.logOut(undefined, driven.now)),
  ];
  for (const reach of states) {
    const driven = new Driven();
    reach(driven);
    driven.note(driven.machine.close());
    assert.deepEqual([driven.machine.state, driven.machine.error], ["ended", null]);
  }
});
