// The wheel as figures: where each slot stands at a moment. No look at the document.
//
// A sample tells how many sessions are due at each boundary to come, soonest first. A slot is known by the
// absolute number of its boundary, so one that moves from sample to sample is the same slot, and drawing
// between two samples only moves all of them on. More slots than can be told apart are drawn in groups.

const MOST_SEGMENTS = 120;
const NEAR = 0.25; // of a slot: boundaries that differ by less are the same, give or take the way of a sample
const YIELD = 0.2; // how much of such a difference is taken at once, so that nothing jumps
const TWEEN_S = 0.3;

export class Ring {
  #boundary = 0; // when the slot numbered #number is due, seconds
  #number = 0;
  #first = 0;
  #sizes = [];
  #shown = new Map(); // by segment: what was shown when the sample came
  #at = 0;
  slotS = 1;
  later = 0;

  /** Take a sample's `wheel`, taken at `now` (seconds of the server). */
  absorb(wheel, now) {
    const shown = new Map(this.segments(now, false).map(({ key, size }) => [key, size]));
    if (wheel.slot_s !== this.slotS || wheel.sizes.length !== this.#sizes.length) shown.clear();
    this.slotS = wheel.slot_s;
    this.later = wheel.later ?? 0;
    this.#first = this.#numberOf(now + wheel.next_s);
    this.#sizes = wheel.sizes;
    this.#shown = shown;
    this.#at = now;
  }

  /** Forget what was shown, for another wheel. */
  clear() {
    this.#sizes = [];
    this.#shown = new Map();
  }

  /** Sessions in all slots. */
  get total() {
    return this.#sizes.reduce((sum, size) => sum + size, 0) + this.later;
  }

  /** Seconds of a whole turn. */
  get span() {
    return Math.max(1, this.#sizes.length) * this.slotS;
  }

  get #group() {
    return Math.max(1, Math.ceil(this.#sizes.length / MOST_SEGMENTS));
  }

  /** The number of the slot whose boundary is at `when`; keeps in step with a server that stood still. */
  #numberOf(when) {
    const slots = Math.round((when - this.#boundary) / this.slotS);
    const off = when - (this.#boundary + slots * this.slotS);
    this.#number += slots;
    this.#boundary += slots * this.slotS + (Math.abs(off) < NEAR * this.slotS ? YIELD * off : off);
    return this.#number;
  }

  #due(number) {
    return this.#boundary + (number - this.#number) * this.slotS;
  }

  /**
   * All segments at `now`: `{key, from, to, size}`, seconds until it begins and ends to be due. One that has
   * passed the hand is empty. With `tween`, sizes move from what was shown before.
   */
  segments(now, tween = true) {
    const group = this.#group;
    const moved = tween ? Math.min(1, (now - this.#at) / TWEEN_S) : 1;
    const found = new Map();
    this.#sizes.forEach((size, index) => {
      const number = this.#first + index;
      const key = Math.floor(number / group);
      const to = this.#due(number) - now;
      const segment = found.get(key);
      const here = to <= 0 ? 0 : size;
      if (segment) {
        segment.to = to;
        segment.size += here;
      } else found.set(key, { key, from: to - this.slotS, to, size: here });
    });
    if (moved < 1) {
      for (const segment of found.values()) {
        if (segment.to <= 0) continue;
        const before = this.#shown.get(segment.key) ?? 0;
        segment.size = before + (segment.size - before) * (1 - (1 - moved) ** 3);
      }
    }
    return [...found.values()];
  }

  /** The segment in which whoever is due in `seconds` stands; null: beyond the ring. */
  at(seconds, now) {
    return this.segments(now, false).find(({ from, to }) => seconds > from && seconds <= to) ?? null;
  }
}
