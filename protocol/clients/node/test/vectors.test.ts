/** Every vector of the protocol, as SPEC.md asks of a client in any language. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Decoder, encode, type Packet, ProtocolError } from "../src/index.js";
import { BAD, type Bad, GOOD, type Good, LIMITS } from "./vectors.js";

function decodeAll(bytes: Uint8Array, limitBytes: number, pieceBytes = bytes.length): Packet[] {
  const decoder = new Decoder(limitBytes);
  const packets: Packet[] = [];
  for (let offset = 0; offset < bytes.length; offset += pieceBytes) {
    decoder.feed(bytes.subarray(offset, offset + pieceBytes));
    for (let packet = decoder.next(); packet; packet = decoder.next()) {
      packets.push(packet);
    }
  }
  return packets;
}

function assertRejected(vector: Bad, pieceBytes?: number): void {
  assert.throws(
    () => decodeAll(vector.frame, vector.limitBytes, pieceBytes),
    (error) => {
      assert.ok(error instanceof ProtocolError, String(error));
      assert.deepEqual([error.code, error.kind, error.id], [vector.code, vector.kind, vector.id]);
      return true;
    },
    vector.name,
  );
}

for (const vector of GOOD) {
  test(`good: ${vector.name}`, () => {
    assert.deepEqual(decodeAll(vector.frame, vector.limitBytes), [vector.packet]);
  });

  test(`good, in pieces: ${vector.name}`, () => {
    for (const pieceBytes of vector.frame.length <= 100 ? [1, 2, 3, 5, 7] : [1, 4093]) {
      assert.deepEqual(
        decodeAll(vector.frame, vector.limitBytes, pieceBytes),
        [vector.packet],
        `${pieceBytes}`,
      );
    }
  });

  test(`good, written by this client: ${vector.name}`, () => {
    const { kind, id, payload } = vector.packet;
    assert.deepEqual(decodeAll(encode(kind, id, payload), vector.limitBytes), [vector.packet]);
  });
}

for (const vector of BAD) {
  test(`bad: ${vector.name}`, () => {
    assertRejected(vector);
  });

  test(`bad, byte by byte: ${vector.name}`, () => {
    assertRejected(vector, 1);
  });
}

test("short good vectors survive being cut at every place", () => {
  for (const { frame, limitBytes, packet } of GOOD.filter((each) => each.frame.length <= 100)) {
    for (let cut = 1; cut < frame.length; cut += 1) {
      const decoder = new Decoder(limitBytes);
      decoder.feed(frame.subarray(0, cut));
      assert.equal(decoder.next(), null);
      decoder.feed(frame.subarray(cut));
      assert.deepEqual(decoder.next(), packet);
    }
  }
});

test("all good vectors of a limit decode one behind the other, in one stream cut anywhere", () => {
  for (const limitBytes of Object.values(LIMITS)) {
    const those: Good[] = GOOD.filter((vector) => vector.limitBytes === limitBytes);
    const stream = Buffer.concat(those.map((vector) => vector.frame));
    for (const pieceBytes of [1, 7, 1000, 65_536, stream.length]) {
      assert.deepEqual(
        decodeAll(stream, limitBytes, pieceBytes),
        those.map((vector) => vector.packet),
      );
    }
  }
});

test("all vectors were there", () => {
  console.log(`vectors: ${GOOD.length} good and ${BAD.length} bad`);
  assert.ok(GOOD.length >= 60 && BAD.length >= 60);
});
