package presence.client;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import org.jetbrains.annotations.Nullable;

/**
 * One packet, in either direction. Values are null, Boolean, Long, BigInteger (above the largest Long), Double, String,
 * byte[], List and Map with String keys; an encoder also takes other numbers.
 */
final class Packet {
    static final Map<String, Object> EMPTY = Collections.emptyMap();
    static final long NO_ID = -1;
    private static final long FOREIGN = -2; // beyond the largest Long: none of a request of ours

    final Number kind; // perhaps one that this version does not know
    @Nullable final Number id;
    final Map<String, Object> payload;

    Packet(Number kind, @Nullable Number id, Map<String, Object> payload) {
        this.kind = kind;
        this.id = id;
        this.payload = payload;
    }

    /** Returns a packet without an id; keys and values alternate, and those that are null are left out. */
    static Packet of(int kind, Object... keysAndValues) {
        Map<String, Object> payload = new LinkedHashMap<>();
        for (int at = 0; at < keysAndValues.length; at += 2) {
            if (keysAndValues[at + 1] != null) {
                payload.put((String) keysAndValues[at], keysAndValues[at + 1]);
            }
        }
        return new Packet((long) kind, null, payload);
    }

    Packet withId(long newId) {
        return new Packet(kind, newId, payload);
    }

    Packet withPayload(Map<String, Object> newPayload) {
        return new Packet(kind, id, newPayload);
    }

    boolean is(int other) {
        return kind instanceof Long && kind.longValue() == other;
    }

    /** Returns the id of a request of this client; {@link #NO_ID} if there is none. */
    long id() {
        return id == null ? NO_ID : id instanceof Long ? id.longValue() : FOREIGN;
    }

    @Override
    public String toString() {
        return "[" + kind + ", " + id + ", " + payload + "]";
    }
}
