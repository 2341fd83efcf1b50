/** Listeners by name, with the rules of Node's EventEmitter. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Listeners } from "../src/listeners.js";

function fail(error: unknown): void {
  assert.fail(String(error));
}

function created(): { listeners: Listeners<{ first: number; second: number }>; calls: string[]; thrown: unknown[] } {
  return { listeners: new Listeners(), calls: [], thrown: [] };
}

test("listeners are called in the order added, each for its name only", () => {
  const { listeners, calls } = created();
  listeners.add("first", (event) => calls.push(`a${event}`));
  listeners.add("second", () => calls.push("of another name"));
  listeners.add("first", (event) => calls.push(`b${event}`));
  listeners.call("first", 1, fail);
  assert.deepEqual(calls, ["a1", "b1"]);
});

test("a listener added twice is called twice, and removed once", () => {
  const { listeners, calls } = created();
  const listener = (event: number): void => void calls.push(`${event}`);
  listeners.add("first", listener);
  listeners.add("first", listener);
  listeners.call("first", 1, fail);
  listeners.remove("first", listener);
  listeners.call("first", 2, fail);
  assert.deepEqual(calls, ["1", "1", "2"]);
});

test("the removal of an unknown listener removes none", () => {
  const { listeners, calls } = created();
  listeners.add("first", () => calls.push("called"));
  listeners.remove("first", () => undefined);
  listeners.remove("second", () => undefined);
  listeners.call("first", 1, fail);
  assert.deepEqual(calls, ["called"]);
});

test("a listener added for once is called once, even if it leads to another call", () => {
  const { listeners, calls } = created();
  listeners.add(
    "first",
    (event) => {
      calls.push(`${event}`);
      listeners.call("first", event + 1, fail);
    },
    true,
  );
  listeners.call("first", 1, fail);
  listeners.call("first", 3, fail);
  assert.deepEqual(calls, ["1"]);
});

test("what a listener throws stops no other", () => {
  const { listeners, calls, thrown } = created();
  const failure = new Error("a listener's own");
  listeners.add("first", () => {
    throw failure;
  });
  listeners.add("first", () => calls.push("called"));
  listeners.call("first", 1, (error) => thrown.push(error));
  assert.deepEqual([calls, thrown], [["called"], [failure]]);
});

test("a listener that is removed or added during a call counts from the next", () => {
  const { listeners, calls } = created();
  const second = (): void => void calls.push("second");
  listeners.add("first", () => {
    listeners.remove("first", second);
    listeners.add("first", () => calls.push("third"));
  });
  listeners.add("first", second);
  listeners.call("first", 1, fail);
  assert.deepEqual(calls, ["second"]);
});

test("what is no function is refused", () => {
  assert.throws(() => created().listeners.add("first", null as never), TypeError);
});
