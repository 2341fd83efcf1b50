package presence.client;

import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.EncodeError;
import presence.client.PresenceError.NoToken;
import presence.client.PresenceError.Unsupported;
import presence.client.ReconnectPolicy.Backoff;
import presence.client.ReconnectPolicy.Loss;

/**
 * The token of a client: which one to send, and when to ask the program for another. The only place that knows what was
 * asked for, sent, accepted and refused, before a login and while online:
 *
 * <pre>
 * state    input                                                     next state
 * IDLE     an attempt to log in begins, or the renewal is due        WANTED *
 * WANTED   a token                                                   SENT
 *          none, a useless one, a time-out                           IDLE
 * SENT     the server accepts or refuses it, or does not answer      IDLE
 * any      the connection is lost or could not be made               IDLE
 *
 * * only if the program gave a source; else the token of the login is sent as it is.
 * </pre>
 *
 * <p>The last token that the server has refused is not sent again, on no connection. After the refusal of a login the
 * next token has one try; only its own answer counts, because a connection that fails says nothing about it.
 */
final class LoginToken {
    static final double TIMEOUT_S = 30; // for the program's source
    private static final double RENEW_SHARE = 0.8; // of the lifetime left; the rest is for failing sources and servers
    private static final double RENEW_JITTER = 0.1; // up to this share earlier, so that clients do not renew together
    private static final double MIN_DELAY_S = 1;

    private enum Phase { IDLE, WANTED, SENT }

    private final PersistentState persistentState;
    private final ServerClock clock;
    private final boolean fetches;
    private final Chance chance;
    private boolean clockWasSet; // back, since the login; then it says nothing about tokens
    private Backoff backoff = new Backoff();
    private Phase phase = Phase.IDLE;
    private boolean isOnline;
    private String accepted = ""; // the newest one that the server has taken
    private String refused = ""; // the last one that it has refused
    @Nullable private PresenceError refusal; // of a login, if another token is to be tried
    String sent = ""; // the last one sent
    double dueAt = Double.POSITIVE_INFINITY; // while online, when to call tick

    LoginToken(PersistentState persistentState, ServerClock clock, boolean fetches, Chance chance) {
        this.persistentState = persistentState;
        this.clock = clock;
        this.fetches = fetches;
        this.chance = chance;
    }

    boolean isWanted() {
        return phase == Phase.WANTED;
    }

    /** An attempt to log in begins; returns whether it has to wait for the program's token. */
    boolean beginAttempt(double now) {
        if (fetches) {
            want(now);
        }
        return fetches;
    }

    /**
     * The program returned a token, or threw; returns why there is none to send, or null. Before a login the token is
     * then part of it; while online it is in {@code sent}.
     */
    @Nullable
    Loss offer(@Nullable Object token, double now) {
        phase = Phase.IDLE;
        try {
            if (!(token instanceof String)) {
                throw token instanceof Throwable ? (Throwable) token : new EncodeError("the source returned no token");
            }
            String text = (String) token;
            Tokens.check(text);
            String why = whyUseless(text, now);
            if (why != null) {
                return new Loss("no_token", why, refusal);
            }
            if (!isOnline) {
                persistentState.logInWith(Packet.of(Kind.UPDATE, "token", text).payload);
            }
            send(text);
            return null;
        } catch (Throwable error) {
            NoToken failure = new NoToken(error);
            return new Loss("no_token", failure.getMessage(), failure);
        }
    }

    /** The login is sent, with the token that the client has by now. */
    void loginSent() {
        String token = persistentState.token();
        send(token == null ? "" : token);
    }

    /**
     * The server refused the token of the login; returns whether the program may have a better one: only the first of
     * two refusals in a row, because if another token is refused too, it is not the token.
     */
    boolean loginRefused(@Nullable PresenceError failure) {
        refuse();
        boolean isFirst = refusal == null;
        refusal = failure;
        return fetches && isFirst;
    }

    /** The server granted the login; its clock is known by now. */
    void loginGranted(double now) {
        isOnline = true;
        clockWasSet = false;
        accepted(sent, now);
    }

    /** The server has taken this token, in a login or an update; it is renewed in time. */
    private void accepted(String token, double now) {
        phase = Phase.IDLE;
        accepted = token;
        refusal = null;
        backoff = new Backoff();
        Double leftS = fetches ? lifetimeS(token, now) : null;
        double share = RENEW_SHARE - RENEW_JITTER * (leftS == null ? 0 : chance.next());
        dueAt = leftS == null ? Double.POSITIVE_INFINITY : now + Math.max(MIN_DELAY_S, leftS * share);
    }

    /** The server has taken this token while online, from the program or from this. */
    void updateAccepted(String token, double now) {
        Double leftS = lifetimeS(token, now);
        if (leftS != null && leftS <= 0) {
            clockWasSet = true; // the server accepts what has expired by the time of the login
        }
        accepted(token, now);
    }

    /** The server refused the update with {@code sent}, or did not answer. */
    void updateFailed(PresenceError error, double now) {
        if (error instanceof Unsupported) { // it checks no tokens
            phase = Phase.IDLE;
            dueAt = Double.POSITIVE_INFINITY;
            return;
        }
        if (error.code == Code.AUTH_FAILED.number) {
            refuse();
        }
        postpone(now, error.retryAfterMs);
    }

    /** The connection is lost, or could not be made: nothing is wanted, and no answer will come. */
    void connectionLost() {
        phase = Phase.IDLE;
        isOnline = false;
        dueAt = Double.POSITIVE_INFINITY;
    }

    /** While online, asks for a token when it is time; postpones if the program takes too long. */
    void tick(double now) {
        if (now < dueAt) {
            return;
        }
        if (isWanted()) {
            postpone(now, null);
        } else {
            want(now);
        }
    }

    /** Asks the program again later. */
    void postpone(double now, @Nullable Long retryAfterMs) {
        phase = Phase.IDLE;
        Double retryAfterS = retryAfterMs == null ? null : (Double) (retryAfterMs / 1000.0);
        dueAt = now + MIN_DELAY_S + backoff.next(chance, 0, retryAfterS);
    }

    private void want(double now) {
        phase = Phase.WANTED;
        dueAt = now + TIMEOUT_S;
    }

    private void send(String token) {
        phase = Phase.SENT;
        sent = token;
        dueAt = Double.POSITIVE_INFINITY;
    }

    private void refuse() {
        phase = Phase.IDLE;
        refused = sent;
    }

    @Nullable
    private String whyUseless(String token, double now) {
        if (token.equals(refused)) {
            return "the token is the one that the server has refused";
        }
        if (isOnline) {
            return token.equals(accepted) ? "the server has it already" : null;
        }
        Double serverTimeS = clock.timeS(now);
        Double leftS = refusal == null || serverTimeS == null ? null : Tokens.remainingLifetimeS(token, serverTimeS);
        return leftS != null && leftS <= 0 ? "the token has expired" : null;
    }

    @Nullable
    private Double lifetimeS(String token, double now) {
        return Tokens.remainingLifetimeS(token, clockWasSet ? null : clock.timeS(now));
    }
}
