/** The constants of this client agree with SPEC.md. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import {
  CLASS_MAX_BYTES,
  Code,
  DEPTH_MAX,
  DEVICE_MAX_BYTES,
  FRAME_LIMIT_BEFORE_LOGIN_BYTES,
  FRAME_LIMIT_BYTES,
  Kind,
  mayReconnect,
  META_DEPTH_MAX,
  META_MAX_BYTES,
  META_TEXT_MAX_BYTES,
  PASS_MAX_BYTES,
  ROOM_MAX_BYTES,
  ROOMS_MAX,
  SERVER_FRAME_LIMIT_BYTES,
  TOKEN_MAX_BYTES,
  UID_MAX_BYTES,
  WATCHED_ROOMS_MAX,
} from "../src/index.js";

const SPEC = readFileSync(join(__dirname, "../../../../SPEC.md"), "utf-8");

test("kinds", () => {
  const kinds = [...SPEC.matchAll(/^### (\d+) (\w+)$/gm)].map(([, kind, name]) => [
    name?.toUpperCase(),
    Number(kind),
  ]);
  assert.deepEqual(Object.fromEntries(kinds), Kind);
});

test("reason codes, and which allow a reconnect", () => {
  const rows = [...SPEC.matchAll(/^\| (\d+) \| `(\w+)` \| (yes|no) \|/gm)];
  const codes = rows.map(([, code, name]) => [name?.toUpperCase(), Number(code)]);
  assert.deepEqual(Object.fromEntries(codes), Code);
  for (const [, code, , reconnect] of rows) {
    assert.equal(mayReconnect(Number(code)), reconnect === "yes", code);
  }
  assert.ok(mayReconnect(9999));
});

test("limits", () => {
  const limits = [...SPEC.matchAll(/^\| (client|server)[^|]* \| ([\d,]+) bytes \|$/gm)];
  assert.deepEqual(
    limits.map(([, , limit]) => Number(limit?.replaceAll(",", ""))),
    [FRAME_LIMIT_BEFORE_LOGIN_BYTES, FRAME_LIMIT_BYTES, SERVER_FRAME_LIMIT_BYTES],
  );
  const rules: [RegExp, number][] = [
    [/^\| uid \| string of 1 to (\d+) bytes/m, UID_MAX_BYTES],
    [/^\| device \| like uid, up to (\d+) bytes/m, DEVICE_MAX_BYTES],
    [/^\| class \| like uid, up to (\d+) bytes/m, CLASS_MAX_BYTES],
    [/^\| token \| string of 1 to (\d+) bytes/m, TOKEN_MAX_BYTES],
    [/^\| pass \| string of 1 to (\d+) bytes/m, PASS_MAX_BYTES],
    [/^\| list of rooms \| .* up to (\d+) bytes/m, ROOM_MAX_BYTES],
    [/^\| list of rooms \| array of at most (\d+)/m, ROOMS_MAX],
    [/^\| list of up to (\d+) rooms/m, WATCHED_ROOMS_MAX],
    [/^\| meta \| map of at most (\d+) bytes/m, META_MAX_BYTES],
    [/^\| meta \| .* at most (\d+) bytes as JSON text/m, META_TEXT_MAX_BYTES],
    [/^\| meta \| .* at most (\d+) deep/m, META_DEPTH_MAX],
    [/^- Containers are nested at most (\d+) deep/m, DEPTH_MAX],
  ];
  for (const [rule, limit] of rules) {
    assert.equal(Number(rule.exec(SPEC)?.[1]), limit, String(rule));
  }
});
