/** What the client has of its own in browsers: the life of a page, and a device that the browser remembers. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Kind, PresenceClient, storedDevice } from "../src/browser/index.js";
import { browserEnvironment } from "../src/browser/environment.js";
import { LOGIN_OK } from "./driver.js";
import { VirtualServer, VirtualTime } from "./virtual.js";

const MINUTE_MS = 60_000;

class PageDocument extends EventTarget {
  visibilityState = "visible";
}

function woken(): { page: { window: EventTarget; document: PageDocument }; count: () => number; stop: () => void } {
  const page = { window: new EventTarget(), document: new PageDocument() };
  let count = 0;
  const stop = browserEnvironment(page).onWake(() => (count += 1));
  return { page, count: () => count, stop };
}

for (const [target, name] of [
  ["window", "online"],
  ["window", "offline"],
  ["window", "pageshow"],
  ["document", "visibilitychange"],
  ["document", "resume"],
] as const) {
  test(`a page wakes by ${name}, until it stops to listen`, () => {
    const { page, count, stop } = woken();
    page[target].dispatchEvent(new Event(name));
    assert.equal(count(), 1);
    stop();
    page[target].dispatchEvent(new Event(name));
    assert.equal(count(), 1);
  });
}

test("a page does not wake as it is hidden", () => {
  const { page, count } = woken();
  page.document.visibilityState = "hidden";
  page.document.dispatchEvent(new Event("visibilitychange"));
  assert.equal(count(), 0);
});

test("a worker wakes as its network comes and goes", () => {
  const window = new EventTarget();
  let count = 0;
  browserEnvironment({ window }).onWake(() => (count += 1));
  window.dispatchEvent(new Event("online"));
  assert.equal(count, 1);
});

test("input is read before what waits for it, and what is prevented does not happen", async () => {
  const { afterInput } = browserEnvironment({ window: new EventTarget() });
  const order: string[] = [];
  afterInput(() => order.push("prevented"))();
  await new Promise<void>((resolve) => {
    afterInput(() => {
      order.push("after input");
      resolve();
    });
    queueMicrotask(() => order.push("input"));
  });
  assert.deepEqual(order, ["input", "after input"]);
});

test("a client listens to its page from connect to its end", async () => {
  const time = new VirtualTime();
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann" }, time);
  assert.equal(time.sleepers.size, 0);
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  assert.equal(time.sleepers.size, 1);
  time.wake();
  assert.equal(server.peer.keepalives, 1);
  client.disconnect();
  assert.equal(time.sleepers.size, 0);
});

test("a page that slept while its connection died makes one connection", async () => {
  const time = new VirtualTime(() => 0.5);
  const server = new VirtualServer();
  const client = new PresenceClient({ connector: server, uid: "ann" }, time);
  const connected = client.connect();
  server.peer.logIn();
  await connected;
  server.peer.answersKeepalives = false;
  for (let each = 0; each < 4; each += 1) {
    time.wake(); // resume, pageshow, visibilitychange and online may all come
  }
  await time.advance(5000);
  assert.equal(client.state, "waiting to return");
  time.wake();
  await time.advance(500);
  assert.deepEqual([server.peers.map(({ state }) => state), client.state], [["closed", "opening"], "connecting"]);
  time.wake();
  server.peer.logIn();
  await client.waitOnline();
  assert.equal(server.peers.length, 2);
});

for (const [requested, sent] of [[undefined, 120], [45_000, 45]] as const) {
  test(`a page that requests ${requested ?? "no time-out"} logs in with ${sent} s`, () => {
    const server = new VirtualServer();
    const client = new PresenceClient({ connector: server, uid: "ann", idleTimeoutMs: requested }, new VirtualTime());
    client.connect().catch(() => undefined);
    const login = server.peer.logIn();
    assert.equal(login.payload["idle_timeout"], sent);
  });
}

/** The timers of a page that has been hidden for five minutes: Chromium lets them run once a minute. */
class PageTime extends VirtualTime {
  hidden = false;

  override after(ms: number, callback: () => void): () => void {
    const hiddenMs = Math.ceil((this.time + ms) / MINUTE_MS) * MINUTE_MS - this.time;
    return super.after(this.hidden ? hiddenMs : ms, callback);
  }
}

test("a page stays online whenever it is hidden", async () => {
  for (let phaseS = 0; phaseS < 60; phaseS += 1) {
    const time = new PageTime(); // the first keepalive follows the login immediately
    time.time = 20 * MINUTE_MS + 1000 * phaseS;
    const server = new VirtualServer();
    const client = new PresenceClient({ connector: server, uid: "ann" }, time);
    const connected = client.connect();
    server.peer.open();
    const { id, payload } = server.peer.take(Kind.LOGIN);
    const idle_timeout = Number(payload["idle_timeout"]);
    server.peer.send({ kind: Kind.OK, id, payload: { ...LOGIN_OK, idle_timeout, keepalive: 0.4 * idle_timeout } });
    await connected;
    let silentSince = time.now();
    time.hidden = true;
    for (let second = 0; second < 300; second += 1) {
      const before = server.peer.keepalives;
      await time.advance(1000);
      silentSince = server.peer.keepalives > before ? time.now() : silentSince;
      assert.ok(time.now() - silentSince < 1000 * idle_timeout, `silent for ${time.now() - silentSince} ms`);
    }
    assert.deepEqual([server.peers.length, client.state], [1, "online"]);
    client.disconnect();
  }
});

test("a page has no TCP", () => {
  const options = { host: "127.0.0.1", port: 7400, uid: "ann" } as never;
  assert.throws(() => new PresenceClient(options, new VirtualTime()), TypeError);
});

function storage(): { kept: Map<string, string>; getItem(key: string): string | null; setItem(key: string, value: string): void } {
  const kept = new Map<string, string>();
  return { kept, getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => void kept.set(key, value) };
}

test("a stored device stays, and differs by storage and key", () => {
  const [mine, other] = [storage(), storage()];
  const id = storedDevice(mine);
  assert.match(id, /^web-[0-9a-f]{32}$/);
  assert.equal(storedDevice(mine), id);
  assert.notEqual(storedDevice(other), id);
  assert.notEqual(storedDevice(mine, "another"), id);
});

test("a storage that refuses gives a device, too", () => {
  const refusing = {
    getItem: () => null,
    setItem: () => {
      throw new Error("QuotaExceededError");
    },
  };
  assert.match(storedDevice(refusing), /^web-/);
});
