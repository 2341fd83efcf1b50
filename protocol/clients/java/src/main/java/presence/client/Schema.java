package presence.client;

import java.math.BigInteger;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jetbrains.annotations.Nullable;

/**
 * The payload of each kind: a table of keys, and the checks that it names. Unlisted keys are ignored, so that a newer
 * server can send more. Listed keys must have the right type; nil is not "absent".
 */
final class Schema {
    static final int MAX_UIDS = 500;
    static final int MAX_ROOMS = 16;
    static final int MAX_WATCHED_ROOMS = 64;
    static final int MAX_TOKEN_BYTES = 768;
    private static final int MAX_PASS_BYTES = 4096;
    private static final int MAX_CONFIRM_S = 30;
    private static final int MAX_META_BYTES = 256;
    private static final int MAX_META_TEXT_BYTES = 512;
    private static final int MAX_META_DEPTH = 8;
    private static final int TEXT_BYTES_OF_FLOAT = 24; // the longest, so that languages need not write them alike
    private static final BigInteger MAX_UINT = BigInteger.ONE.shiftLeft(64).subtract(BigInteger.ONE);

    /** Throws if the value of that name is wrong. */
    private interface Check {
        void check(String name, @Nullable Object value) throws ProtocolError;
    }

    private static final class Field {
        final String name;
        final Check check;
        final boolean isRequired;
        @Nullable final String unless; // the key whose presence lifts the requirement
        final String[] excludes; // keys that must be absent, empty or false beside it

        Field(String name, Check check, boolean isRequired, @Nullable String unless, String... excludes) {
            this.name = name;
            this.check = check;
            this.isRequired = isRequired;
            this.unless = unless;
            this.excludes = excludes;
        }
    }

    private static final Check UID = text(128, true);
    private static final Check UIDS = listOf(UID, MAX_UIDS);
    private static final Check CLASS = text(32, true);
    private static final Check ROOM = text(64, true);
    private static final Check ROOMS = listOf(ROOM, MAX_ROOMS);
    private static final Check TOKEN = text(MAX_TOKEN_BYTES, false);
    private static final Check HIDE = listOf(CLASS, 8);
    private static final Check STRING = (name, value) -> require(value instanceof String, name, "must be a string");
    private static final Check BOOLEAN = (name, value) -> require(value instanceof Boolean, name, "must be a boolean");
    private static final Check ANY = (name, value) -> {};
    private static final Check UINT =
            (name, value) -> require(isUint(value), name, "must be an unsigned integer");
    private static final Check INTEGER = (name, value) -> require(isInteger(value), name, "must be an integer");
    private static final Check SECONDS = (name, value) ->
            require(value instanceof Number && ((Number) value).doubleValue() > 0, name, "must be a number above 0");
    private static final Check DELAY = (name, value) ->
            require(value instanceof Number && ((Number) value).doubleValue() >= 0, name, "must be at least 0");
    private static final Check CONFIRM = (name, value) -> {
        SECONDS.check(name, value);
        require(((Number) value).doubleValue() <= MAX_CONFIRM_S, name, "must be at most " + MAX_CONFIRM_S);
    };
    private static final Check CODE =
            (name, value) -> require(value instanceof String || isUint(value), name, "must be a number or a string");
    private static final Check STATUS = oneOf("online", "away", "busy", "dnd", "invisible");
    private static final Check SCOPE = oneOf("session", "user");
    private static final Check META = Schema::checkMeta;
    private static final Field[] DEVICE = {
        required("device", STRING), required("status", STRING), required("since_ms", UINT),
        optional("class", STRING), optional("meta", META),
    };
    private static final Check DEVICES = listOf((name, value) -> checkMap(name, value, DEVICE), Integer.MAX_VALUE);
    // Any status: one that a later server adds must not end an older client's connection.
    private static final Field[] STATE = {
        required("status", STRING), optional("since_ms", orNil(UINT)), optional("last_seen_ms", orNil(UINT)),
        optional("id", orNil(STRING)), optional("meta", META), optional("reason", STRING), optional("devices", DEVICES),
    };
    private static final Check[] ROW = {
        UID, orNil(STRING), orNil(CODE), orNil(UINT), orNil(UINT), orNil(INTEGER), orNil(INTEGER), orNil(META),
        orNil(DEVICES),
    };
    private static final Check[] ROOM_ROW = {ROOM, orNil(UINT), UIDS, UIDS};
    private static final Check ROOM_ROWS = listOf(Schema::checkRoomRow, MAX_WATCHED_ROOMS);
    private static final Field WATCHED_ROOMS = new Field(
            "rooms", listOf(ROOM, MAX_WATCHED_ROOMS), false, null, "uids", "detail", "pass", "roster");

    private static final Map<Integer, Field[]> FIELDS = new HashMap<>();

    static {
        define(Kind.LOGIN, new Field("uid", UID, true, "token"), optional("device", text(64, true)),
                optional("class", CLASS), optional("token", TOKEN), optional("idle_timeout", SECONDS),
                optional("meta", META), optional("private", META), optional("status", STATUS),
                optional("until_ms", UINT), optional("scope", SCOPE), optional("hide", HIDE),
                optional("quiet", BOOLEAN), optional("v", UINT), optional("confirms", BOOLEAN),
                optional("batch", BOOLEAN), optional("rooms", ROOMS));
        define(Kind.MESSAGE, required("to", UID), required("body", ANY), optional("confirm", CONFIRM));
        define(Kind.KEEPALIVE, optional("confirmed", listOf(UINT, MAX_UIDS)));
        define(Kind.LOGOUT, optional("reason", oneOf("logout", "background")));
        define(Kind.QUERY, required("uids", UIDS), optional("detail", BOOLEAN), WATCHED_ROOMS);
        define(Kind.WATCH, required("uids", UIDS), optional("detail", BOOLEAN),
                optional("pass", text(MAX_PASS_BYTES, false)), optional("roster", BOOLEAN), WATCHED_ROOMS);
        define(Kind.UNWATCH, optional("uids", UIDS), optional("roster", BOOLEAN), WATCHED_ROOMS);
        define(Kind.UPDATE, optional("meta", META), optional("private", META), optional("token", TOKEN),
                optional("status", STATUS), optional("until_ms", UINT), optional("scope", SCOPE),
                optional("hide", HIDE), optional("idle_timeout", SECONDS), optional("quiet", BOOLEAN),
                optional("rooms", ROOMS), optional("join", ROOMS), optional("leave", ROOMS));
        define(Kind.OK, optional("session", STRING), optional("idle_timeout", SECONDS),
                optional("keepalive", SECONDS), optional("time_ms", UINT), optional("v", UINT),
                optional("delivered", UINT), optional("confirmed", UINT), optional("by_app", UINT),
                optional("unconfirmed", UINT), optional("scope", STRING), optional("hide", HIDE),
                optional("presence", Schema::checkStates), optional("states", rows(false)), optional("roster", UINT),
                optional("joined", ROOMS), optional("rooms", ROOM_ROWS),
                optional("later", listOf(ROOM, MAX_WATCHED_ROOMS)));
        define(Kind.ERROR, required("code", UINT), required("reason", STRING), required("message", STRING),
                optional("retry_after", DELAY));
        Field[] presence = Arrays.copyOf(STATE, STATE.length + 2);
        presence[STATE.length] = required("uid", UID);
        presence[STATE.length + 1] = required("reason", STRING);
        define(Kind.PRESENCE, presence);
        define(Kind.DELIVER, required("from", UID), required("body", ANY), required("at_ms", UINT),
                optional("confirm", UINT));
        define(Kind.GOODBYE, required("code", UINT), required("reason", STRING), required("reconnect", BOOLEAN),
                optional("retry_after", DELAY), optional("message", STRING));
        define(Kind.CHANGES, required("changes", rows(true)));
        define(Kind.ROOMS, required("rooms", ROOM_ROWS));
    }

    private Schema() {}

    /** Checks a payload against the table; unknown kinds may hold anything. */
    static void check(double kind, Map<String, Object> payload) throws ProtocolError {
        Field[] fields = kind <= Kind.ROOMS ? FIELDS.get((int) kind) : null;
        if (fields != null) {
            checkFields(payload, fields);
        }
    }

    static boolean isUint(@Nullable Object value) {
        return isInteger(value) && (value instanceof BigInteger || (Long) value >= 0);
    }

    private static boolean isInteger(@Nullable Object value) {
        return value instanceof Long || value instanceof BigInteger;
    }

    private static void define(int kind, Field... fields) {
        FIELDS.put(kind, fields);
    }

    private static Field required(String name, Check check) {
        return new Field(name, check, true, null);
    }

    private static Field optional(String name, Check check) {
        return new Field(name, check, false, null);
    }

    private static void require(boolean isRight, String name, String rule) throws ProtocolError {
        if (!isRight) {
            throw ProtocolError.wrong(name + " " + rule);
        }
    }

    private static void limit(boolean isWithin, String name, int most, String what) throws ProtocolError {
        if (!isWithin) {
            throw ProtocolError.tooLarge(name + " has more than " + most + " " + what);
        }
    }

    private static void checkFields(Map<?, ?> payload, Field[] fields) throws ProtocolError {
        for (Field field : fields) {
            if (payload.containsKey(field.name)) {
                field.check.check(field.name, payload.get(field.name));
                for (String other : field.excludes) {
                    require(isEmpty(payload.get(other)), field.name, "excludes " + other);
                }
            } else if (field.isRequired && !(field.unless != null && payload.containsKey(field.unless))) {
                throw ProtocolError.wrong(field.name + " is missing");
            }
        }
    }

    private static boolean isEmpty(@Nullable Object value) {
        return value == null || Boolean.FALSE.equals(value)
                || (value instanceof Collection && ((Collection<?>) value).isEmpty());
    }

    private static void checkMap(String name, @Nullable Object value, Field[] fields) throws ProtocolError {
        require(value instanceof Map, name, "must be a map");
        checkFields((Map<?, ?>) value, fields);
    }

    /** Makes the check of names, which have no blanks, and of tokens, which are opaque. */
    private static Check text(int maxBytes, boolean isName) {
        return (name, value) -> {
            require(value instanceof String && !((String) value).isEmpty(), name, "must be a string, not empty");
            String text = (String) value;
            limit(text.length() <= maxBytes && utf8Bytes(text) <= maxBytes, name, maxBytes, "bytes");
            for (int at = 0; isName && at < text.length(); at++) {
                require(!isForbidden(text.charAt(at)), name, "holds a control character, white space, { or }");
            }
        };
    }

    /** Whether a character is a control, white space of any script, or a brace. */
    private static boolean isForbidden(char c) {
        return c <= ' ' || (c >= 0x7f && c <= 0xa0) || c == '{' || c == '}' || c == 0x1680
                || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f
                || c == 0x3000;
    }

    /** Returns the size of valid text in UTF-8; each half of a surrogate pair counts two of the four bytes. */
    private static int utf8Bytes(String text) {
        int bytes = 0;
        for (int at = 0; at < text.length(); at++) {
            char c = text.charAt(at);
            bytes += c < 0x80 ? 1 : c < 0x800 || Character.isSurrogate(c) ? 2 : 3;
        }
        return bytes;
    }

    private static Check oneOf(String... choices) {
        List<String> known = Arrays.asList(choices);
        return (name, value) -> require(value instanceof String && known.contains(value), name, "must be of " + known);
    }

    private static Check orNil(Check check) {
        return (name, value) -> {
            if (value != null) {
                check.check(name, value);
            }
        };
    }

    private static Check listOf(Check check, int most) {
        return (name, value) -> {
            require(value instanceof List, name, "must be a list");
            limit(((List<?>) value).size() <= most, name, most, "elements");
            for (Object each : (List<?>) value) {
                check.check(name, each);
            }
        };
    }

    private static Check rows(boolean hasCode) {
        return listOf((name, row) -> checkRow(name, row, hasCode), MAX_UIDS);
    }

    private static void checkRow(String name, @Nullable Object value, boolean hasCode) throws ProtocolError {
        List<?> row = value instanceof String ? Arrays.asList(value) : value instanceof List ? (List<?>) value : null;
        require(row != null && !row.isEmpty(), name, "has a row that is neither a uid nor an array with one");
        checkElements(name, row, ROW);
        Object[] elements = row.toArray(new Object[Math.max(row.size(), ROW.length)]);
        require(!(hasCode && elements[2] == null), name, "has a row without a code");
        require((elements[3] == null) == (elements[4] == null), name, "has a row with half of an id");
        BigInteger since = elements[5] == null ? BigInteger.ZERO : big(elements[3]).add(big(elements[5]));
        require(isTime(since) && isTime(since.subtract(big(elements[6]))), name, "has a row with an impossible time");
    }

    private static void checkRoomRow(String name, @Nullable Object row) throws ProtocolError {
        require(row instanceof List && ((List<?>) row).size() >= 2, name, "is no array with a room and a count");
        checkElements(name, (List<?>) row, ROOM_ROW);
    }

    private static void checkElements(String name, List<?> row, Check[] checks) throws ProtocolError {
        for (int at = 0; at < Math.min(row.size(), checks.length); at++) {
            checks[at].check(name, row.get(at));
        }
    }

    /** Returns an integer of any size, 0 for nil. */
    static BigInteger big(@Nullable Object integer) {
        return integer instanceof BigInteger ? (BigInteger) integer
                : BigInteger.valueOf(integer == null ? 0 : ((Number) integer).longValue());
    }

    private static boolean isTime(BigInteger value) {
        return value.signum() >= 0 && value.compareTo(MAX_UINT) <= 0;
    }

    private static void checkStates(String name, @Nullable Object value) throws ProtocolError {
        require(value instanceof Map, name, "must be a map");
        limit(((Map<?, ?>) value).size() <= MAX_UIDS, name, MAX_UIDS, "states");
        for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
            UID.check(name, each.getKey());
            checkMap(name, each.getValue(), STATE);
        }
    }

    private static void checkMeta(String name, @Nullable Object value) throws ProtocolError {
        require(value instanceof Map, name, "must be a map");
        require(!isDeeper(value, MAX_META_DEPTH), name, "is nested more than " + MAX_META_DEPTH + " deep");
        int packedBytes = new MessagePackWriter().value(value).size(); // whatever encoding the sender chose
        limit(packedBytes <= MAX_META_BYTES, name, MAX_META_BYTES, "bytes packed");
        limit(textBytes(value) <= MAX_META_TEXT_BYTES, name, MAX_META_TEXT_BYTES, "bytes as text");
    }

    private static boolean isDeeper(@Nullable Object value, int levels) {
        Collection<?> inner = value instanceof Map ? ((Map<?, ?>) value).values()
                : value instanceof Collection ? (Collection<?>) value : null;
        if (inner == null || levels == 0) {
            return inner != null;
        }
        for (Object each : inner) {
            if (isDeeper(each, levels - 1)) {
                return true;
            }
        }
        return false;
    }

    /** Returns the size of a value as JSON text, as SPEC.md counts it. */
    private static int textBytes(@Nullable Object value) {
        if (value instanceof String) {
            return textBytes((String) value);
        } else if (value instanceof Map) {
            Map<?, ?> map = (Map<?, ?>) value;
            int size = 2 + Math.max(0, map.size() - 1);
            for (Map.Entry<?, ?> each : map.entrySet()) {
                boolean isQuoted = map.size() == 1 && ((String) each.getKey()).startsWith("$");
                size += textBytes((String) each.getKey()) + 1 + textBytes(each.getValue()) + (isQuoted ? 1 : 0);
            }
            return size;
        } else if (value instanceof Collection) {
            int size = 2 + Math.max(0, ((Collection<?>) value).size() - 1);
            for (Object each : (Collection<?>) value) {
                size += textBytes(each);
            }
            return size;
        } else if (value instanceof byte[]) {
            return "{\"$bin\":\"\"}".length() + 2 * ((byte[]) value).length;
        }
        return value instanceof Double ? TEXT_BYTES_OF_FLOAT : String.valueOf(value).length();
    }

    private static int textBytes(String text) {
        int size = utf8Bytes(text) + 2;
        for (int at = 0; at < text.length(); at++) {
            char c = text.charAt(at);
            size += "\"\\\b\t\n\f\r".indexOf(c) >= 0 ? 1 : c < ' ' || c == 0x7f ? 5 : 0;
        }
        return size;
    }
}
