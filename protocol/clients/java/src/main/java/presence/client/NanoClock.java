package presence.client;

/** A monotonic clock. */
public interface NanoClock {
    /**
     * Returns nanoseconds since any moment. {@code System.nanoTime} does not count while a device sleeps, so on Android
     * pass {@code SystemClock::elapsedRealtimeNanos}: after a sleep the client then knows how old its connection is.
     */
    long nanos();
}
