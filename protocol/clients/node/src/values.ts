/** The values of packets, as JavaScript types. */

/**
 * Any MessagePack value, without extension types. Integers beyond 2^53 are bigints, smaller ones and floats
 * are numbers; binary is a Uint8Array.
 */
export type Value = null | boolean | number | bigint | string | Uint8Array | readonly Value[] | ValueMap;

export interface ValueMap {
  readonly [key: string]: Value;
}

/**
 * A float on the wire whose value is whole. The protocol never accepts a float for an integer, but JavaScript
 * cannot tell them apart, so such a float is boxed from reading until validation.
 */
export class WholeFloat {
  constructor(readonly value: number) {}
}

/** A value as read, before validation. */
export type Raw = null | boolean | number | bigint | string | Uint8Array | WholeFloat | Raw[] | RawMap;

export interface RawMap {
  [key: string]: Raw;
}

export function isMap(value: Raw): value is RawMap {
  return (
    typeof value === "object" &&
    value !== null &&
    !Array.isArray(value) &&
    !(value instanceof Uint8Array) &&
    !(value instanceof WholeFloat)
  );
}

/** Sets a key of a map. Plain assignment to `__proto__` would change the prototype instead. */
export function setKey<T>(map: { [key: string]: T }, key: string, value: T): void {
  if (key === "__proto__") {
    Object.defineProperty(map, key, { value, writable: true, enumerable: true, configurable: true });
  } else {
    map[key] = value;
  }
}

/** Replaces every `WholeFloat` by its number. */
export function unboxFloats(raw: Raw): Value {
  if (raw instanceof WholeFloat) {
    return raw.value;
  }
  if (Array.isArray(raw)) {
    return raw.map(unboxFloats);
  }
  if (isMap(raw)) {
    const map: { [key: string]: Value } = {};
    for (const [key, value] of Object.entries(raw)) {
      setKey(map, key, unboxFloats(value));
    }
    return map;
  }
  return raw;
}

/** Whether two values are the same on the wire, whatever the order of their keys. */
export function isEqual(one: Value | undefined, other: Value | undefined): boolean {
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) {
    return one === other;
  }
  const [entries, others] = [Object.entries(one), new Map<string, Value>(Object.entries(other))];
  return (
    Object.getPrototypeOf(one) === Object.getPrototypeOf(other) &&
    entries.length === others.size &&
    entries.every(([key, value]) => others.has(key) && isEqual(value as Value, others.get(key)))
  );
}
