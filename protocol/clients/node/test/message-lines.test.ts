/** The order of messages to one user, some of which are sent again. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Code,
  ConnectionLost,
  Kind,
  NotConnected,
  RecipientDisconnected,
  RequestTimeout,
} from "../src/index.js";
import { STEADY_MS } from "../src/message-lines.js";
import { MESSAGE_RETRY_INTERVAL_MS } from "../src/session.js";
import { ClientDriver, packet } from "./driver.js";

function online(): ClientDriver {
  const driver = new ClientDriver();
  driver.logIn();
  return driver;
}

/** A client that has just delivered a message to bob, so that no further one goes alone. */
function steady(): ClientDriver {
  const driver = online();
  deliver(driver, driver.sendMessage("bob", 0));
  driver.takeMessages();
  return driver;
}

type Ids = [number, number, number, ...number[]];

/** Sends messages to bob; returns their ids, at least three. */
function sendTogether(driver: ClientDriver, ...bodies: Ids): Ids {
  return bodies.map((body) => driver.sendMessage("bob", body)) as Ids;
}

function deliver(driver: ClientDriver, id: number): void {
  driver.receive(packet(Kind.OK, id, { delivered: 1 }));
}

function fail(driver: ClientDriver, id: number, code: number): void {
  driver.receive(packet(Kind.ERROR, id, { code, reason: "x", message: "no" }));
}

test("a message is resent while its recipient may return", () => {
  const driver = online();
  driver.takeMessages();
  const id = driver.sendMessage("bob", 1);
  driver.refuseAsDisconnected(id);
  driver.advance(MESSAGE_RETRY_INTERVAL_MS - 1);
  assert.deepEqual(driver.takeMessages(), [id, 1]);
  driver.advance(1);
  assert.deepEqual(driver.takeMessages(), [id, 1]);
  driver.receive(packet(Kind.OK, id, { delivered: 1 }));
  assert.deepEqual(driver.results.get(id), { delivered: 1 });
});

test("no message waits for the answer to a confirmed one", () => {
  const driver = online();
  driver.takeMessages();
  const first = driver.sendMessage("bob", 1, 5000);
  const confirmed = driver.request(Kind.MESSAGE, { to: "bob", body: 2, confirm: 30 }, 40_000);
  const [third, fourth] = [driver.sendMessage("bob", 3), driver.sendMessage("bob", 4)];
  assert.deepEqual(driver.takeMessages(), [first, 1]);
  driver.advance(5000);
  // Without an answer to the first, the third goes alone.
  assert.deepEqual(driver.takeMessages(), [confirmed, 2, third, 3]);
  deliver(driver, third);
  assert.deepEqual(driver.takeMessages(), [fourth, 4]);
});

test("a message in flight to a recipient that returns is not overtaken", () => {
  const driver = online();
  driver.takeMessages();
  const [one, two, three] = sendTogether(driver, 1, 2, 3);
  driver.refuseAsDisconnected(one); // and then bob returns
  driver.advance(MESSAGE_RETRY_INTERVAL_MS);
  assert.deepEqual(driver.takeMessages(), [one, 1, one, 1]);
  deliver(driver, one);
  assert.deepEqual(driver.takeMessages(), [two, 2, three, 3]);
});

test("messages wait only for those before them to the same user", () => {
  const driver = online();
  driver.takeMessages();
  const ids = [driver.sendMessage("bob", 1), driver.sendMessage("bob", 2), driver.sendMessage("eve", 3)];
  assert.deepEqual(driver.takeMessages(), [ids[0], 1, ids[2], 3]);
});

test("messages that are not retried wait for none of their kind", () => {
  const driver = online();
  driver.takeMessages();
  const send = (body: number): number => driver.request(Kind.MESSAGE, { to: "bob", body });
  const ids = [
    send(1),
    send(2),
    driver.sendMessage("bob", 3),
    send(4),
    send(5),
    driver.sendMessage("bob", 6),
  ];
  assert.deepEqual(driver.takeMessages(), [ids[0], 1, ids[1], 2, ids[2], 3]);
  driver.receive(packet(Kind.OK, ids[2] as number, { delivered: 1 }));
  assert.deepEqual(driver.takeMessages(), [ids[3], 4, ids[4], 5, ids[5], 6]);
});

test("a message that waited for another is certainly unsent when the connection is lost", () => {
  const driver = online();
  const [sent, waiting] = [driver.sendMessage("bob", 1), driver.sendMessage("bob", 2)];
  driver.disconnect();
  assert.ok(driver.results.get(sent) instanceof ConnectionLost);
  assert.ok(driver.results.get(waiting) instanceof NotConnected);
});

test("a message waits no longer than its own time for one without an answer", () => {
  const driver = online();
  driver.takeMessages();
  const waiting = [
    driver.sendMessage("bob", 1, 2500),
    driver.sendMessage("bob", 2, 2000),
    driver.sendMessage("bob", 3),
  ];
  driver.advance(2000);
  assert.ok(driver.results.get(waiting[1] as number) instanceof RequestTimeout);
  driver.advance(500);
  assert.deepEqual(driver.takeMessages(), [waiting[0], 1, waiting[2], 3]);
});

test("a message that nobody waits for any more is not sent", () => {
  const driver = online();
  driver.takeMessages();
  const ids = [1, 2, 3].map((body) => driver.sendMessage("bob", body));
  [ids[1], ids[0]].forEach((id) => driver.apply(driver.machine.abandon(id as number, driver.now)));
  assert.deepEqual(driver.takeMessages(), [ids[0], 1, ids[2], 3]);
});

test("a message fails if its recipient does not return in time", () => {
  const driver = online();
  const id = driver.sendMessage("bob", 1, 2500);
  driver.refuseAsDisconnected(id);
  const lost = driver.sendMessage("eve", 1);
  driver.refuseAsDisconnected(lost);
  for (let turn = 0; turn < 30; turn += 1) {
    driver.advance(100);
    if (driver.takeMessages().includes(id)) {
      driver.refuseAsDisconnected(id, 60);
    }
  }
  assert.ok(driver.results.get(id) instanceof RecipientDisconnected);
});

test("a message waiting for a resend fails as not delivered when the connection ends", () => {
  const driver = online();
  const id = driver.sendMessage("bob", 1);
  driver.refuseAsDisconnected(id);
  driver.disconnect();
  assert.ok(driver.results.get(id) instanceof RecipientDisconnected);
});

test("after the first, messages to a user are sent together", () => {
  const driver = online();
  driver.takeMessages();
  const ids = sendTogether(driver, 1, 2, 3);
  deliver(driver, ids[0]);
  assert.deepEqual(driver.takeMessages(), [ids[0], 1, ids[1], 2, ids[2], 3]);
  const more = sendTogether(driver, 4, 5, 6);
  assert.deepEqual(driver.takeMessages(), [more[0], 4, more[1], 5, more[2], 6]);
});

for (const code of [Code.RECIPIENT_OFFLINE, Code.SERVER_ERROR, Code.BUSY]) {
  test(`an answer other than that the recipient may return releases those that wait: ${code}`, () => {
    const driver = online();
    driver.takeMessages();
    const ids = sendTogether(driver, 1, 2, 3);
    fail(driver, ids[0], code);
    assert.deepEqual(driver.takeMessages(), [ids[0], 1, ids[1], 2, ids[2], 3]);
  });
}

test("a while after a delivery the first message goes alone again", () => {
  const driver = steady();
  driver.advance(STEADY_MS, true);
  driver.takeMessages();
  const [first] = sendTogether(driver, 1, 2, 3);
  assert.deepEqual(driver.takeMessages(), [first, 1]);
});

test("until then it does not", () => {
  const driver = steady();
  driver.advance(STEADY_MS - 1, true);
  driver.takeMessages();
  const ids = sendTogether(driver, 1, 2, 3);
  assert.deepEqual(driver.takeMessages(), [ids[0], 1, ids[1], 2, ids[2], 3]);
});

test("a refused message that a later one has overtaken fails, and is not sent again", () => {
  const driver = steady();
  const [second, third, fourth] = sendTogether(driver, 2, 3, 4);
  driver.refuseAsDisconnected(second);
  driver.refuseAsDisconnected(fourth);
  assert.ok(!driver.results.has(second), "the third is not answered yet");
  deliver(driver, third);
  assert.ok(driver.results.get(second) instanceof RecipientDisconnected);
  driver.takeMessages();
  driver.advance(MESSAGE_RETRY_INTERVAL_MS, true);
  assert.deepEqual(driver.takeMessages(), [fourth, 4]);
});

test("a message that goes alone behind those in flight overtakes, too", () => {
  const driver = steady();
  const first = driver.sendMessage("bob", 1);
  driver.advance(STEADY_MS, true);
  const [second, third, fourth] = sendTogether(driver, 2, 3, 4);
  driver.takeMessages();
  driver.refuseAsDisconnected(first);
  deliver(driver, second);
  assert.ok(driver.results.get(first) instanceof RecipientDisconnected);
  assert.deepEqual(driver.takeMessages(), [third, 3, fourth, 4]);
});

test("a message that waits is sent as it was given", () => {
  const driver = online();
  const body = { text: "before" };
  const first = driver.sendMessage("bob", 1);
  driver.machine.request(Kind.MESSAGE, { to: "bob", body }, 10_000, driver.now, true);
  body.text = "after";
  deliver(driver, first);
  assert.deepEqual(driver.sent.at(-1)?.payload["body"], { text: "before" });
});

test("a message that is refused after a later one was delivered fails", () => {
  const driver = steady();
  const [second, third] = sendTogether(driver, 2, 3, 4);
  deliver(driver, third);
  driver.refuseAsDisconnected(second);
  assert.ok(driver.results.get(second) instanceof RecipientDisconnected);
});

test("a refused message is sent again only when none is in flight", () => {
  const driver = steady();
  const [second, third, fourth] = sendTogether(driver, 2, 3, 4);
  driver.takeMessages();
  driver.refuseAsDisconnected(second);
  driver.refuseAsDisconnected(third);
  driver.advance(2 * MESSAGE_RETRY_INTERVAL_MS, true);
  assert.deepEqual(driver.takeMessages(), []);
  driver.refuseAsDisconnected(fourth);
  driver.advance(MESSAGE_RETRY_INTERVAL_MS);
  assert.deepEqual(driver.takeMessages(), [second, 2]);
});

for (const [how, end] of [
  ["is abandoned", (driver, id) => driver.apply(driver.machine.abandon(id, driver.now))],
  ["times out", (driver) => driver.advance(2000, true)],
  ["meets a failure of the server", (driver, id) => fail(driver, id, Code.SERVER_ERROR)],
] as const satisfies readonly (readonly [string, (driver: ClientDriver, id: number) => void])[]) {
  test(`a later message that ${how} has perhaps been delivered, and overtakes, too`, () => {
    const driver = steady();
    const refused = driver.sendMessage("bob", 1);
    const unclear = driver.sendMessage("bob", 2, 2000);
    driver.refuseAsDisconnected(refused);
    driver.takeMessages();
    end(driver, unclear);
    assert.ok(driver.results.get(refused) instanceof RecipientDisconnected);
    driver.advance(MESSAGE_RETRY_INTERVAL_MS, true);
    assert.deepEqual(driver.takeMessages(), []);
  });
}

test("a refused message whose pause is over is sent after that before it has failed", () => {
  const driver = steady();
  const [first, second, third] = sendTogether(driver, 1, 2, 3);
  driver.takeMessages();
  driver.refuseAsDisconnected(first);
  driver.refuseAsDisconnected(second);
  driver.advance(MESSAGE_RETRY_INTERVAL_MS);
  fail(driver, third, Code.BUSY);
  assert.deepEqual(driver.takeMessages(), [first, 1]);
  fail(driver, first, Code.BUSY);
  assert.deepEqual(driver.takeMessages(), [second, 2]);
});

test("a refused message goes on as that before it times out in the same turn", () => {
  const driver = steady();
  const first = driver.sendMessage("bob", 1, MESSAGE_RETRY_INTERVAL_MS);
  const second = driver.sendMessage("bob", 2);
  driver.advance(100);
  driver.refuseAsDisconnected(first, 0);
  driver.refuseAsDisconnected(second);
  driver.takeMessages();
  driver.now += 2 * MESSAGE_RETRY_INTERVAL_MS; // the program was busy
  driver.apply(driver.machine.tick(driver.now));
  assert.ok(driver.results.get(first) instanceof RecipientDisconnected);
  assert.deepEqual(driver.takeMessages(), [second, 2]);
});
