/** Reads vectors.json. */

import { readFileSync } from "node:fs";
import { join } from "node:path";

import type { Packet, Value, ValueMap } from "../src/index.js";

export interface Good {
  readonly name: string;
  readonly frame: Uint8Array;
  readonly limitBytes: number;
  readonly packet: Packet;
}

export interface Bad {
  readonly name: string;
  readonly frame: Uint8Array;
  readonly limitBytes: number;
  readonly code: number;
  readonly kind: number | bigint | null;
  readonly id: number | bigint | null;
}

/** A row, and the state that it stands for. */
export interface StateOfRow {
  readonly name: string;
  readonly row: Value;
  readonly uid: string;
  readonly state: ValueMap;
}

export const LIMITS = { before_login: 1024, none: 16_384, server: 262_144 };

interface Entry {
  name: string;
  hex: string;
  limit?: "before_login" | "server";
  packet: unknown;
  code: number;
  kind: unknown;
  id: unknown;
}

/** Decodes values that JSON lacks, which are objects with one key. */
function decodeJson(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(decodeJson);
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const entries = Object.entries(value);
  const [key, only] = entries[0] ?? [];
  if (entries.length === 1 && key === "$bin") {
    return new Uint8Array(Buffer.from(only as string, "hex"));
  }
  if (entries.length === 1 && key === "$int") {
    return BigInt(only as string);
  }
  return Object.fromEntries(entries.map(([name, each]) => [name, decodeJson(each)]));
}

function commonFields(entry: Entry): { name: string; frame: Uint8Array; limitBytes: number } {
  const frame = new Uint8Array(Buffer.from(entry.hex, "hex"));
  return { name: entry.name, frame, limitBytes: LIMITS[entry.limit ?? "none"] };
}

const text = readFileSync(join(__dirname, "../../../../vectors.json"), "utf-8");
const all = JSON.parse(text) as { good: Entry[]; bad: Entry[]; rows: StateOfRow[] };

export const ROWS: readonly StateOfRow[] = all.rows.map((entry) => ({
  ...entry,
  row: decodeJson(entry.row) as Value,
  state: decodeJson(entry.state) as ValueMap,
}));

export const GOOD: readonly Good[] = all.good.map((entry) => ({
  ...commonFields(entry),
  packet: decodeJson(entry.packet) as Packet,
}));

export const BAD: readonly Bad[] = all.bad.map((entry) => ({
  ...commonFields(entry),
  code: entry.code,
  kind: decodeJson(entry.kind) as Bad["kind"],
  id: decodeJson(entry.id) as Bad["id"],
}));
