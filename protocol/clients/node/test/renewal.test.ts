/** Tokens that the program makes: before each login, and before the present one ends. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, Kind, LoginRefused, NoToken, type Packet, type ValueMap } from "../src/index.js";
import { CONNECT_TIMEOUT_MS } from "../src/machine.js";
import { ANSWER_TIMEOUT_MS, RETRY_MIN_MS, TOKEN_TIMEOUT_MS } from "../src/renewal.js";
import { leftMs } from "../src/tokens.js";
import { Driven, packet, SERVER_TIME_S, token } from "./driver.js";

const LIFE_MS = 3_600_000;
const [FIRST, SECOND, THIRD] = [1, 2, 3].map((hours) =>
  token({ exp: SERVER_TIME_S + (hours * LIFE_MS) / 1000, jti: hours }),
) as [string, string, string];

function fetching(options: { persistent?: boolean } = {}): Driven {
  const driven = new Driven({ ...options, fetches: true, login: {} });
  driven.chance = 0;
  return driven;
}

function give(driven: Driven, given: unknown): void {
  driven.note(driven.machine.fetched(given, driven.now));
}

function online(first: string = FIRST): Driven {
  const driven = fetching();
  give(driven, first);
  driven.logIn();
  return driven;
}

function refuse(driven: Driven, id: number): void {
  driven.receive(
    packet(Kind.ERROR, id, { code: Code.AUTH_FAILED, reason: "auth_failed", message: "no" }),
  );
}

function sent(driven: Driven, kind: number): unknown[] {
  return driven.sent.filter((each) => each.kind === kind).map(({ payload }) => payload["token"]);
}

/** Answer the last update, with an error if there is one. */
function answer(driven: Driven, error: ValueMap | null = null): void {
  const last = driven.sent.filter(({ kind }) => kind === Kind.UPDATE).at(-1) as Packet;
  driven.receive(packet(error ? Kind.ERROR : Kind.OK, Number(last.id), error ?? {}));
}

/** Let time pass until a token is wanted; return how long that took. */
function untilWanted(driven: Driven): number {
  const began = driven.now;
  while (!driven.machine.wantsToken) {
    assert.equal(driven.machine.state, "online");
    assert.ok(driven.now - began < 10 * LIFE_MS);
    driven.run(Math.max(0, driven.machine.deadline - driven.now), true);
  }
  return driven.now - began;
}

test("a token is wanted before there is a connection, and needs no uid", () => {
  const driven = fetching();
  assert.deepEqual([driven.machine.state, driven.machine.wantsToken], ["fetching a token", true]);
  driven.run(TOKEN_TIMEOUT_MS - 1);
  give(driven, FIRST);
  driven.run(CONNECT_TIMEOUT_MS - 1);
  assert.deepEqual([driven.machine.state, driven.machine.wantsToken], ["connecting", false]);
  driven.establish();
  assert.deepEqual(driven.sent[0]?.payload, { token: FIRST, v: 1 });
});

for (const given of [new Error("no way there"), "", "x".repeat(800), undefined, null, 7]) {
  test(`what is no token is a failed attempt: ${String(given).slice(0, 20)}`, () => {
    const driven = fetching();
    give(driven, given);
    const [push] = driven.pushes;
    assert.equal(push?.type === "disconnected" && push.reason, "no_token");
    driven.run(1000);
    assert.ok(driven.machine.wantsToken);
  });
}

test("no token in time is a failed attempt, and one that comes later is passed over", () => {
  const driven = fetching();
  driven.chance = 1;
  driven.run(TOKEN_TIMEOUT_MS);
  give(driven, FIRST);
  assert.equal(driven.machine.state, "waiting");
});

test("a first attempt that decides ends with what went wrong", () => {
  const driven = fetching({ persistent: false });
  const failure = new Error("no way there");
  give(driven, failure);
  assert.ok(driven.machine.error instanceof NoToken);
  assert.equal(driven.machine.error.cause, failure);
});

for (const persistent of [true, false]) {
  test(`another token than a refused one is tried once, persistent: ${persistent}`, () => {
    const driven = fetching({ persistent });
    for (const each of [FIRST, SECOND]) {
      give(driven, each);
      driven.establish();
      refuse(driven, 1);
      driven.run(0);
    }
    assert.deepEqual(sent(driven, Kind.LOGIN), [FIRST, SECOND]);
    assert.ok(driven.machine.error instanceof LoginRefused);
  });
}

test("a source that gives a refused token again is asked again, after a pause", () => {
  const driven = online();
  driven.lose();
  for (let attempt = 0; attempt < 4; attempt += 1) {
    driven.run(driven.machine.deadline - driven.now);
    give(driven, FIRST);
    if (attempt === 0) {
      driven.establish();
      refuse(driven, 1);
    }
  }
  driven.run(driven.machine.deadline - driven.now);
  give(driven, token({ exp: SERVER_TIME_S - 1, jti: 9 }));
  assert.deepEqual(sent(driven, Kind.LOGIN), [FIRST, FIRST]);
  assert.equal(driven.machine.state, "waiting");
  driven.run(driven.machine.deadline - driven.now);
  give(driven, SECOND);
  driven.logIn();
});

test("a first attempt that is waited for fails if the refused token is given again", () => {
  const driven = fetching({ persistent: false });
  give(driven, FIRST);
  driven.establish();
  refuse(driven, 1);
  driven.run(driven.machine.deadline - driven.now);
  give(driven, FIRST);
  assert.deepEqual(sent(driven, Kind.LOGIN), [FIRST]);
  assert.ok(driven.machine.error instanceof LoginRefused);
});

test("after a token has ended the client comes back with another", () => {
  const driven = online();
  driven.receive(
    packet(Kind.GOODBYE, 0, { code: Code.AUTH_EXPIRED, reason: "auth_expired", reconnect: true }),
  );
  driven.run(0);
  give(driven, SECOND);
  driven.logIn();
  assert.deepEqual(sent(driven, Kind.LOGIN), [FIRST, SECOND]);
});

test("a fresh token is sent before the present one ends, and is what later logins carry", () => {
  const driven = online();
  assert.equal(untilWanted(driven), 0.8 * LIFE_MS);
  give(driven, SECOND);
  assert.deepEqual(sent(driven, Kind.UPDATE), [SECOND]);
  answer(driven);
  assert.equal(driven.machine.login.token, SECOND);
  assert.equal(driven.answers.size, 0, "the program has not asked for it");
  const leftOfSecond = 2 * LIFE_MS - 0.8 * LIFE_MS;
  assert.ok(Math.abs(untilWanted(driven) - 0.8 * leftOfSecond) < 1);
});

test("those who logged in together do not renew together", () => {
  const driven = fetching();
  driven.chance = 1;
  give(driven, FIRST);
  driven.logIn();
  assert.ok(Math.abs(untilWanted(driven) - 0.7 * LIFE_MS) < 1);
});

test("a token that does not tell its end is not renewed", () => {
  const driven = online("opaque");
  driven.run(10 * LIFE_MS, true);
  assert.equal(driven.machine.wantsToken, false);
});

test("a server whose clock was set back since it told it is not sent a token each second", () => {
  const [begins, ends] = [SERVER_TIME_S - 50_000, SERVER_TIME_S - 46_400];
  const driven = online(token({ exp: ends, jti: 1 }));
  assert.equal(untilWanted(driven), RETRY_MIN_MS);
  give(driven, token({ iat: begins, exp: ends, jti: 2 }));
  answer(driven);
  assert.ok(Math.abs(untilWanted(driven) - 0.8 * LIFE_MS) < 1);
});

for (const given of [FIRST, new Error("no way there"), ""]) {
  test(`where there is no fresh one it is wanted later: ${String(given).slice(0, 20)}`, () => {
    const driven = online();
    untilWanted(driven);
    give(driven, given);
    assert.deepEqual([driven.machine.state, sent(driven, Kind.UPDATE)], ["online", []]);
    assert.equal(untilWanted(driven), RETRY_MIN_MS);
  });
}

test("a program that hangs is asked again", () => {
  const driven = online();
  untilWanted(driven);
  driven.run(TOKEN_TIMEOUT_MS, true);
  assert.equal(driven.machine.wantsToken, false);
  assert.equal(untilWanted(driven), RETRY_MIN_MS);
});

test("a token that was refused is not sent again, and changes nothing", () => {
  const driven = online();
  untilWanted(driven);
  give(driven, SECOND);
  answer(driven, { code: Code.AUTH_FAILED, reason: "auth_failed", message: "no" });
  for (const each of [SECOND, THIRD]) {
    untilWanted(driven);
    give(driven, each);
  }
  assert.deepEqual(sent(driven, Kind.UPDATE), [SECOND, THIRD]);
  assert.equal(driven.machine.login.token, FIRST);
});

test("a server that is busy is asked when it says", () => {
  const driven = online();
  untilWanted(driven);
  give(driven, SECOND);
  answer(driven, { code: Code.BUSY, reason: "busy", message: "", retry_after: 7 });
  assert.equal(untilWanted(driven), RETRY_MIN_MS + 7000);
});

test("an update without an answer is repeated", () => {
  const driven = online();
  untilWanted(driven);
  give(driven, SECOND);
  const began = driven.now;
  while (!driven.machine.wantsToken) {
    driven.run(driven.machine.deadline - driven.now);
    const beat = driven.beats.at(-1);
    driven.receive(packet(Kind.OK, Number(beat?.id)));
  }
  assert.equal(driven.now - began, ANSWER_TIMEOUT_MS + RETRY_MIN_MS);
  assert.equal(driven.answers.size, 0);
});

test("a server that checks no tokens is sent no more", () => {
  const driven = online();
  untilWanted(driven);
  give(driven, SECOND);
  answer(driven, { code: Code.UNSUPPORTED, reason: "unsupported", message: "" });
  driven.run(10 * LIFE_MS, true);
  assert.equal(driven.machine.wantsToken, false);
});

test("a connection that is lost meanwhile is nobody's answer", () => {
  const driven = online();
  untilWanted(driven);
  give(driven, SECOND);
  driven.lose();
  assert.equal(driven.answers.size, 0);
});

test("what is left is told by the server's clock, or else counted from the token's beginning", () => {
  assert.equal(leftMs(token({ exp: 1060 }), 1_000_500), 59_500);
  assert.equal(leftMs(token({ exp: 1060, iat: 1000 }), null), 60_000);
});

test("a token that cannot be read has no end", () => {
  const unreadable = ["", "secret", "a.b", "a.!.c", "e30.bm8.c2ln"];
  for (const each of [...unreadable, ...[[], {}, 7, null, { exp: null }, { exp: "soon" }].map(token)]) {
    assert.equal(leftMs(each, 0), null, each);
    assert.equal(leftMs(each, null), null, each);
  }
});
