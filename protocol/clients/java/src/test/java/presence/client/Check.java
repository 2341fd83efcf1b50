package presence.client;

import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;

/** Assertions. */
final class Check {
    interface Action {
        void run() throws Exception;
    }

    private Check() {}

    static void that(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    /** Compares by {@link #exact}. */
    static void equal(Object expected, Object actual) {
        equal(expected, actual, "");
    }

    static void equal(Object expected, Object actual, String what) {
        String one = exact(expected);
        String other = exact(actual);
        that(one.equals(other), what + ": expected " + shortened(one) + ", got " + shortened(other));
    }

    static <E extends Throwable> E fails(Class<E> kind, Action action) {
        try {
            action.run();
        } catch (Throwable error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw new AssertionError("expected " + kind.getSimpleName() + ", got " + error, error);
        }
        throw new AssertionError("expected " + kind.getSimpleName());
    }

    /** Returns text that differs for different values; 1, 1.0 and true are three. */
    static String exact(Object value) {
        if (value instanceof Packet) {
            Packet packet = (Packet) value;
            return exact(packet.kind) + " " + exact(packet.id) + " " + exact(packet.payload);
        } else if (value instanceof Map) {
            Map<String, String> sorted = new TreeMap<>();
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                sorted.put(exact(each.getKey()), exact(each.getValue()));
            }
            return sorted.toString();
        } else if (value instanceof byte[]) {
            return "bytes " + Vectors.hex((byte[]) value);
        } else if (value instanceof Collection) {
            StringBuilder text = new StringBuilder("[");
            for (Object each : (Collection<?>) value) {
                text.append(exact(each)).append("; ");
            }
            return text.append(']').toString();
        }
        boolean isInteger = value instanceof Integer || value instanceof Long || value instanceof java.math.BigInteger;
        return isInteger ? "integer " + value : value == null ? "null" : value.getClass().getSimpleName() + " " + value;
    }

    private static String shortened(String text) {
        return text.length() < 2000 ? text : text.substring(0, 2000) + "...";
    }
}
