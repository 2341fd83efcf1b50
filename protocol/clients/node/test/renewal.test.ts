/** Tokens from a token function: before each login, and before a token expires. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, Kind, LoginRefused, NoToken, type Packet, type ValueMap } from "../src/index.js";
import { CONNECT_TIMEOUT_MS } from "../src/machine.js";
import { ANSWER_TIMEOUT_MS, MIN_RENEWAL_DELAY_MS, TOKEN_TIMEOUT_MS } from "../src/login-token.js";
import { remainingLifetimeMs } from "../src/tokens.js";
import { ClientDriver, LOGIN_OK, packet, SERVER_TIME_S, token } from "./driver.js";

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

/** Answers the last update, with `error` if given. */
function answer(driver: ClientDriver, error: ValueMap | null = null): void {
  const last = driver.sent.filter(({ kind }) => kind === Kind.UPDATE).at(-1) as Packet;
  driver.receive(packet(error ? Kind.ERROR : Kind.OK, Number(last.id), error ?? {}));
}

/** Advances the clock until a token is wanted; returns how long that took. */
function advanceUntilWanted(driver: ClientDriver): number {
  const startedAt = driver.now;
  while (!driver.machine.wantsToken) {
    assert.equal(driver.machine.state, "online");
    assert.ok(driver.now - startedAt < 10 * LIFETIME_MS);
    driver.advance(Math.max(0, driver.machine.deadline - driver.now), true);
  }
  return driver.now - startedAt;
}

test("a token is fetched before connecting, and needs no uid", () => {
  const driver = fetching();
  assert.deepEqual([driver.machine.state, driver.machine.wantsToken], ["fetching a token", true]);
  driver.advance(TOKEN_TIMEOUT_MS - 1);
  offer(driver, FIRST);
  driver.advance(CONNECT_TIMEOUT_MS - 1);
  assert.deepEqual([driver.machine.state, driver.machine.wantsToken], ["connecting", false]);
  driver.establish();
  assert.deepEqual(driver.sent[0]?.payload, { token: FIRST, v: 1, confirms: true, batch: true });
});

for (const given of [new Error("no way there"), "", "x".repeat(800), undefined, null, 7]) {
  test(`an invalid token is a failed attempt: ${String(given).slice(0, 20)}`, () => {
    const driver = fetching();
    offer(driver, given);
    const [push] = driver.pushes;
    assert.equal(push?.type === "disconnected" && push.reason, "no_token");
    driver.advance(1000);
    assert.ok(driver.machine.wantsToken);
  });
}

test("a token call that times out is a failed attempt, and a late token is ignored", () => {
  const driver = fetching();
  driver.chance = 1;
  driver.advance(TOKEN_TIMEOUT_MS);
  offer(driver, FIRST);
  assert.equal(driver.machine.state, "waiting to return");
});

test("a failed token call ends a client that is not persistent", () => {
  const driver = fetching({ persistent: false });
  const failure = new Error("no way there");
  offer(driver, failure);
  assert.ok(driver.machine.error instanceof NoToken);
  assert.equal(driver.machine.error.cause, failure);
});

for (const persistent of [true, false]) {
  test(`after a refused token one other token is tried, persistent: ${persistent}`, () => {
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

test("a token function that returns a refused token is called again after a pause", () => {
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
  assert.equal(driver.machine.state, "waiting to return");
  driver.advance(driver.machine.deadline - driver.now);
  offer(driver, SECOND);
  driver.logIn();
});

for (const fails of ["no connection", "lost before its answer", "refused for now"] as const) {
  test(`a new token after a refused one is tried until the server decides: ${fails}`, () => {
    const driver = fetching();
    offer(driver, FIRST);
    driver.establish();
    refuse(driver, 1);
    for (let attempt = 0; attempt < 3; attempt += 1) {
      driver.advance(driver.machine.deadline - driver.now);
      offer(driver, SECOND); // of which the server has seen nothing, or decided nothing
      if (fails !== "no connection") {
        driver.establish();
      }
      if (fails === "refused for now") {
        driver.receive(packet(Kind.ERROR, 1, { code: Code.BUSY, reason: "busy", message: "" }));
      } else {
        driver.disconnect();
      }
    }
    driver.advance(driver.machine.deadline - driver.now);
    offer(driver, SECOND);
    driver.logIn();
  });
}

test("a token refused in an update is not sent at the next login", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  answer(driver, { code: Code.AUTH_FAILED, reason: "auth_failed", message: "no" });
  driver.disconnect();
  const states = [SECOND, THIRD].map((each) => {
    driver.advance(driver.machine.deadline - driver.now);
    offer(driver, each);
    return driver.machine.state;
  });
  assert.deepEqual(states, ["waiting to return", "connecting"]);
});

test("a token refused at the login is not sent in an update", () => {
  const driver = fetching();
  for (const each of [FIRST, SECOND]) {
    offer(driver, each);
    driver.establish();
    if (each === FIRST) {
      refuse(driver, 1);
      driver.advance(driver.machine.deadline - driver.now);
    }
  }
  driver.receive(packet(Kind.OK, 1, LOGIN_OK));
  advanceUntilWanted(driver);
  offer(driver, FIRST);
  assert.deepEqual(sentTokens(driver, Kind.UPDATE), []);
});

test("a token that the program sends itself is renewed in its time", () => {
  const driver = online();
  driver.machine.granted({ token: SECOND }, driver.now);
  assert.ok(Math.abs(advanceUntilWanted(driver) - 0.8 * 2 * LIFETIME_MS) < 1);
});

test("no token is sent after a logout", () => {
  const driver = online();
  advanceUntilWanted(driver);
  driver.machine.logOut(undefined, driver.now);
  offer(driver, SECOND);
  assert.deepEqual(sentTokens(driver, Kind.UPDATE), []);
});

test("returning the refused token ends a client that is not persistent", () => {
  const driver = fetching({ persistent: false });
  offer(driver, FIRST);
  driver.establish();
  refuse(driver, 1);
  driver.advance(driver.machine.deadline - driver.now);
  offer(driver, FIRST);
  assert.deepEqual(sentTokens(driver, Kind.LOGIN), [FIRST]);
  assert.ok(driver.machine.error instanceof LoginRefused);
});

test("the client reconnects with a new token after the old one expired", () => {
  const driver = online();
  driver.receive(
    packet(Kind.GOODBYE, 0, { code: Code.AUTH_EXPIRED, reason: "auth_expired", reconnect: true }),
  );
  driver.advance(0);
  offer(driver, SECOND);
  driver.logIn();
  assert.deepEqual(sentTokens(driver, Kind.LOGIN), [FIRST, SECOND]);
});

test("a new token is sent before the old one expires, and later logins carry it", () => {
  const driver = online();
  assert.equal(advanceUntilWanted(driver), 0.8 * LIFETIME_MS);
  offer(driver, SECOND);
  assert.deepEqual(sentTokens(driver, Kind.UPDATE), [SECOND]);
  answer(driver);
  assert.equal(driver.machine.login.token, SECOND);
  assert.equal(driver.results.size, 0, "not a request of the program");
  const remainingOfSecond = 2 * LIFETIME_MS - 0.8 * LIFETIME_MS;
  assert.ok(Math.abs(advanceUntilWanted(driver) - 0.8 * remainingOfSecond) < 1);
});

test("clients that logged in together do not renew together", () => {
  const driver = fetching();
  driver.chance = 1;
  offer(driver, FIRST);
  driver.logIn();
  assert.ok(Math.abs(advanceUntilWanted(driver) - 0.7 * LIFETIME_MS) < 1);
});

test("a token without a readable expiry is not renewed", () => {
  const driver = online("opaque");
  driver.advance(10 * LIFETIME_MS, true);
  assert.equal(driver.machine.wantsToken, false);
});

test("a server whose clock was set back is not sent a token every second", () => {
  const [iat, exp] = [SERVER_TIME_S - 50_000, SERVER_TIME_S - 46_400];
  const driver = online(token({ exp, jti: 1 }));
  assert.equal(advanceUntilWanted(driver), MIN_RENEWAL_DELAY_MS);
  offer(driver, token({ iat, exp, jti: 2 }));
  answer(driver);
  assert.ok(Math.abs(advanceUntilWanted(driver) - 0.8 * LIFETIME_MS) < 1);
});

for (const given of [FIRST, new Error("no way there"), ""]) {
  test(`without a new token the function is called again later: ${String(given).slice(0, 20)}`, () => {
    const driver = online();
    advanceUntilWanted(driver);
    offer(driver, given);
    assert.deepEqual([driver.machine.state, sentTokens(driver, Kind.UPDATE)], ["online", []]);
    assert.equal(advanceUntilWanted(driver), MIN_RENEWAL_DELAY_MS);
  });
}

test("a token function that hangs is called again", () => {
  const driver = online();
  advanceUntilWanted(driver);
  driver.advance(TOKEN_TIMEOUT_MS, true);
  assert.equal(driver.machine.wantsToken, false);
  assert.equal(advanceUntilWanted(driver), MIN_RENEWAL_DELAY_MS);
});

test("a refused token is not sent again, and the login keeps the old one", () => {
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

test("the retryAfterMs of a busy server is respected", () => {
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

test("a server that checks no tokens is sent no further ones", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  answer(driver, { code: Code.UNSUPPORTED, reason: "unsupported", message: "" });
  driver.advance(10 * LIFETIME_MS, true);
  assert.equal(driver.machine.wantsToken, false);
});

test("a connection lost during a renewal reports no result", () => {
  const driver = online();
  advanceUntilWanted(driver);
  offer(driver, SECOND);
  driver.disconnect();
  assert.equal(driver.results.size, 0);
});

test("the remaining lifetime uses the server's clock, or the token's iat", () => {
  assert.equal(remainingLifetimeMs(token({ exp: 1060 }), 1_000_500), 59_500);
  assert.equal(remainingLifetimeMs(token({ exp: 1060, iat: 1000 }), null), 60_000);
});

test("an unreadable token has no expiry", () => {
  const unreadable = ["", "secret", "a.b", "a.!.c", "e30.bm8.c2ln"];
  for (const each of [...unreadable, ...[[], {}, 7, null, { exp: null }, { exp: "soon" }].map(token)]) {
    assert.equal(remainingLifetimeMs(each, 0), null, each);
    assert.equal(remainingLifetimeMs(each, null), null, each);
  }
});
