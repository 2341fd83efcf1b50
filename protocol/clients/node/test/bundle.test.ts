/** The bundle for browsers: its size, and that it needs nothing else. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const MAX_COMPRESSED_BYTES = 25_000; // what a page loads in a fifth of a second at 1 Mbit/s
const PATH = join(__dirname, "../browser/presence-client.mjs");
const BUNDLE = readFileSync(PATH);

test("the bundle is small", () => {
  const { length } = gzipSync(BUNDLE, { level: 9 });
  assert.ok(length <= MAX_COMPRESSED_BYTES, `${length} bytes`);
});

test("errors have their names in the bundle", async () => {
  const bundle = (await import(pathToFileURL(PATH).href)) as typeof import("../src/common.js");
  const refusal = { code: 404, reason: "busy", message: "", retryAfterMs: null };
  assert.equal(new bundle.Busy(refusal).name, "Busy");
  assert.match(String(new bundle.EncodeError("wrong").stack), /^EncodeError: wrong/);
});

test("the bundle imports nothing and names nothing of Node", () => {
  const found = BUNDLE.toString().match(/\b(?:import\s*[("{*]|require\(|Buffer\b|process\b|setImmediate\b)/g);
  assert.equal(found, null);
});
