package presence.client;

import java.nio.charset.StandardCharsets;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.EncodeError;

/** Tokens as a client handles them: opaque texts, but for the expiry of a JSON Web Token. */
final class Tokens {
    private static final String ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    private Tokens() {}

    /** @throws EncodeError the text is no token of the protocol. */
    static void check(String token) {
        Codec.encode(Packet.of(Kind.UPDATE, "token", token), Codec.LIMIT_BYTES);
    }

    /**
     * Returns the seconds until a JSON Web Token expires; null for any other token, or if it does not say. Nothing is
     * verified, and the device's clock, which may be wrong by hours, is not used.
     *
     * @param serverTimeS Unix seconds by the server's clock; null: not known, and the token counts as new.
     */
    @Nullable
    static Double remainingLifetimeS(String token, @Nullable Double serverTimeS) {
        String[] parts = token.split("\\.", -1);
        String claims = parts.length < 2 ? null : decoded(parts[1]);
        Double expiresAt = claims == null ? null : number(claims, "exp");
        Double begin = serverTimeS != null || claims == null ? serverTimeS : number(claims, "iat");
        return expiresAt == null || begin == null ? null : (Double) (expiresAt - begin);
    }

    /** Returns base64url as text; null if it is none. ({@code java.util.Base64} is not in Android 21.) */
    @Nullable
    private static String decoded(String base64) {
        byte[] bytes = new byte[base64.length() * 3 / 4];
        int size = 0;
        int bits = 0;
        int held = 0;
        for (int at = 0; at < base64.length(); at++) {
            int value = ALPHABET.indexOf(base64.charAt(at));
            if (value < 0) {
                return null;
            }
            bits = bits << 6 | value;
            held += 6;
            if (held >= 8) {
                held -= 8;
                bytes[size++] = (byte) (bits >> held);
            }
        }
        return new String(bytes, 0, size, StandardCharsets.UTF_8);
    }

    /** Returns a number that is a value of the outermost object of a JSON text; null if there is none. */
    @Nullable
    private static Double number(String json, String key) {
        int depth = 0;
        Double found = null;
        for (int at = 0; at < json.length(); at++) {
            char c = json.charAt(at);
            if (c == '{' || c == '[') {
                depth++;
            } else if (c == '}' || c == ']') {
                depth--;
            } else if (c == '"') {
                int end = endOfString(json, at + 1);
                int colon = skipBlanks(json, end + 1);
                boolean isKey = depth == 1 && colon < json.length() && json.charAt(colon) == ':';
                if (isKey && json.substring(at + 1, end).equals(key)) {
                    found = numberAt(json, skipBlanks(json, colon + 1));
                }
                at = end;
            }
        }
        return found;
    }

    private static int endOfString(String json, int start) {
        int at = start;
        while (at < json.length() && json.charAt(at) != '"') {
            at += json.charAt(at) == '\\' ? 2 : 1;
        }
        return Math.min(at, json.length());
    }

    private static int skipBlanks(String json, int start) {
        int at = start;
        while (at < json.length() && json.charAt(at) <= ' ') {
            at++;
        }
        return at;
    }

    @Nullable
    private static Double numberAt(String json, int start) {
        int end = start;
        while (end < json.length() && "+-.eE0123456789".indexOf(json.charAt(end)) >= 0) {
            end++;
        }
        try {
            double value = Double.parseDouble(json.substring(Math.min(start, end), end));
            return Double.isInfinite(value) ? null : (Double) value;
        } catch (NumberFormatException error) {
            return null;
        }
    }
}
