/** Rows and the older form of states are the same to a program, in answers and in changes, even mixed. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { encode, Kind, type Packet } from "../src/index.js";
import { Decoder } from "../src/decoder.js";
import { Login } from "../src/login.js";
import { parsePresenceChanges, parseUserStates } from "../src/pushes.js";
import { ROWS } from "./vectors.js";

function received({ kind, id, payload }: Packet): Packet {
  const decoder = new Decoder();
  decoder.feed(encode(kind, id, payload));
  return decoder.next() as Packet;
}

for (const { name, row, uid, state } of ROWS) {
  test(`a row is the same as its state: ${name}`, () => {
    const rows = received({ kind: Kind.OK, id: 1, payload: { states: [row] } });
    const map = received({ kind: Kind.OK, id: 1, payload: { presence: { [uid]: state } } });
    assert.deepEqual(parseUserStates(rows.payload), parseUserStates(map.payload));
  });

  if (state["reason"] !== undefined) {
    test(`a change is the same as a presence packet: ${name}`, () => {
      const change = received({ kind: Kind.CHANGES, id: null, payload: { changes: [row] } });
      const older = received({ kind: Kind.PRESENCE, id: null, payload: { uid, ...state } });
      assert.deepEqual(parsePresenceChanges(change), parsePresenceChanges(older));
    });
  }
}

test("an answer may hold both forms", () => {
  const answer = { presence: { ann: { status: "away" } }, states: ["bob", ["eve", "online"]] };
  const statuses = [...parseUserStates(answer)].map(([uid, { status }]) => [uid, status]);
  assert.deepEqual(statuses, [
    ["ann", "away"],
    ["bob", "offline"],
    ["eve", "online"],
  ]);
});

test("a login says batch if that leaves nothing else out", () => {
  const found = [200, 223, 224, 230].map((metaBytes) => {
    const meta = { n: "m".repeat(metaBytes) };
    const login = new Login({ uid: "ann", device: "phone", token: "t".repeat(740), meta }, false);
    const decoder = new Decoder();
    decoder.feed(login.frame(null));
    const { payload } = decoder.next() as Packet;
    return [payload["batch"], payload["meta"] !== undefined];
  });
  assert.deepEqual(found[0], [true, true]);
  assert.deepEqual(found.at(-2), [undefined, true]);
});
