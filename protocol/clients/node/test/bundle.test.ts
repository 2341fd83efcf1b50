/** The bundle for browsers: its size, and that it needs nothing else. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const MAX_COMPRESSED_BYTES = 25_000; // what a page loads in a fifth of a second at 1 Mbit/s
const BUNDLE = readFileSync(join(__dirname, "../browser/presence-client.mjs"));

test("the bundle is small", () => {
  const { length } = gzipSync(BUNDLE, { level: 9 });
  assert.ok(length <= MAX_COMPRESSED_BYTES, `${length} bytes`);
});

test("the bundle imports nothing and names nothing of Node", () => {
  const found = BUNDLE.toString().match(/\b(?:import\s*[("{*]|require\(|Buffer\b|process\b|setImmediate\b)/g);
  assert.equal(found, null);
});
