// Tests of the page's modules that need no browser; test_page_parts.py runs them in a copy of its directory.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { append } from "./charts.js";
import { Ring } from "./ring.js";
import { EventParser, LiveStream, serverUrl } from "./stream.js";
import { troubledFirst } from "./tables.js";
import { bytes, count, duration, describeReason, escapeInvisible, percent } from "./text.js";

const wheel = (sizes, next = 0.5, later = 0) => ({ slot_s: 0.5, next_s: next, sizes, later });
const full = (ring, now) => ring.segments(now, false).filter(({ size }) => size > 0);

test("events are complete, however the text is cut", () => {
  const text = 'event: hello\ndata: {"a": 1}\n\n: heartbeat\n\nid: 7\nevent: sample\ndata: x\ndata: y\n\n';
  const whole = [
    { name: "hello", data: '{"a": 1}' },
    { name: "sample", data: "x\ny" },
  ];
  for (let cut = 0; cut <= text.length; cut += 1) {
    const parser = new EventParser();
    assert.deepEqual([...parser.feed(text.slice(0, cut)), ...parser.feed(text.slice(cut))], whole);
  }
  assert.deepEqual(new EventParser().feed(text.replaceAll("\n", "\r\n")), whole);
});

test("an event without its end is not returned", () => {
  assert.deepEqual(new EventParser().feed("event: sample\ndata: {}\n"), []);
});

test("a forgotten page whose token is refused asks less and less, and immediately with a new token", async () => {
  let [now, asked] = [0, []];
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(globalThis, "fetch", async () => (asked.push(now), new Response(null, { status: 401 })));
  globalThis.document = { baseURI: "http://127.0.0.1/" };
  const pass = async (seconds) => {
    for (let i = 0; i < seconds; i += 1) {
      mock.timers.tick(1000);
      now += 1;
      await new Promise((done) => setImmediate(done));
    }
  };
  const stream = new LiveStream(() => {}, () => {});
  stream.run();
  await pass(3600);
  const within = (since) => asked.filter((at) => at >= since && at < since + 300).length;
  assert.ok(within(0) <= 7, `${asked}`);
  assert.ok(asked.every((at) => within(at) <= 7), `${asked}`);
  assert.ok(asked.at(-1) > 3000, "it does not give up");
  const before = asked.length;
  stream.useToken("another");
  await pass(1);
  assert.equal(asked.length, before + 1);
  mock.reset();
  mock.timers.reset();
});

test("requests have their parameters, and nothing of the address of the page", () => {
  globalThis.document = { baseURI: "http://ann:secret@127.0.0.1:7480/?x=1#user=bob" };
  assert.equal(String(serverUrl("v1/explain?uid=.")), "http://127.0.0.1:7480/v1/explain?uid=.");
});

test("a slot comes nearer as time passes, and is empty behind the hand", () => {
  const ring = new Ring();
  ring.update(wheel([0, 0, 5, 0]), 100);
  assert.equal(full(ring, 100)[0].to, 1.5);
  assert.equal(full(ring, 100.7)[0].to.toFixed(3), "0.800");
  assert.deepEqual(full(ring, 101.6), []);
});

test("a slot is the same one in the next sample, at another moment of the tick", () => {
  const ring = new Ring();
  ring.update(wheel([0, 0, 5, 0], 0.5), 100);
  const [before] = full(ring, 100);
  ring.update(wheel([7, 0, 0, 0], 0.46), 101.05); // 10 ms off
  const [after] = full(ring, 101.05);
  assert.equal(after.key, before.key);
  assert.equal(after.size, 7);
  assert.ok(Math.abs(after.to - 0.46) < 0.02);
});

test("a size changes gradually from the previous one", () => {
  const ring = new Ring();
  ring.update(wheel([0, 0, 0, 10]), 100);
  ring.segments(100.9);
  ring.update(wheel([0, 20, 0, 0]), 101);
  const sizes = [101, 101.1, 101.3].map((now) => ring.segments(now).find(({ size }) => size > 0).size);
  assert.equal(sizes[0], 10);
  assert.ok(sizes[1] > 10 && sizes[1] < 20);
  assert.equal(sizes[2], 20);
});

test("more slots than can be distinguished are drawn in groups, and no session is lost", () => {
  const ring = new Ring();
  ring.update(wheel(Array(603).fill(1), 0.5, 4), 100);
  const segments = ring.segments(100, false);
  assert.ok(segments.length <= 121);
  assert.equal(segments.reduce((sum, { size }) => sum + size, 0), 603);
  assert.equal(ring.total, 607);
});

test("a session that is due in some seconds is found in a slot", () => {
  const ring = new Ring();
  ring.update(wheel([0, 0, 5, 0]), 100);
  assert.equal(ring.segmentAt(1.2, 100).size, 5);
  assert.equal(ring.segmentAt(99, 100), null);
});

test("numbers are formatted for people", () => {
  assert.equal(count(1234567), "1,234,567");
  assert.equal(count(null), "–");
  assert.deepEqual([3.21, 65, 3720, 200000].map((s) => duration(s, 1)), ["3.2 s", "1 min 05 s", "1 h 02 min", "2 d 7 h"]);
  assert.deepEqual([512, 40_000_000].map(bytes), ["512 B", "38.1 MiB"]);
  assert.deepEqual([1, 0.99999, 0.333, 0].map(percent), ["100 %", "> 99.9 %", "33 %", "0 %"]);
});

test("characters that would hide or reverse text are replaced by their codes", () => {
  assert.equal(escapeInvisible("a\u202eb\u200bc日本"), "a\\u{202e}b\\u{200b}c日本");
  assert.equal(describeReason("\u202ex"), "\\u{202e}x");
});

test("nodes in trouble are above those that are ready", () => {
  const nodes = [
    { node: "a", status: "alive", readiness: "ready" },
    { node: "b", status: "alive", readiness: "fenced" },
    { node: "c", status: "alive", readiness: "ready" },
    { node: "d", status: "dead", readiness: "ready" },
  ];
  assert.deepEqual(
    troubledFirst(nodes).map(({ node }) => node),
    ["b", "d", "a", "c"],
  );
});

test("after the server's clock was set back a chart goes on from there", () => {
  const history = [];
  const range = { points: 600, stepMs: 1000 };
  for (const at of [1000, 2000, 3000, 4000]) append(history, [at, 7], range);
  append(history, [2500, 8], range);
  append(history, [3500, 9], range);
  assert.deepEqual(history, [
    [1000, 7],
    [2000, 7],
    [2500, 8],
    [3500, 9],
  ]);
});
