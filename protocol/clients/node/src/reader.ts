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
  offset = 0;
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
  readValue(depth: number): Raw {
    const tag = this.readUint(1);
    if (tag < 0x80) {
      return tag;
    }
    if (tag < 0x90) {
      return this.readMap(tag & 0x0f, depth);
    }
    if (tag < 0xa0) {
      return this.readArray(tag & 0x0f, depth);
    }
    if (tag < 0xc0) {
      return this.readString(tag & 0x1f);
    }
    return tag < 0xe0 ? this.readTagged(tag, depth) : tag - 0x100;
  }

  /** Return the count of the array that begins here and step behind its header; 0 if there is no array. */
  readArrayHeader(): number {
    const tag = this.readUint(1);
    if (tag >= 0x90 && tag < 0xa0) {
      return tag & 0x0f;
    }
    return tag === 0xdc ? this.readUint(2) : tag === 0xdd ? this.readUint(4) : 0;
  }

  /** A value whose tag says what follows, or how many bytes its length takes. */
  private readTagged(tag: number, depth: number): Raw {
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return tag === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return new Uint8Array(this.readBytes(this.readUint(1 << (tag - 0xc4)))); // a copy: the frame may be large
      case 0xca:
        return this.toFloat(this.readBytes(4).readFloatBE());
      case 0xcb:
        return this.toFloat(this.readBytes(8).readDoubleBE());
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.readUint(1 << (tag - 0xcc));
      case 0xcf:
        return toInteger(this.readBytes(8).readBigUInt64BE());
      case 0xd0:
      case 0xd1:
      case 0xd2: {
        const width = 1 << (tag - 0xd0);
        return this.readBytes(width).readIntBE(0, width);
      }
      case 0xd3:
        return toInteger(this.readBytes(8).readBigInt64BE());
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.readString(this.readUint(1 << (tag - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.readArray(this.readUint(2 << (tag - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.readMap(this.readUint(2 << (tag - 0xde)), depth);
      default:
        throw malformed(tag === 0xc1 ? "a byte that MessagePack never uses" : "an extension type");
    }
  }

  private readArray(count: number, depth: number): Raw[] {
    checkDepth(depth);
    const array: Raw[] = [];
    while (array.length < count) {
      array.push(this.readValue(depth - 1));
    }
    return array;
  }

  private readMap(count: number, depth: number): RawMap {
    checkDepth(depth);
    const map: RawMap = {};
    for (let index = 0; index < count; index += 1) {
      const tag = this.bytes[this.offset] ?? 0xa0; // past the end, reading the key says so
      if ((tag < 0xa0 || tag >= 0xc0) && (tag < 0xd9 || tag > 0xdb)) {
        throw malformed("a map key is not a string");
      }
      setKey(map, this.readValue(0) as string, this.readValue(depth - 1)); // of a key that repeats the last value counts
    }
    return map;
  }

  private readString(length: number): string {
    const bytes = this.readBytes(length);
    try {
      return utf8.decode(bytes);
    } catch {
      throw malformed("a string is not UTF-8");
    }
  }

  private toFloat(value: number): number | WholeFloat {
    if (!Number.isFinite(value)) {
      throw malformed("a number is NaN or infinite");
    }
    if (!Number.isInteger(value)) {
      return value;
    }
    this.wholeFloats = true;
    return new WholeFloat(value);
  }

  private readUint(width: number): number {
    return this.readBytes(width).readUIntBE(0, width);
  }

  private readBytes(length: number): Buffer {
    const at = this.offset;
    if (length > this.bytes.length - at) {
      throw malformed("the frame ends before its values do");
    }
    this.offset = at + length;
    return this.bytes.subarray(at, at + length);
  }
}

function checkDepth(depth: number): void {
  if (depth === 0) {
    throw malformed("containers nest too deep");
  }
}

function toInteger(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function malformed(message: string): ProtocolError {
  return new ProtocolError(Code.PROTOCOL_ERROR, message);
}
