package presence.client;

import java.util.Map;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.Banned;
import presence.client.PresenceError.Busy;
import presence.client.PresenceError.Ended;
import presence.client.PresenceError.Kicked;
import presence.client.PresenceError.LimitReached;
import presence.client.PresenceError.NotAllowed;
import presence.client.PresenceError.RecipientDisconnected;
import presence.client.PresenceError.RecipientOffline;
import presence.client.PresenceError.Replaced;
import presence.client.PresenceError.RequestError;
import presence.client.PresenceError.RequestFailed;
import presence.client.PresenceError.ServerFailed;
import presence.client.PresenceError.SessionLimit;
import presence.client.PresenceError.Unsupported;

/** What an error or a goodbye of the server says, and the exception that it becomes. */
final class Refusal {
    final int code;
    final String reason;
    final String message; // for people
    @Nullable final Double retryAfter; // seconds

    Refusal(Code code, String message) {
        this(code.number, code.reason, message, null);
    }

    private Refusal(int code, String reason, String message, @Nullable Double retryAfter) {
        this.code = code;
        this.reason = reason;
        this.message = message;
        this.retryAfter = retryAfter;
    }

    /** Returns what the payload of a valid error or goodbye says. */
    static Refusal of(Map<String, Object> payload) {
        int code = (int) Math.min(Integer.MAX_VALUE, ((Number) payload.get("code")).doubleValue());
        String message = (String) payload.get("message");
        return new Refusal(code, (String) payload.get("reason"), message == null ? "" : message,
                Times.seconds(payload.get("retry_after")));
    }

    boolean is(Code other) {
        return code == other.number;
    }

    RequestError ofRequest() {
        Code known = Code.of(code);
        if (known == null) {
            return new RequestFailed(this);
        }
        switch (known) {
            case UNSUPPORTED: return new Unsupported(this);
            case RECIPIENT_OFFLINE: return new RecipientOffline(this);
            case RECIPIENT_DISCONNECTED: return new RecipientDisconnected(this);
            case NOT_ALLOWED: return new NotAllowed(this);
            case TOO_LARGE: return new LimitReached(this);
            case SERVER_ERROR: return new ServerFailed(this);
            case BUSY:
            case RATE_LIMITED: return new Busy(this);
            default: return new RequestFailed(this);
        }
    }

    /** Returns the end for good of a logged-in connection. */
    Ended ofConnection() {
        Code known = Code.of(code);
        if (known == null) {
            return new Ended(this);
        }
        switch (known) {
            case REPLACED: return new Replaced(this);
            case KICKED: return new Kicked(this);
            case SESSION_LIMIT: return new SessionLimit(this);
            case BANNED: return new Banned(this);
            default: return new Ended(this);
        }
    }

    @Override
    public String toString() {
        return reason + " (" + code + ")" + (message.isEmpty() ? "" : ": " + message);
    }
}
