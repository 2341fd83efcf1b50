/** Token functions, and the expiry of tokens. Only the server verifies tokens. */

import { encode } from "./codec.js";
import { Kind } from "./constants.js";

/** Returns a token. Called before each login, and again before a token expires. */
export type TokenSource = () => string | Promise<string>;

/**
 * Returns the token that the program supplied, or throws it if it is an Error.
 *
 * @throws EncodeError it is not a valid token field.
 */
export function checkedToken(token: unknown): string {
  if (token instanceof Error) {
    throw token;
  }
  encode(Kind.UPDATE, null, { token: token ?? null });
  return token as string;
}

/**
 * Returns the time until a JSON Web Token expires; null for any other token, or if it has no expiry. Does not
 * verify the token, and does not use the clock of this device, which may be wrong by hours.
 *
 * @param serverTimeMs Unix ms by the server's clock; null if unknown: then the token counts as new.
 */
export function remainingLifetimeMs(token: string, serverTimeMs: number | null): number | null {
  try {
    const base64 = (token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/");
    const body = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const { exp, iat } = JSON.parse(new TextDecoder().decode(body)) as { exp?: unknown; iat?: unknown };
    const startMs = serverTimeMs ?? (typeof iat === "number" ? iat * 1000 : NaN);
    const remainingMs = (typeof exp === "number" ? exp * 1000 : NaN) - startMs;
    return Number.isFinite(remainingMs) ? remainingMs : null;
  } catch {
    return null;
  }
}
