package presence.client;

import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.LoginRefused;
import presence.client.PresenceError.Unreachable;

/** Decides after each loss whether the client reconnects, and counts attempts. */
final class ReconnectPolicy {
    static final double FIRST_S = 1;
    private static final double MAX_S = 60;
    // After this long online the next reconnect is quick again. A phone that changes its network once a minute must
    // not wait longer each time; one whose sessions end immediately must.
    private static final double STABLE_S = 10;

    /**
     * Full jitter: the n-th attempt since the last stable connection, n from 0, waits up to min(60, 2^n) s (M. Brooker,
     * "Exponential Backoff and Jitter", 2015).
     */
    static final class Backoff {
        private int attempts;

        /** Returns the seconds to wait after a connection that had been logged in for so long. */
        double next(Chance chance, double onlineS, @Nullable Double retryAfterS) {
            attempts = onlineS >= STABLE_S ? 0 : attempts;
            double most = Math.min(MAX_S, FIRST_S * Math.pow(2, Math.min(attempts, 16)));
            attempts++;
            // Added to the server's time: otherwise all clients given the same one would return together.
            return (retryAfterS == null ? 0 : retryAfterS) + most * chance.next();
        }
    }

    /** Why a connection was lost or could not be made. */
    static final class Loss {
        final String reason;
        final String message;
        @Nullable final Refusal refusal; // the server's
        @Nullable final PresenceError failure; // to throw if the first attempt must succeed; null: Unreachable

        Loss(String reason, String message, @Nullable PresenceError failure) {
            this(reason, message, null, failure);
        }

        private Loss(String reason, String message, @Nullable Refusal refusal, @Nullable PresenceError failure) {
            this.reason = reason;
            this.message = message;
            this.refusal = refusal;
            this.failure = failure;
        }

        static Loss of(Refusal refusal) {
            return new Loss(refusal.reason, refusal.message, refusal, new LoginRefused(refusal));
        }

        @Nullable
        Double retryAfter() {
            return refusal == null ? null : refusal.retryAfter;
        }

        String text() {
            return message.isEmpty() ? reason : message;
        }
    }

    /** What follows: another attempt after some seconds, or the end. */
    static final class Outcome {
        final double waitS;
        @Nullable final PresenceError end;

        private Outcome(double waitS, @Nullable PresenceError end) {
            this.waitS = waitS;
            this.end = end;
        }
    }

    private final String server;
    private final boolean isPersistent;
    private final Chance chance;
    private final Backoff backoff = new Backoff();
    int logins; // how often the client came online
    int losses; // how often a connection was lost or could not be made

    /**
     * @param server its address, for people.
     * @param isPersistent whether a failed first attempt is repeated like any later one.
     */
    ReconnectPolicy(String server, boolean isPersistent, Chance chance) {
        this.server = server;
        this.isPersistent = isPersistent;
        this.chance = chance;
    }

    /** The connection is lost, after {@code onlineS} seconds of being logged in. */
    Outcome connectionLost(Loss loss, double onlineS) {
        losses++;
        if (!isPersistent && logins == 0) {
            return new Outcome(0, loss.failure != null ? loss.failure : new Unreachable(server, loss.text()));
        }
        return new Outcome(backoff.next(chance, onlineS, loss.retryAfter()), null);
    }

    /** The server has refused a token, after which another is tried. */
    Outcome tokenRefused(Loss loss) {
        losses++;
        return new Outcome(backoff.next(chance, 0, loss.retryAfter()), null);
    }

    /** The login was refused. {@code reconnect}: whether the server allows a return; null: its code decides. */
    Outcome loginRefused(Loss loss, @Nullable Boolean reconnect) {
        boolean mayReturn = reconnect != null ? reconnect
                : loss.refusal == null || Code.allowsReturn(loss.refusal.code, loss.refusal.retryAfter != null);
        return mayReturn || loss.failure == null ? connectionLost(loss, 0) : new Outcome(0, loss.failure);
    }
}
