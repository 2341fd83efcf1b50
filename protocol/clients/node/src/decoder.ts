/** Incremental decoder: bytes in, packets out. */

import { decode, frameEnd, HEADER_BYTES, type Packet } from "./codec.js";
import { SERVER_FRAME_LIMIT_BYTES } from "./constants.js";
import { ProtocolError } from "./errors.js";

const BUFFER_BYTES = 4096; // doubled for larger packets

/**
 * Splits a byte stream into packets, independent of how it is chunked.
 *
 * Call `next` until it returns null after each `feed`: then at most one incomplete frame is buffered. After a
 * ProtocolError further input is dropped, and `next` throws the same error again.
 */
export class Decoder {
  private buffer = new Uint8Array(BUFFER_BYTES);
  private start = 0; // of the first unread byte
  private end = 0;
  private failure: ProtocolError | null = null;

  /** maximum frame length, without the length itself. */
  constructor(private readonly limitBytes = SERVER_FRAME_LIMIT_BYTES) {}

  feed(data: Uint8Array): void {
    if (this.failure) {
      return;
    }
    if (this.end + data.length > this.buffer.length) {
      this.makeRoom(data.length);
    }
    this.buffer.set(data, this.end);
    this.end += data.length;
  }

  /**
   * Returns the next packet, or null if more bytes are needed.
   *
   * @throws ProtocolError the stream breaks a rule, now or in an earlier call.
   */
  next(): Packet | null {
    if (this.failure) {
      throw this.failure;
    }
    try {
      const end = frameEnd(this.buffer, this.start, this.end, this.limitBytes);
      if (end === 0) {
        return null;
      }
      const body = this.buffer.subarray(this.start + HEADER_BYTES, end);
      this.start = end;
      return decode(body);
    } catch (error) {
      if (error instanceof ProtocolError) {
        this.failure = error;
        this.buffer = new Uint8Array(0);
      }
      throw error;
    }
  }

  /**
   * Moves unread bytes to the front. Afterwards at least half of the buffer is free, so each byte moves O(1)
   * times.
   */
  private makeRoom(bytes: number): void {
    const unread = this.buffer.subarray(this.start, this.end);
    const size = 2 * (unread.length + bytes);
    if (size > this.buffer.length) {
      this.buffer = new Uint8Array(size);
      this.buffer.set(unread);
    } else {
      this.buffer.copyWithin(0, this.start, this.end);
    }
    this.end = unread.length;
    this.start = 0;
  }
}
