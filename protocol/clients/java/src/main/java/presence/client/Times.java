package presence.client;

import org.jetbrains.annotations.Nullable;

/** Times of the protocol and of the machine are seconds; those of the public interface are milliseconds. */
final class Times {
    private Times() {}

    @Nullable
    static Double seconds(@Nullable Object value) {
        return value == null ? null : (Double) ((Number) value).doubleValue();
    }

    static long ms(double seconds) {
        return Math.round(seconds * 1000);
    }

    @Nullable
    static Long ms(@Nullable Double seconds) {
        return seconds == null ? null : (Long) ms(seconds.doubleValue());
    }

    /** Returns the text of an exception, for people. */
    static String text(Throwable error) {
        String name = error.getClass().getSimpleName();
        return error.getMessage() == null ? name : name + ": " + error.getMessage();
    }
}
