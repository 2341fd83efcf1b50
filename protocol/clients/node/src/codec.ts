/** Encodes and decodes packets. A frame is a 4-byte big-endian length and a MessagePack body. */

import { Code, DEPTH_MAX, SERVER_FRAME_LIMIT_BYTES } from "./constants.js";
import { EncodeError, ProtocolError } from "./errors.js";
import { Reader } from "./reader.js";
import { checkPayload, isUint } from "./schema.js";
import { isMap, type Raw, unboxFloats, type ValueMap } from "./values.js";
import { pack } from "./writer.js";

export const HEADER_BYTES = 4;
const MAX_ELEMENTS = 3; // kind, id, payload

/** One packet, in either direction. Unknown payload keys are kept. */
export interface Packet {
  /** A `Kind`, or a number unknown to this version; a bigint beyond 2^53. */
  readonly kind: number | bigint;
  /** Chosen by the client and repeated in the reply; null if there is none. */
  readonly id: number | bigint | null;
  readonly payload: ValueMap;
}

/**
 * Returns the end of the frame that begins at `start`, or 0 if it is not complete before `end`.
 *
 * @throws ProtocolError the length is over the limit (TOO_LARGE) or 0; detected from its four bytes alone.
 */
export function frameEnd(buffer: Uint8Array, start: number, end: number, limitBytes: number): number {
  if (end - start < HEADER_BYTES) {
    return 0;
  }
  const length = new DataView(buffer.buffer, buffer.byteOffset).getUint32(start);
  if (length > limitBytes) {
    throw new ProtocolError(
      Code.TOO_LARGE,
      `a frame of ${length} bytes is over the limit of ${limitBytes} bytes`,
    );
  }
  if (length === 0) {
    throw malformed("a frame is empty");
  }
  const frame = start + HEADER_BYTES + length;
  return frame <= end ? frame : 0;
}

/**
 * Decodes the body of one frame (without its length) and checks it against every rule of the protocol.
 *
 * @throws ProtocolError the body breaks a rule; its `kind` and `id` are set if they are readable.
 */
export function decode(body: Uint8Array): Packet {
  try {
    return decodeBody(body);
  } catch (error) {
    if (error instanceof ProtocolError) {
      readKindAndId(body, error);
    }
    throw error;
  }
}

/**
 * Encodes a packet as a frame, with its length; an empty payload and a null id are left out. A packet that a
 * server would refuse is refused here.
 *
 * @throws EncodeError the packet breaks a rule of the protocol, or its body is longer than `limitBytes`.
 */
export function encode(
  kind: number | bigint,
  id: number | bigint | null,
  payload: Readonly<Record<string, unknown>> = {},
  limitBytes = SERVER_FRAME_LIMIT_BYTES,
): Uint8Array {
  const isEmpty = Object.values(payload).every((value) => value === undefined);
  const body = pack(!isEmpty ? [kind, id, payload] : id !== null ? [kind, id] : [kind]);
  if (body.length > limitBytes) {
    throw new EncodeError(`a packet of ${body.length} bytes is over the limit of ${limitBytes} bytes`);
  }
  try {
    decodeBody(body);
  } catch (error) {
    throw error instanceof ProtocolError ? new EncodeError(error.message) : error;
  }
  const frame = new Uint8Array(HEADER_BYTES + body.length);
  new DataView(frame.buffer).setUint32(0, body.length);
  frame.set(body, HEADER_BYTES);
  return frame;
}

function decodeBody(body: Uint8Array): Packet {
  const reader = new Reader(body);
  const elements = reader.readValue(DEPTH_MAX + 1);
  if (reader.offset !== body.length) {
    throw malformed("bytes follow the array");
  }
  if (!Array.isArray(elements) || elements.length < 1 || elements.length > MAX_ELEMENTS) {
    throw malformed("a frame must hold an array of 1 to 3 elements");
  }
  const [kind, id = null, payload = {}] = elements as [Raw, Raw?, Raw?];
  if (!isUint(kind)) {
    throw malformed("kind must be an unsigned integer");
  }
  if (id !== null && !isUint(id)) {
    throw malformed("id must be an unsigned integer or nil");
  }
  if (!isMap(payload)) {
    throw malformed("payload must be a map");
  }
  checkPayload(kind, payload);
  return { kind, id, payload: (reader.wholeFloats ? unboxFloats(payload) : payload) as ValueMap };
}

/** Copies the kind and id of a refused body to its error, if they are readable. */
function readKindAndId(body: Uint8Array, error: ProtocolError): void {
  const reader = new Reader(body);
  try {
    const count = reader.readArrayHeader();
    if (count < 1 || count > MAX_ELEMENTS) {
      return;
    }
    const kind = reader.readValue(0);
    if (!isUint(kind)) {
      return;
    }
    error.kind = kind;
    if (count > 1) {
      const id = reader.readValue(0);
      error.id = isUint(id) ? id : null;
    }
  } catch (failure) {
    if (!(failure instanceof ProtocolError)) {
      throw failure;
    }
  }
}

function malformed(message: string): ProtocolError {
  return new ProtocolError(Code.PROTOCOL_ERROR, message);
}
