package presence.client;

import org.jetbrains.annotations.Nullable;

/** Counters of a client since its start. */
public final class Statistics {
    /** Logins granted. */
    public final int logins;
    /** Connections lost, and failed attempts. */
    public final int losses;
    /** Keepalives sent. */
    public final long keepalives;
    /** Of the last answered keepalive on this connection, milliseconds; null before one. */
    @Nullable public final Double roundTripMs;
    /** Pushes queued for the program. */
    public final int pushesWaiting;
    /** Changes dropped from a full queue because a later one of the user was queued. */
    public final long pushesSuperseded;
    /** Oldest pushes of a full queue dropped, as {@link Push.Dropped} tells the program. */
    public final long pushesDropped;

    Statistics(int logins, int losses, long keepalives, @Nullable Double roundTripMs, Inbox inbox) {
        this.logins = logins;
        this.losses = losses;
        this.keepalives = keepalives;
        this.roundTripMs = roundTripMs;
        this.pushesWaiting = inbox.size();
        this.pushesSuperseded = inbox.superseded();
        this.pushesDropped = inbox.dropped();
    }
}
