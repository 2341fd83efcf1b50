/** Bytes and UTF-8, by what every platform has. */

const encoder = new TextEncoder();
const UTF8_BYTES_MAX = 3; // of one UTF-16 unit

export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Returns whether a text takes more bytes in UTF-8; encodes it only if its length leaves that open. */
export function isLongerThan(text: string, maxBytes: number): boolean {
  if (text.length * UTF8_BYTES_MAX <= maxBytes) {
    return false;
  }
  return text.length > maxBytes || utf8(text).length > maxBytes;
}

export function concat(parts: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
  let end = 0;
  for (const part of parts) {
    bytes.set(part, end);
    end += part.length;
  }
  return bytes;
}
