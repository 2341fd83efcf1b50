/**
 * A strict MessagePack reader, for the subset that the protocol allows.
 *
 * Common libraries are not strict enough. They treat 1.0 as 1, accept bytes that are not UTF-8, drop a byte
 * order mark, fail on the key `__proto__`, round integers beyond 2^53, or allocate the claimed size of a
 * container.
 *
 * Here a value is built only when its bytes are present, so memory is linear in the frame. Depth is bounded,
 * and so is recursion.
 */

import { Code } from "./constants.js";
import { ProtocolError } from "./errors.js";
import { type Raw, type RawMap, setKey, WholeFloat } from "./values.js";

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Reader {
  /** Offset of the next byte. */
  offset = 0;
  wholeFloats = false;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /**
   * Reads the value at `offset`.
   *
   * @param depth how many nested containers are allowed; 0 allows none.
   * @throws ProtocolError the value is incomplete or nested too deep, or has a map key that is not a string,
   *   a NaN or infinity, a string that is not UTF-8, an extension type, or the unused byte 0xc1.
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

  /** Reads an array header and returns its count; 0 if there is no array. */
  readArrayHeader(): number {
    const tag = this.readUint(1);
    if (tag >= 0x90 && tag < 0xa0) {
      return tag & 0x0f;
    }
    return tag === 0xdc ? this.readUint(2) : tag === 0xdd ? this.readUint(4) : 0;
  }

  /** Reads a value with a tag from 0xc0 to 0xdf. */
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
        return new Uint8Array(this.readBytes(this.readUint(1 << (tag - 0xc4)))); // a copy: frames are large
      case 0xca:
        return this.toFloat(this.view.getFloat32(this.advance(4)));
      case 0xcb:
        return this.toFloat(this.view.getFloat64(this.advance(8)));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.readUint(1 << (tag - 0xcc));
      case 0xcf:
        return toInteger(this.view.getBigUint64(this.advance(8)));
      case 0xd0:
        return this.view.getInt8(this.advance(1));
      case 0xd1:
        return this.view.getInt16(this.advance(2));
      case 0xd2:
        return this.view.getInt32(this.advance(4));
      case 0xd3:
        return toInteger(this.view.getBigInt64(this.advance(8)));
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
      const tag = this.bytes[this.offset] ?? 0xa0; // past the end, readValue fails
      if ((tag < 0xa0 || tag >= 0xc0) && (tag < 0xd9 || tag > 0xdb)) {
        throw malformed("a map key is not a string");
      }
      setKey(map, this.readValue(0) as string, this.readValue(depth - 1)); // the last duplicate wins
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
    const start = this.advance(width);
    return width === 1
      ? this.view.getUint8(start)
      : width === 2
        ? this.view.getUint16(start)
        : this.view.getUint32(start);
  }

  private readBytes(length: number): Uint8Array {
    const start = this.advance(length);
    return this.bytes.subarray(start, start + length);
  }

  /** Returns where the next bytes begin, and moves behind them. */
  private advance(length: number): number {
    const start = this.offset;
    if (length > this.bytes.length - start) {
      throw malformed("the frame ends before its values do");
    }
    this.offset = start + length;
    return start;
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
