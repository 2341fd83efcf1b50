/** Tokens that the program makes: before each login, and before the present one ends. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, Kind, LoginRefused, NoToken, type Packet, type ValueMap } from "../src/index.js";
import { CONNECT_TIMEOUT_MS } from "../src/machine.js";
import { ANSWER_TIMEOUT_MS, MIN_RENEWAL_DELAY_MS, TOKEN_TIMEOUT_MS } from "../src/renewal.js";
import { remainingLifetimeMs } from "../src/tokens.js";
import { ClientDriver, packet, SERVER_TIME_S, token } from "./driver.js";

const LIFETIME_MS = 3_600_000;
const [FIRST, SECOND, THIRD] = [1, 2, 3].map((hours) =>
  token({ exp: SERVER_TIME_S + (hours * LIFETIME_MS) / 1000, jti: hours }),
) as [string, string, string];

function fetching(options: { persistent?: boolean } = {}): ClientDriver {
  const driver = new ClientDriver({ ...options, fetchesTokens: true, login: {} });
  driver.chance = 0;
  return driver;
}

function offer(driver: ClientDriver, given: unknown): void {
  driver.apply(driver.machine.tokenFetched(given, driver.now));
}

function online(first: string = FIRST): ClientDriver {
  const driver = fetching();
  offer(driver, first);
  driver.logIn();
  return driver;
}

function refuse(driver: ClientDriver, id: number): void {
  driver.receive(packet(Kind.ERROR, id, { code: Code.AUTH_FAILED, reason: "auth_failed", message: "no" }));
}

function sentTokens(driver: ClientDriver, kind: number): unknown[] {
  return driver.sent.filter((each) => each.kind === kind).map(({ payload }) => payload["token"]);
}

/** Answer the last update, with an error if there is one. */
function answer(driver: ClientDriver, error: ValueMap | null = null): void {
  const last = driver.sent.filter(({ kind }) => kind === Kind.UPDATE).at(-1) as Packet;
  driver.receive(packet(error ? Kind.ERROR : Kind.OK, Number(last.id), error ?? {}));
}

/** Let time pass until a token is wanted; return how long that took. */
function advanceUntilWanted(driver: ClientDriver): number {
  const startedAt = driver.now;
  while (!driver.machine.wantsToken) {
    assert.equal(driver.machine.state, "online");
    assert.ok(driver.now - startedAt < 10 * LIFETIME_MS);
    driver.advance(Math.max(0, driver.machine.deadline - driver.now), true);
  }
  return driver.now - startedAt;
}

test("a token is wanted before there is a connection, and needs no uid", () => {
  const driver = fetching();
  assert.deepEqual([driver.machine.state, driver.machine.wantsToken], ["fetching a token", true]);
  driver.advance(TOKEN_TIMEOUT_MS - 1);
  offer(driver, FIRST);
  driver.advance(CONNECT_TIMEOUT_MS - 1);
  assert.deepEqual([driver.machine.state, driver.machine.wantsToken], ["connecting", false]);
  driver.establish();
  assert.deepEqual(driver.sent[0]?.payload, { token: FIRST, v: 1 });
});

for (const given of [new Error("no way there"), "", "x".repeat(800), undefined, null, 7]) {
  test(`what is no token is a failed attempt: ${String(given).slice(0, 20)}`, () => {
    const driver = fetching();
    offer(driver, given);
    const [push] = driver.pushes;
    assert.equal(push?.type === "disconnected" && push.reason, "no_token");
    driver.advance(1000);
    assert.ok(driver.machine.wantsToken);
  });
}

test("no token in time is a failed attempt, and one that comes later is passed over", () => {
  const driver = fetching();
  driver.chance = 1;
  driver.advance(TOKEN_TIMEOUT_MS);
  offer(driver, FIRST);
  assert.equal(driver.machine.state, "waiting");
});

test("a first attempt that decides ends with what went wrong", () => {
  const driver = fetching({ persistent: false });
  const failure = new Error("no way there");
  offer(driver, failure);
  assert.ok(driver.machine.error instanceof NoToken);
  assert.equal(driver.machine.error.cause, failure);
});

for (const persistent of [true, false]) {
  test(`another token than a refused one is tried once, persistent: ${persistent}`, () => {
    const driver = fetching({ persistent });
    for (const each of [FIRST, SECOND]) {
      offer(driver, each);
      driver.establish();
      refuse(driver, 1);
      driver.advance(0);
    }
    assert.deepEqual(sentTokens(driver, Kind.LOGIN), [FIRST, SECOND]);
    assert.ok(driver.machine.error instanceof LoginRefused);
  });
}

test("a source that gives a refused token again is asked again, after a pause", () => {
  const driver = online();
  driver.disconnect();
  for (let attempt = 0; attempt < 4; attempt += 1) {
    driver.advance(driver.machine.deadline - driver.now);
    offer(driver, FIRST);
    if (attempt === 0) {
      driver.establish();
      refuse(driver, 1);
    }
  }
  driver.advance(driver.machine.deadline - driver.now);
  offer(driver, token({ exp: SERVER_TIME_S - 1, jti: 9 }));
  assert.deepEqual(sentTokens(driver, Kind.LOGIN), [FIRST, FIRST]);
  assert.equal(driver.machine.state, "waiting");
  driver.advance(driver.machine.deadline - driver.now);
  offer(driver, SECOND);
  driver.logIn();
});

test("a first attempt that is waited for fails if the refused token is given again", () => {
  const driver = fetching({ persistent: false });
  offer(driver, FIRST);
  driver.establish();
  refuse(driver, 1);
  driver.advance(driver.machine.deadline - driver.now);
  offer(driver, FIRST);
  assert.deepEqual(sentTokens(driver, Kind.LOGIN), [FIRST]);
  assert.ok(driver.machine.error instanceof LoginRefused);
});

test("after a token has ended the client comes back with another", () => {
  const driver = online();
  driver.receive(
    packet(Kind.GOODBYE, 0, { code: Code.AUTH_EXPIRED, reason: "auth_expired", reconnect: true }),
  );
  driver.advance(0);
  offer(driver, SECOND);
  driver.logIn();
  assert.deepEqual(sentTokens(driver, Kind.LOGIN), [FIRST, SECOND]);
});

test("a fresh token is sent before the present one ends, and is what later logins carry", () => {
  const driver = online();
  assert.equal(advanceUntilWanted(driver), 0.8 * LIFETIME_MS);
  offer(driver, SECOND);
  assert.deepEqual(sentTokens(driver, Kind.UPDATE), [SECOND]);
  answer(driver);
  assert.equal(driver.machine.login.token, SECOND);
  assert.equal(driver.results.size, 0, "the program has not asked for it");
  const remainingOfSecond = 2 * LIFETIME_MS - 0.8 * LIFETIME_MS;
  assert.ok(Math.abs(advanceUntilWanted(driver) - 0.8 * remainingOfSecond) < 1);
});

test("those who logged in together do not renew together", () => {
  const driver = fetching();
  driver.chance = 1;
  offer(driver, FIRST);
  driver.logIn();
  assert.ok(Math.abs(advanceUntilWanted(driver) - 0.7 * LIFETIME_MS) < 1);
});

test("a token that does not tell its end is not renewed", () => {
  const driver = online("opaque");
  driver.advance(10 * LIFETIME_MS, true);
  assert.equal(driver.machine.wantsToken, false);
});

test("a server whose clock was set back since it told it is not sent a token each second", () => {
  const [iat, exp] = [SERVER_TIME_S - 50_000, SERVER_TIME_S - 46_400];
  const driver = online(token({ exp, jti: 1 }));
  assert.equal(advanceUntilWanted(driver), MIN_RENEWAL_DELAY_MS);
  offer(driver, token({ iat, exp, jti: 2 }));
  answer(driver);
  assert.ok(Math.abs(advanceUntilWanted(driver) - 0.8 * LIFETIME_MS) < 1);
});

for (const given of [FIRST, new Error("no way there"), ""]) {
  test(`where there is no fresh one it is wanted later: ${String(given).slice(0, 20)}`, () => {
    const driver = online();
    advanceUntilWanted(driver);
    offer(driver, given);
    assert.deepEqual([driver.machine.state, sentTokens(driver, Kind.UPDATE)], ["online", []]);
    assert.equal(advanceUntilWanted(driver), MIN_RENEWAL_DELAY_MS);
  });
}

test("a program that hangs is asked again", () => {
  const driver = online();
  advanceUntilWanted(driver);
  driver.advance(TOKEN_TIMEOUT_MS, true);
  assert.equal(driver.machine.wantsToken, false);
  assert.equal(advanceUntilWanted(driver), MIN_RENEWAL_DELAY_MS);
});

test("a token that was refused is not sent again, and changes nothing", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  answer(driver, { code: Code.AUTH_FAILED, reason: "auth_failed", message: "no" });
  for (const each of [SECOND, THIRD]) {
    advanceUntilWanted(driver);
    offer(driver, each);
  }
  assert.deepEqual(sentTokens(driver, Kind.UPDATE), [SECOND, THIRD]);
  assert.equal(driver.machine.login.token, FIRST);
});

test("a server that is busy is asked when it says", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  answer(driver, { code: Code.BUSY, reason: "busy", message: "", retry_after: 7 });
  assert.equal(advanceUntilWanted(driver), MIN_RENEWAL_DELAY_MS + 7000);
});

test("an update without an answer is repeated", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  const startedAt = driver.now;
  while (!driver.machine.wantsToken) {
    driver.advance(driver.machine.deadline - driver.now);
    const keepalive = driver.keepalives.at(-1);
    driver.receive(packet(Kind.OK, Number(keepalive?.id)));
  }
  assert.equal(driver.now - startedAt, ANSWER_TIMEOUT_MS + MIN_RENEWAL_DELAY_MS);
  assert.equal(driver.results.size, 0);
});

test("a server that checks no tokens is sent no more", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  answer(driver, { code: Code.UNSUPPORTED, reason: "unsupported", message: "" });
  driver.advance(10 * LIFETIME_MS, true);
  assert.equal(driver.machine.wantsToken, false);
});

test("a connection that is lost meanwhile is nobody's answer", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  driver.disconnect();
  assert.equal(driver.results.size, 0);
});

test("what is left is told by the server's clock, or else counted from the token's beginning", () => {
  assert.equal(remainingLifetimeMs(token({ exp: 1060 }), 1_000_500), 59_500);
  assert.equal(remainingLifetimeMs(token({ exp: 1060, iat: 1000 }), null), 60_000);
});

test("a token that cannot be read has no end", () => {
  const unreadable = ["", "secret", "a.b", "a.!.c", "e30.bm8.c2ln"];
  for (const each of [...unreadable, ...[[], {}, 7, null, { exp: null }, { exp: "soon" }].map(token)]) {
    assert.equal(remainingLifetimeMs(each, 0), null, each);
    assert.equal(remainingLifetimeMs(each, null), null, each);
  }
});
