/** The incremental reader: bytes in as they come, packets out. */

import { decode, frameEnd, HEADER_BYTES, type Packet } from "./codec.js";
import { SERVER_FRAME_LIMIT_BYTES } from "./constants.js";
import { ProtocolError } from "./errors.js";

const BUFFER_BYTES = 4096; // most packets are small; the buffer doubles for one that is not

/**
 * Cuts a stream of bytes into packets, however the stream was cut before.
 *
 * Call `next` until it returns null after each `feed`: then at most one unfinished frame is held. After a
 * ProtocolError it stays failed: what is fed is dropped, and `next` throws it again.
 */
export class Decoder {
  private buffer = new Uint8Array(BUFFER_BYTES);
  private start = 0; // what lies before it was handed out
  private end = 0;
  private failure: ProtocolError | null = null;

  /** @param limitBytes the largest frame allowed, without its length. */
  constructor(private readonly limitBytes = SERVER_FRAME_LIMIT_BYTES) {}

  /** Add bytes as they were read. */
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
   * Return the next packet, or null until more bytes are fed.
   *
   * @throws ProtocolError the stream breaks a rule, now or at an earlier call.
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
   * Move what is not handed out to the front. At least half of the buffer is free afterwards, so that a byte
   * moves O(1) times.
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
