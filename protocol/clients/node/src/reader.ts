/**
 * MessagePack as the protocol allows it: a strict reader.
 *
 * Stock decoders will not do. They hold 1.0 and 1 for the same, take bytes that are not UTF-8, drop a byte
 * order mark, choke on the key `__proto__`, round integers beyond 2^53, or allocate what a container claims.
 *
 * Nothing is allocated for what a container claims: each value is built when its bytes are there, so what is
 * built is linear in the frame. Depth is bounded, so recursion is.
 */

import { Code } from "./constants.js";
import { ProtocolError } from "./errors.js";
import { type Raw, type RawMap, setKey, WholeFloat } from "./values.js";

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Reader {
  /** Offset of the next byte. */
  at = 0;
  /** Whether a `WholeFloat` was read. */
  wholeFloats = false;
  private readonly bytes: Buffer;

  constructor(bytes: Uint8Array) {
    this.bytes = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /**
   * Read the value that begins at `at`.
   *
   * @param depth how many containers may lie inside each other; 0 allows none.
   * @throws ProtocolError the value does not fit, nests too deep, has a map key that is no string, a NaN or
   *   an infinity, a string that is not UTF-8, an extension type, or a byte that MessagePack leaves unused.
   */
  value(depth: number): Raw {
    const tag = this.uint(1);
    if (tag < 0x80) {
      return tag;
    }
    if (tag < 0x90) {
      return this.map(tag & 0x0f, depth);
    }
    if (tag < 0xa0) {
      return this.array(tag & 0x0f, depth);
    }
    if (tag < 0xc0) {
      return this.string(tag & 0x1f);
    }
    return tag < 0xe0 ? this.sized(tag, depth) : tag - 0x100;
  }

  /** Return the count of the array that begins here and step behind its header; 0 if there is no array. */
  arrayHeader(): number {
    const tag = this.uint(1);
    if (tag >= 0x90 && tag < 0xa0) {
      return tag & 0x0f;
    }
    return tag === 0xdc ? this.uint(2) : tag === 0xdd ? this.uint(4) : 0;
  }

  /** A value whose tag says what follows, or how many bytes its length takes. */
  private sized(tag: number, depth: number): Raw {
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return tag === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return new Uint8Array(this.take(this.uint(1 << (tag - 0xc4)))); // a copy: the frame may be large
      case 0xca:
        return this.float(this.take(4).readFloatBE());
      case 0xcb:
        return this.float(this.take(8).readDoubleBE());
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.uint(1 << (tag - 0xcc));
      case 0xcf:
        return exact(this.take(8).readBigUInt64BE());
      case 0xd0:
      case 0xd1:
      case 0xd2: {
        const width = 1 << (tag - 0xd0);
        return this.take(width).readIntBE(0, width);
      }
      case 0xd3:
        return exact(this.take(8).readBigInt64BE());
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.string(this.uint(1 << (tag - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.array(this.uint(2 << (tag - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.map(this.uint(2 << (tag - 0xde)), depth);
      default:
        throw wrong(tag === 0xc1 ? "a byte that MessagePack never uses" : "an extension type");
    }
  }

  private array(count: number, depth: number): Raw[] {
    checkDepth(depth);
    const array: Raw[] = [];
    while (array.length < count) {
      array.push(this.value(depth - 1));
    }
    return array;
  }

  private map(count: number, depth: number): RawMap {
    checkDepth(depth);
    const map: RawMap = {};
    for (let index = 0; index < count; index += 1) {
      const tag = this.bytes[this.at] ?? 0xa0; // past the end, reading the key says so
      if ((tag < 0xa0 || tag >= 0xc0) && (tag < 0xd9 || tag > 0xdb)) {
        throw wrong("a map key is not a string");
      }
      setKey(map, this.value(0) as string, this.value(depth - 1)); // of a key that repeats the last value counts
    }
    return map;
  }

  private string(length: number): string {
    const bytes = this.take(length);
    try {
      return utf8.decode(bytes);
    } catch {
      throw wrong("a string is not UTF-8");
    }
  }

  private float(value: number): number | WholeFloat {
    if (!Number.isFinite(value)) {
      throw wrong("a number is NaN or infinite");
    }
    if (!Number.isInteger(value)) {
      return value;
    }
    this.wholeFloats = true;
    return new WholeFloat(value);
  }

  private uint(width: number): number {
    return this.take(width).readUIntBE(0, width);
  }

  private take(length: number): Buffer {
    const at = this.at;
    if (length > this.bytes.length - at) {
      throw wrong("the frame ends before its values do");
    }
    this.at = at + length;
    return this.bytes.subarray(at, at + length);
  }
}

function checkDepth(depth: number): void {
  if (depth === 0) {
    throw wrong("containers nest too deep");
  }
}

function exact(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function wrong(message: string): ProtocolError {
  return new ProtocolError(Code.PROTOCOL_ERROR, message);
}
