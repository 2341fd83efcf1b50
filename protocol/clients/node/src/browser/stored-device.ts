/** The id of a device that a browser remembers. */

/** What this uses of a browser's storage. */
interface Storage {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

interface Crypto {
  getRandomValues(bytes: Uint8Array): Uint8Array;
}

const KEY = "presence.device";

/**
 * Returns an id for `device` that is made once and kept in this storage: `sessionStorage` for a device a tab, which
 * keeps it when it loads anew; `localStorage` for one a browser, whose newest tab then replaces the others. A storage
 * that refuses, as some do in private windows, makes it an id for this page.
 */
export function storedDevice(storage: Storage, key = KEY): string {
  try {
    const id = storage.getItem(key) ?? newId();
    storage.setItem(key, id);
    return id;
  } catch {
    return newId();
  }
}

/** 128 random bits. `randomUUID` is missing in pages without TLS. */
function newId(): string {
  const { crypto } = globalThis as unknown as { readonly crypto: Crypto };
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `web-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
