// The wheel as numbers: the position and size of each slot at a moment. Does not use the document.
//
// A sample has the number of sessions due at each of the next boundaries, soonest first. A slot is identified by
// the absolute number of its boundary, so it is the same slot in the next sample, and between two samples all
// slots only move on. If there are too many slots to distinguish, they are drawn in groups.

const MAX_SEGMENTS = 120;
const SAME_BOUNDARY = 0.25; // of a slot: boundaries that differ by less are the same, because the delay of samples varies
const CORRECTION = 0.2; // the part of such a difference that is corrected per sample, so that nothing jumps
const TWEEN_S = 0.3;

export class Ring {
  #boundary = 0; // when the slot numbered #number is due, seconds
  #number = 0;
  #first = 0;
  #sizes = [];
  #previousSizes = new Map(); // by segment: the sizes shown before this sample
  #sampledAt = 0;
  slotS = 1;
  later = 0;

  /** Set the `wheel` of a sample taken at `now` (seconds of the server). */
  update(wheel, now) {
    const previous = new Map(this.segments(now, false).map(({ key, size }) => [key, size]));
    if (wheel.slot_s !== this.slotS || wheel.sizes.length !== this.#sizes.length) previous.clear();
    this.slotS = wheel.slot_s;
    this.later = wheel.later ?? 0;
    this.#first = this.#numberOf(now + wheel.next_s);
    this.#sizes = wheel.sizes;
    this.#previousSizes = previous;
    this.#sampledAt = now;
  }

  /** Forget all slots, for another wheel. */
  clear() {
    this.#sizes = [];
    this.#previousSizes = new Map();
  }

  /** Sessions in all slots. */
  get total() {
    return this.#sizes.reduce((sum, size) => sum + size, 0) + this.later;
  }

  /** Seconds of a full turn. */
  get span() {
    return Math.max(1, this.#sizes.length) * this.slotS;
  }

  get #group() {
    return Math.max(1, Math.ceil(this.#sizes.length / MAX_SEGMENTS));
  }

  /** The number of the slot whose boundary is at `when`; follows a server whose loop had stalled. */
  #numberOf(when) {
    const slots = Math.round((when - this.#boundary) / this.slotS);
    const off = when - (this.#boundary + slots * this.slotS);
    this.#number += slots;
    this.#boundary += slots * this.slotS + (Math.abs(off) < SAME_BOUNDARY * this.slotS ? CORRECTION * off : off);
    return this.#number;
  }

  #due(number) {
    return this.#boundary + (number - this.#number) * this.slotS;
  }

  /**
   * All segments at `now`: `{key, from, to, size}`, in seconds until its first and last sessions are due. A segment
   * that has passed the hand is empty. With `tween`, sizes change gradually from the previous ones.
   */
  segments(now, tween = true) {
    const group = this.#group;
    const progress = tween ? Math.min(1, (now - this.#sampledAt) / TWEEN_S) : 1;
    const found = new Map();
    this.#sizes.forEach((size, index) => {
      const number = this.#first + index;
      const key = Math.floor(number / group);
      const to = this.#due(number) - now;
      const segment = found.get(key);
      const remaining = to <= 0 ? 0 : size;
      if (segment) {
        segment.to = to;
        segment.size += remaining;
      } else found.set(key, { key, from: to - this.slotS, to, size: remaining });
    });
    if (progress < 1) {
      for (const segment of found.values()) {
        if (segment.to <= 0) continue;
        const before = this.#previousSizes.get(segment.key) ?? 0;
        segment.size = before + (segment.size - before) * (1 - (1 - progress) ** 3);
      }
    }
    return [...found.values()];
  }

  /** The segment of the sessions that are due in `seconds`; null if beyond the ring. */
  segmentAt(seconds, now) {
    return this.segments(now, false).find(({ from, to }) => seconds > from && seconds <= to) ?? null;
  }
}
