package presence.client;

import org.jetbrains.annotations.Nullable;

/**
 * The keepalives of one logged-in connection, and the detection of a dead server.
 *
 * <p>The first keepalive is sent at a random moment of the first interval, so that clients that connected together do
 * not send together. The first of every {@code askEvery} asks for an answer; after it something must arrive within an
 * interval, or the server counts as dead. The interval begins when the keepalive is written: a process that was held
 * up between the decision to send and the write has not waited for the server.
 */
final class Keepalives {
    static final double SHARE = 0.4; // of the idle time-out, where the server names no interval
    private static final double JITTER = 0.1; // each comes up to this share of the interval early, never late
    private static final double WRITE_GRACE_S = 0.05; // for a keepalive that a pause held up before it was written
    private static final double MIN_INTERVAL_S = 0.02; // whatever the server asks for, a client must not flood it
    private static final double PROBE_S = 5; // for the answer to a probe: a radio that has just woken up

    private final int askEvery;
    private double intervalS;
    private double grantedS;
    private double questionSentAt;
    private boolean isWritten; // the keepalive that awaits an answer
    private boolean hadGrace;
    private boolean isProbe;
    private long sent;
    double nextAt;
    double deadAt = Double.POSITIVE_INFINITY; // when the server counts as dead, while an answer is due
    long unansweredId = Packet.NO_ID; // of the keepalive that awaits an answer
    @Nullable Double roundTripS; // of the last answered keepalive

    Keepalives(double intervalS, int askEvery, double now, Chance chance) {
        this.askEvery = askEvery;
        this.intervalS = this.grantedS = Math.max(MIN_INTERVAL_S, intervalS);
        this.nextAt = now + this.intervalS * chance.next();
    }

    /** Sends keepalives at another interval from now on, which the server has granted. */
    void setInterval(double seconds, double now) {
        intervalS = grantedS = Math.max(MIN_INTERVAL_S, seconds);
        nextAt = Math.min(nextAt, now + intervalS);
    }

    /** Sends keepalives at this interval, unless the present one is shorter, until the server decides. */
    void shortenInterval(double seconds, double now) {
        intervalS = Math.max(MIN_INTERVAL_S, Math.min(intervalS, seconds));
        nextAt = Math.min(nextAt, now + intervalS);
    }

    /** The server has refused another interval. */
    void restoreInterval(double now) {
        setInterval(grantedS, now);
    }

    /** The connection may be dead: the next keepalive is due, asks, and has to be answered soon. */
    void probe(double now) {
        nextAt = now;
        isProbe = true;
    }

    /** Counts a keepalive that is sent now; returns whether it should carry an id. Missed ones are not made up for. */
    boolean countSent(double now, Chance chance) {
        boolean asks = (isProbe || sent % askEvery == 0) && unansweredId == Packet.NO_ID;
        if (isProbe && !asks) {
            deadAt = Math.min(deadAt, now + answerWithin()); // the one before it is the question
        }
        isProbe = isProbe && asks;
        sent++;
        nextAt = now + intervalS * (1 - JITTER * chance.next());
        return asks;
    }

    /** The keepalive just counted carries this id. */
    void expectAnswer(long id, double now) {
        unansweredId = id;
        isWritten = hadGrace = false;
        questionSentAt = now;
        deadAt = now + answerWithin();
    }

    private double answerWithin() {
        return isProbe ? Math.min(PROBE_S, intervalS) : intervalS;
    }

    /** Everything was written, and with it the keepalive that asks for an answer. */
    void noteWritten(double now) {
        if (unansweredId != Packet.NO_ID && !isWritten) {
            isWritten = true;
            questionSentAt = now;
            deadAt = now + answerWithin();
        }
    }

    /** The server is alive, although the answer may come behind other packets. */
    void noteReceived(double now) {
        if (unansweredId != Packet.NO_ID) {
            deadAt = now + intervalS;
        }
    }

    void noteAnswered(double now) {
        roundTripS = now - questionSentAt;
        unansweredId = Packet.NO_ID;
        isProbe = false;
        deadAt = Double.POSITIVE_INFINITY;
    }

    /** Returns whether the server counts as dead; a keepalive not yet written gets a moment for that first. */
    boolean isDead(double now) {
        if (now < deadAt) {
            return false;
        }
        if (isWritten || hadGrace) {
            return true;
        }
        hadGrace = true;
        deadAt = now + WRITE_GRACE_S;
        return false;
    }
}
