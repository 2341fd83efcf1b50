package presence.client;

import org.jetbrains.annotations.Nullable;

/** The clock of the last server, as its answer to the login gave it. */
final class ServerClock {
    @Nullable private Double offsetS; // from the machine's time to Unix seconds

    /** Notes the server's Unix milliseconds; null: it did not say. */
    void set(@Nullable Double timeMs, double now) {
        offsetS = timeMs == null ? null : (Double) (timeMs / 1000 - now);
    }

    /** Returns the Unix seconds of the server; null if they are not known. */
    @Nullable
    Double timeS(double now) {
        return offsetS == null ? null : (Double) (now + offsetS);
    }
}
