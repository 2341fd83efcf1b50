/** MessagePack in its shortest encoding, floats as float64; and how long that is. */

import { DEPTH_MAX } from "./constants.js";
import { EncodeError } from "./errors.js";
import { isMap, type Raw, WholeFloat } from "./values.js";

/**
 * Pack a value. Keys of a map whose value is undefined are left out. A whole number is an integer.
 *
 * @throws EncodeError it holds something that is no `Value` (a Date, a Map, undefined in a list, an integer
 *   of more than 64 bits, half a surrogate pair), or nests too deep.
 */
export function pack(value: unknown): Uint8Array {
  const writer = new Writer();
  writer.value(value, DEPTH_MAX + 1);
  return writer.bytes.slice(0, writer.at);
}

/** Return how many bytes a value takes in its shortest encoding with floats as float64. */
export function packedBytes(value: Raw): number {
  if (value === null || typeof value === "boolean") {
    return 1;
  }
  if (typeof value === "number") {
    return Number.isSafeInteger(value) ? 1 + integerBytes(value) : 9;
  }
  if (typeof value === "bigint" || value instanceof WholeFloat) {
    return 9;
  }
  if (typeof value === "string") {
    const length = Buffer.byteLength(value);
    return headerBytes(length, 32, true) + length;
  }
  if (value instanceof Uint8Array) {
    return headerBytes(value.length, 0, true) + value.length;
  }
  if (isMap(value)) {
    const entries = Object.entries(value);
    const inside = entries.reduce((sum, [key, each]) => sum + packedBytes(key) + packedBytes(each), 0);
    return headerBytes(entries.length, 16, false) + inside;
  }
  return value.reduce<number>((sum, each) => sum + packedBytes(each), headerBytes(value.length, 16, false));
}

function headerBytes(length: number, fixed: number, short: boolean): number {
  return length < fixed ? 1 : short && length < 0x100 ? 2 : length < 0x1_0000 ? 3 : 5;
}

/** Bytes behind the tag of an integer; none if the tag holds it. */
function integerBytes(value: number): number {
  const size = value < 0 ? -1 - value : value; // of -128 as of 127
  if (size < (value < 0 ? 0x20 : 0x80)) {
    return 0;
  }
  const spare = value < 0 ? 2 : 1; // the sign takes a bit
  return size < 0x100 / spare ? 1 : size < 0x1_0000 / spare ? 2 : size < 0x1_0000_0000 / spare ? 4 : 8;
}

class Writer {
  bytes = new Uint8Array(256);
  at = 0;
  private view = new DataView(this.bytes.buffer);

  value(value: unknown, depth: number): void {
    if (value === null) {
      this.tag(0xc0);
    } else if (typeof value === "boolean") {
      this.tag(value ? 0xc3 : 0xc2);
    } else if (typeof value === "number") {
      this.number(value);
    } else if (typeof value === "bigint") {
      this.bigint(value);
    } else if (typeof value === "string") {
      this.string(value);
    } else if (value instanceof Uint8Array) {
      this.header(value.length, 0xc4, null);
      this.raw(value);
    } else {
      this.container(value, depth);
    }
  }

  private container(value: unknown, depth: number): void {
    if (depth === 0) {
      throw new EncodeError(`containers nest more than ${DEPTH_MAX} deep`);
    }
    if (Array.isArray(value)) {
      this.header(value.length, 0xdb, { tag: 0x90, below: 16 });
      for (const each of value as unknown[]) {
        this.value(each, depth - 1);
      }
      return;
    }
    const kind = typeof value === "object" ? Object.getPrototypeOf(value) : undefined;
    if (kind !== Object.prototype && kind !== null) {
      const what = typeof value === "object" ? Object.prototype.toString.call(value) : typeof value;
      throw new EncodeError(`${what} cannot be sent`);
    }
    const entries = Object.entries(value as object).filter(([, each]) => each !== undefined);
    this.header(entries.length, 0xdd, { tag: 0x80, below: 16 });
    for (const [key, each] of entries) {
      this.string(key);
      this.value(each, depth - 1);
    }
  }

  private number(value: number): void {
    if (Number.isSafeInteger(value)) {
      this.integer(value);
      return;
    }
    this.tag(0xcb);
    const at = this.room(8);
    this.view.setFloat64(at, value);
  }

  private integer(value: number): void {
    const size = integerBytes(value);
    if (size === 0) {
      this.tag(value & 0xff);
      return;
    }
    this.tag((value < 0 ? 0xd0 : 0xcc) + Math.log2(size));
    const at = this.room(size);
    switch (size) {
      case 1:
        this.view.setUint8(at, value & 0xff);
        break;
      case 2:
        this.view.setUint16(at, value & 0xffff);
        break;
      case 4:
        this.view.setUint32(at, value >>> 0);
        break;
      default:
        this.view.setBigInt64(at, BigInt(value));
    }
  }

  private bigint(value: bigint): void {
    const number = Number(value);
    if (Number.isSafeInteger(number)) {
      this.integer(number);
    } else if (value !== (value < 0n ? BigInt.asIntN(64, value) : BigInt.asUintN(64, value))) {
      throw new EncodeError("an integer takes more than 64 bits");
    } else {
      this.tag(value < 0n ? 0xd3 : 0xcf);
      const at = this.room(8);
      this.view.setBigUint64(at, BigInt.asUintN(64, value));
    }
  }

  private string(value: string): void {
    if (/\p{Surrogate}/u.test(value)) {
      throw new EncodeError("a string holds half a surrogate pair");
    }
    const bytes = Buffer.from(value, "utf-8");
    this.header(bytes.length, 0xd9, { tag: 0xa0, below: 32 });
    this.raw(bytes);
  }

  /** `tag`: of the form whose length takes one byte; the longer ones follow it. Containers begin with two. */
  private header(length: number, tag: number, fixed: { tag: number; below: number } | null): void {
    const short = tag < 0xda;
    if (fixed && length < fixed.below) {
      this.tag(fixed.tag + length);
      return;
    }
    const form = short && length < 0x100 ? 0 : length < 0x1_0000 ? 1 : 2;
    this.tag(tag + form);
    const at = this.room(1 << form);
    if (form === 0) {
      this.view.setUint8(at, length);
    } else if (form === 1) {
      this.view.setUint16(at, length);
    } else {
      this.view.setUint32(at, length);
    }
  }

  private tag(value: number): void {
    const at = this.room(1);
    this.bytes[at] = value;
  }

  private raw(value: Uint8Array): void {
    const at = this.room(value.length);
    this.bytes.set(value, at);
  }

  /** Make room and return where it begins; call it before `view` is looked at, which it may replace. */
  private room(size: number): number {
    const at = this.at;
    this.at += size;
    if (this.at > this.bytes.length) {
      const larger = new Uint8Array(Math.max(this.at, 2 * this.bytes.length));
      larger.set(this.bytes);
      this.bytes = larger;
      this.view = new DataView(larger.buffer);
    }
    return at;
  }
}
