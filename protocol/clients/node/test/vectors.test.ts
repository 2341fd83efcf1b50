/** The test vectors of the protocol. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Decoder, encode, type Packet, ProtocolError } from "../src/index.js";
import { BAD, type Bad, GOOD, type Good, LIMITS } from "./vectors.js";

function decodeAll(bytes: Uint8Array, limitBytes: number, chunkBytes = bytes.length): Packet[] {
  const decoder = new Decoder(limitBytes);
  const packets: Packet[] = [];
  for (let offset = 0; offset < bytes.length; offset += chunkBytes) {
    decoder.feed(bytes.subarray(offset, offset + chunkBytes));
    for (let packet = decoder.next(); packet; packet = decoder.next()) {
      packets.push(packet);
    }
  }
  return packets;
}

function assertRejected(vector: Bad, chunkBytes?: number): void {
  assert.throws(
    () => decodeAll(vector.frame, vector.limitBytes, chunkBytes),
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

  test(`good, in chunks: ${vector.name}`, () => {
    for (const chunkBytes of vector.frame.length <= 100 ? [1, 2, 3, 5, 7] : [1, 4093]) {
      assert.deepEqual(
        decodeAll(vector.frame, vector.limitBytes, chunkBytes),
        [vector.packet],
        `${chunkBytes}`,
      );
    }
  });

  test(`good, encoded by this client: ${vector.name}`, () => {
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

test("short good vectors decode when split at every offset", () => {
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

test("all good vectors of a limit decode as one stream, in chunks of any size", () => {
  for (const limitBytes of Object.values(LIMITS)) {
    const vectors: Good[] = GOOD.filter((vector) => vector.limitBytes === limitBytes);
    const stream = Buffer.concat(vectors.map((vector) => vector.frame));
    for (const chunkBytes of [1, 7, 1000, 65_536, stream.length]) {
      assert.deepEqual(
        decodeAll(stream, limitBytes, chunkBytes),
        vectors.map((vector) => vector.packet),
      );
    }
  }
});

test("the vectors are complete", () => {
  console.log(`vectors: ${GOOD.length} good and ${BAD.length} bad`);
  assert.ok(GOOD.length >= 60 && BAD.length >= 60);
});
