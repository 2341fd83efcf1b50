package presence.client;

import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/**
 * What a server, a network or a token can cause; the nested classes say what it was. Mistakes of the program are
 * {@link IllegalArgumentException} and {@link IllegalStateException}, except arguments that the protocol forbids:
 * {@link EncodeError}.
 */
public class PresenceError extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** The reason code of the server, perhaps unknown to {@link Code}; 0: the error is none of the server's. */
    public final int code;
    /** The name of the code; empty if there is none. */
    @NotNull public final String reason;
    /** The server's own words, for people; empty if there are none. */
    @NotNull public final String detail;
    /** How long to wait before another try, milliseconds; null: the server named no time. */
    @Nullable public final Long retryAfterMs;

    PresenceError(@NotNull String message) {
        this(message, 0, "", "", null);
    }

    PresenceError(@NotNull Refusal refusal) {
        this(refusal.toString(), refusal.code, refusal.reason, refusal.message, Times.ms(refusal.retryAfter));
    }

    private PresenceError(String message, int code, String reason, String detail, @Nullable Long retryAfterMs) {
        super(message);
        this.code = code;
        this.reason = reason;
        this.detail = detail;
        this.retryAfterMs = retryAfterMs;
    }

    /** The first attempt failed: no connection, no answer, or an invalid one. */
    public static final class Unreachable extends PresenceError {
        Unreachable(String server, String why) {
            super("cannot reach " + server + ": " + why);
        }
    }

    /** The first attempt got no token from the program; the cause is its exception. */
    public static final class NoToken extends PresenceError {
        NoToken(Throwable cause) {
            super("no token: " + Times.text(cause));
            initCause(cause);
        }
    }

    /** An argument breaks a rule of the protocol; nothing was sent. */
    public static final class EncodeError extends PresenceError {
        EncodeError(String message) {
            super(message);
        }
    }

    /** One request failed; the client goes on. */
    public static class RequestError extends PresenceError {
        RequestError(String message) {
            super(message);
        }

        RequestError(Refusal refusal) {
            super(refusal);
        }
    }

    /** Not logged in at the moment; nothing was sent. */
    public static final class NotConnected extends RequestError {
        NotConnected(String message) {
            super(message);
        }
    }

    /** The request may or may not have been carried out: a message sent again may be delivered twice. */
    public static class Uncertain extends RequestError {
        Uncertain(String message) {
            super(message);
        }

        Uncertain(Refusal refusal) {
            super(refusal);
        }
    }

    /** The connection broke before the answer. */
    public static final class ConnectionLost extends Uncertain {
        ConnectionLost(String message) {
            super(message);
        }
    }

    /** No answer came in time. */
    public static final class RequestTimeout extends Uncertain {
        RequestTimeout(String message) {
            super(message);
        }
    }

    /** The server failed while carrying out the request (403). */
    public static final class ServerFailed extends Uncertain {
        ServerFailed(Refusal refusal) {
            super(refusal);
        }
    }

    /** The server refused a request; it did nothing. */
    public static class RequestFailed extends RequestError {
        RequestFailed(Refusal refusal) {
            super(refusal);
        }
    }

    /** This server does not support that kind of request (313). */
    public static final class Unsupported extends RequestFailed {
        Unsupported(Refusal refusal) {
            super(refusal);
        }
    }

    /** The recipient of a message has no session (314). */
    public static final class RecipientOffline extends RequestFailed {
        RecipientOffline(Refusal refusal) {
            super(refusal);
        }
    }

    /** The recipient has lost its connection and may return until {@link #retryAfterMs}; nothing was delivered (317). */
    public static final class RecipientDisconnected extends RequestFailed {
        RecipientDisconnected(Refusal refusal) {
            super(refusal);
        }
    }

    /** This user may not see the recipient of a message, or be in or watch a room (318). */
    public static final class NotAllowed extends RequestFailed {
        NotAllowed(Refusal refusal) {
            super(refusal);
        }
    }

    /** More than the server allows, as of watches on one connection; nothing was done (315). */
    public static final class LimitReached extends RequestFailed {
        LimitReached(Refusal refusal) {
            super(refusal);
        }
    }

    /** The server is at its limits (404), or this client asks too often (311); nothing was done. */
    public static final class Busy extends RequestFailed {
        Busy(Refusal refusal) {
            super(refusal);
        }
    }

    /** The client has ended and does not reconnect by itself. */
    public static class Ended extends PresenceError {
        Ended(Refusal refusal) {
            super(refusal);
        }
    }

    /** The server refused the login. */
    public static final class LoginRefused extends Ended {
        LoginRefused(Refusal refusal) {
            super(refusal);
        }
    }

    /** The same device of the same user has logged in elsewhere (300). */
    public static final class Replaced extends Ended {
        Replaced(Refusal refusal) {
            super(refusal);
        }
    }

    /** An operator ended the user's sessions (301). */
    public static final class Kicked extends Ended {
        Kicked(Refusal refusal) {
            super(refusal);
        }
    }

    /** The user has too many sessions, and this one made room for a newer one (304). */
    public static final class SessionLimit extends Ended {
        SessionLimit(Refusal refusal) {
            super(refusal);
        }
    }

    /** An operator keeps the user or this device out, and the ban has no end (305). */
    public static final class Banned extends Ended {
        Banned(Refusal refusal) {
            super(refusal);
        }
    }
}
