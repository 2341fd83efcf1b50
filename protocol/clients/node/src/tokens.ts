/** Where tokens come from, and until when they are good. Whether they are, the server says. */

import { encode } from "./codec.js";
import { Kind } from "./constants.js";

/** Makes a token: called before each login, and again before one ends. */
export type TokenSource = () => string | Promise<string>;

/**
 * Return what a source gave.
 *
 * @throws EncodeError it is no token by the rules of the protocol. An Error is thrown as it is.
 */
export function checkedToken(token: unknown): string {
  if (token instanceof Error) {
    throw token;
  }
  encode(Kind.UPDATE, null, { token: token ?? null });
  return token as string;
}

/**
 * Return for how long a token is good; null if that cannot be read in it: one that is no JSON Web Token is
 * good, too. Nothing is verified, and no clock of this device is asked, which may be wrong by hours.
 *
 * @param serverTimeMs Unix ms by the server's clock; null: it is not known, and the token counts as new.
 */
export function remainingLifetimeMs(token: string, serverTimeMs: number | null): number | null {
  try {
    const body = Buffer.from(token.split(".")[1] ?? "", "base64url").toString("utf8");
    const { exp, iat } = JSON.parse(body) as { exp?: unknown; iat?: unknown };
    const startMs = serverTimeMs ?? (typeof iat === "number" ? iat * 1000 : NaN);
    const remainingMs = (typeof exp === "number" ? exp * 1000 : NaN) - startMs;
    return Number.isFinite(remainingMs) ? remainingMs : null;
  } catch {
    return null;
  }
}
