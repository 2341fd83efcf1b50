/** MessagePack: agreement with a common library, and the differences that the protocol requires. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { decode as stockDecode, encode as stockEncode } from "@msgpack/msgpack";

import { decode, encode, EncodeError, Kind, type Packet, ProtocolError, type Value } from "../src/index.js";
import { Reader } from "../src/reader.js";
import { unboxFloats, WholeFloat } from "../src/values.js";
import { pack } from "../src/writer.js";

function read(bytes: Uint8Array): Value {
  return unboxFloats(new Reader(bytes).readValue(13));
}

function bytes(hex: string): Uint8Array {
  return new Uint8Array(Buffer.from(hex.replaceAll(" ", ""), "hex"));
}

function roundTrip(body: unknown): Value | undefined {
  const packet: Packet = decode(encode(Kind.MESSAGE, 1, { to: "bob", body }).subarray(4));
  return packet.payload["body"];
}

const POWERS = [7, 8, 15, 16, 31, 32].map((bits) => 2 ** bits);
const LIMITS = POWERS.flatMap((limit) => [limit - 1, limit, -limit, -limit - 1]);
const SMALL = [0, 1, -1, 31, -31, -32, -33, 127, 128, 1.5, -0.1, 1e300];
const NUMBERS = [...SMALL, ...LIMITS, 2 ** 53 - 1, -(2 ** 53) + 1];
const SIZES = [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536];

test("values of every type and size agree with a common library", () => {
  const strings = SIZES.flatMap((size) => ["x".repeat(size), "é".repeat(size / 2)]);
  const maps = [0, 1, 15, 16, 300].map((size) =>
    Object.fromEntries(Array.from({ length: size }, (_, index) => [`key ${index}`, index])),
  );
  const lists = SIZES.map((size) => Array.from({ length: size }, () => 0));
  const binaries = SIZES.map((size) => new Uint8Array(size).fill(7));
  for (const value of [...NUMBERS, ...strings, ...maps, ...lists, ...binaries, null, true, false]) {
    const stock = stockEncode(value);
    assert.deepEqual(pack(value), new Uint8Array(stock));
    assert.deepEqual(stockDecode(pack(value)), value);
    assert.deepEqual(read(stock), value);
    assert.equal(pack(new Reader(stock).readValue(13)).length, stock.length);
  }
});

test("integers beyond 2^53 are exact bigints", () => {
  for (const value of [2n ** 53n, 2n ** 64n - 1n, -(2n ** 53n), -(2n ** 63n)]) {
    assert.equal(roundTrip(value), value);
  }
  assert.equal(roundTrip(5n), 5);
});

test("a whole float is a number, but not an integer of the protocol", () => {
  assert.equal(read(bytes("cb 3ff0000000000000")), 1);
  assert.equal(pack(new WholeFloat(1)).length, 9);
  assert.throws(() => decode(bytes("91 cb 4008000000000000")), ProtocolError);
});

test("a byte order mark is part of a string, short or long", () => {
  for (const text of ["\ufeffx", "\ufeff" + "x".repeat(300)]) {
    assert.equal(roundTrip(text), text);
  }
  assert.doesNotThrow(() => encode(Kind.QUERY, 1, { uids: ["a\ufeffb"] })); // it is not white space
});

test("the key __proto__ is an ordinary key and changes no prototype", () => {
  const evil = JSON.parse('{"__proto__": {"admin": true}}') as Value;
  const body = roundTrip(evil) as Record<string, unknown>;
  assert.deepEqual(Object.keys(body), ["__proto__"]);
  assert.equal(body["admin"], undefined);
  assert.equal(Object.getPrototypeOf(body), Object.prototype);
});

test("the last of duplicate keys wins", () => {
  assert.deepEqual(read(bytes("83 a161 01 a162 02 a161 03")), { a: 3, b: 2 });
});

test("binary is a copy that does not retain its frame", () => {
  const frame = bytes("c4 02 00ff");
  const binary = read(frame) as Uint8Array;
  frame.fill(1);
  assert.deepEqual([binary, binary.buffer.byteLength], [bytes("00ff"), 2]);
});

test("claimed sizes allocate no memory", () => {
  const before = process.memoryUsage().heapUsed;
  for (const claim of [
    ...["dd", "df", "db", "c6"].map((tag) => `${tag} ffffffff`),
    "dd 00003000".repeat(3000),
  ]) {
    assert.throws(() => new Reader(bytes(claim)).readValue(13), ProtocolError);
  }
  assert.ok(process.memoryUsage().heapUsed - before < 10_000_000);
});

const REFUSED: Record<string, unknown> = {
  "a Date": new Date(0),
  "a Map": new Map([["a", 1]]),
  "a Set": new Set([1]),
  "a view other than bytes": new Float64Array(1),
  "a function": () => 1,
  "a symbol": Symbol("x"),
  "undefined in a list": [undefined],
  NaN: NaN,
  "an infinity": -Infinity,
  "an integer of 65 bits": 2n ** 64n,
  "a negative integer of 65 bits": -(2n ** 63n) - 1n,
  "half a surrogate pair": "\ud83d",
  "half a surrogate pair in a key": { "\ude00": 1 },
  "a cycle": (() => {
    const cycle: unknown[] = [];
    cycle.push(cycle);
    return cycle;
  })(),
};

for (const [name, body] of Object.entries(REFUSED)) {
  test(`cannot be encoded: ${name}`, () => {
    assert.throws(() => roundTrip(body), EncodeError);
  });
}

test("keys with the value undefined are left out", () => {
  assert.deepEqual(roundTrip({ a: undefined, b: 1 }), { b: 1 });
});
