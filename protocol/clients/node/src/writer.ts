/** Writes MessagePack in its shortest encoding, floats as float64. */

import { concat, utf8 } from "./bytes.js";
import { DEPTH_MAX } from "./constants.js";
import { EncodeError } from "./errors.js";
import { WholeFloat } from "./values.js";

/**
 * The tags of one type: lengths below `fixedLimit` are added to `fixedTag`; the others have a tag for a
 * length of 1, 2 or 4 bytes.
 */
interface Format {
  readonly fixedTag: number;
  readonly fixedLimit: number;
  readonly tags: readonly [number | null, number, number];
}

const STRING: Format = { fixedTag: 0xa0, fixedLimit: 32, tags: [0xd9, 0xda, 0xdb] };
const BINARY: Format = { fixedTag: 0, fixedLimit: 0, tags: [0xc4, 0xc5, 0xc6] };
const ARRAY: Format = { fixedTag: 0x90, fixedLimit: 16, tags: [null, 0xdc, 0xdd] };
const MAP: Format = { fixedTag: 0x80, fixedLimit: 16, tags: [null, 0xde, 0xdf] };

/**
 * Encodes a value. Map keys with the value undefined are left out. A whole number is an integer.
 *
 * @throws EncodeError the value contains something that is not a `Value` (a Date, a Map, undefined in a list,
 *   an integer of more than 64 bits, half a surrogate pair), or is nested too deep.
 */
export function pack(value: unknown): Uint8Array {
  const parts: Uint8Array[] = [];
  write(value, DEPTH_MAX + 1, parts);
  return concat(parts);
}

function write(value: unknown, depth: number, parts: Uint8Array[]): void {
  if (value === null) {
    parts.push(Uint8Array.of(0xc0));
  } else if (typeof value === "boolean") {
    parts.push(Uint8Array.of(value ? 0xc3 : 0xc2));
  } else if (typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value))) {
    parts.push(integer(BigInt(value)));
  } else if (typeof value === "number") {
    parts.push(float(value));
  } else if (value instanceof WholeFloat) {
    parts.push(float(value.value));
  } else if (typeof value === "string") {
    if (/\p{Surrogate}/u.test(value)) {
      throw new EncodeError("a string holds half a surrogate pair");
    }
    const bytes = utf8(value);
    parts.push(header(STRING, bytes.length), bytes);
  } else if (value instanceof Uint8Array) {
    parts.push(header(BINARY, value.length), value);
  } else {
    writeContainer(value, depth, parts);
  }
}

function writeContainer(value: unknown, depth: number, parts: Uint8Array[]): void {
  if (depth === 0) {
    throw new EncodeError(`containers nest more than ${DEPTH_MAX} deep`);
  }
  if (Array.isArray(value)) {
    parts.push(header(ARRAY, value.length));
    for (const each of value as unknown[]) {
      write(each, depth - 1, parts);
    }
    return;
  }
  const prototype = typeof value === "object" ? Object.getPrototypeOf(value) : undefined;
  if (prototype !== Object.prototype && prototype !== null) {
    throw new EncodeError(`${typeName(value)} cannot be sent; maps must be plain objects`);
  }
  const entries = Object.entries(value as object).filter(([, each]) => each !== undefined);
  parts.push(header(MAP, entries.length));
  for (const [key, each] of entries) {
    write(key, 0, parts);
    write(each, depth - 1, parts);
  }
}

function typeName(value: unknown): string {
  const name: unknown = (value as object | undefined)?.constructor?.name;
  return typeof value === "object" && typeof name === "string" && name ? `an instance of ${name}` : typeof value;
}

function header(form: Format, length: number): Uint8Array {
  if (length < form.fixedLimit) {
    return Uint8Array.of(form.fixedTag + length);
  }
  const [short, middle, long] = form.tags;
  if (short !== null && length < 0x100) {
    return withTag(short, 1, length);
  }
  return length < 0x1_0000 ? withTag(middle, 2, length) : withTag(long, 4, length);
}

function withTag(tag: number, width: number, value: number): Uint8Array {
  const bytes = new Uint8Array(1 + width);
  bytes[0] = tag;
  for (let place = width, rest = value; place > 0; place -= 1, rest >>>= 8) {
    bytes[place] = rest; // its lowest 8 bits
  }
  return bytes;
}

function integer(value: bigint): Uint8Array {
  if (value >= -0x20n && value < 0x80n) {
    return Uint8Array.of(Number(value) & 0xff);
  }
  for (const [power, width] of [1, 2, 4, 8].entries()) {
    const bits = 8 * width;
    if (value === (value < 0n ? BigInt.asIntN(bits, value) : BigInt.asUintN(bits, value))) {
      const bytes = new Uint8Array(9);
      new DataView(bytes.buffer).setBigUint64(1, BigInt.asUintN(64, value));
      const from = 8 - width; // the tag comes before the significant bytes
      bytes[from] = (value < 0n ? 0xd0 : 0xcc) + power;
      return bytes.subarray(from);
    }
  }
  throw new EncodeError("an integer takes more than 64 bits");
}

function float(value: number): Uint8Array {
  const bytes = Uint8Array.of(0xcb, 0, 0, 0, 0, 0, 0, 0, 0);
  new DataView(bytes.buffer).setFloat64(1, value);
  return bytes;
}
