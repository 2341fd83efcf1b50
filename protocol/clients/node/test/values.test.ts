/** Equality of values, and the length of texts. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { isLongerThan } from "../src/bytes.js";
import { isEqual, setKey, type Value } from "../src/values.js";

function withProto(value: Value): { [key: string]: Value } {
  const map: { [key: string]: Value } = {};
  setKey(map, "__proto__", value);
  return map;
}

const EQUAL: readonly (readonly [Value, Value])[] = [
  [null, null],
  [1, 1],
  [2n ** 60n, 2n ** 60n],
  ["é", "é"],
  [Uint8Array.of(1, 2), Uint8Array.of(1, 2)],
  [[1, [2]], [1, [2]]],
  [{ a: 1, b: { c: [] } }, { b: { c: [] }, a: 1 }],
  [withProto(1), withProto(1)],
];
const DIFFERENT: readonly (readonly [Value, Value])[] = [
  [null, 0],
  [null, {}],
  [1, "1"],
  [1, 1n],
  [[], {}],
  [[1], Uint8Array.of(1)],
  [Uint8Array.of(1, 2), Uint8Array.of(1, 3)],
  [[1, 2], [2, 1]],
  [{ a: 1 }, { b: 1 }],
  [{ a: 1 }, { a: 1, b: 2 }],
  [{ a: { b: 1 } }, { a: { b: 2 } }],
  [withProto(1), withProto(2)],
  [withProto({}), {}],
];

for (const [pairs, expected] of [[EQUAL, true], [DIFFERENT, false]] as const) {
  for (const [index, [one, other]] of pairs.entries()) {
    test(`values are ${expected ? "equal" : "different"}: pair ${index}`, () => {
      assert.deepEqual([isEqual(one, other), isEqual(other, one)], [expected, expected]);
    });
  }
}

const LENGTHS = [["aaaa", 4, false], ["aaaaa", 4, true], ["éé", 4, false], ["ééa", 4, true], ["€a", 4, false], ["€€", 5, true]] as const;

for (const [text, maxBytes, expected] of LENGTHS) {
  test(`${text} is ${expected ? "" : "not "}longer than ${maxBytes} bytes`, () => {
    assert.equal(isLongerThan(text, maxBytes), expected);
  });
}
