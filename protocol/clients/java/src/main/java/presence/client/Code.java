package presence.client;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/** Reason codes of errors, goodbyes and events. A server may send others, which an older client does not know. */
public enum Code {
    LOGIN(1), RETURNED(2), AWAY(3), BACK(4), UPDATED(5), WATCHED(6), REMOVED(7), ROOMS(8), LOGOUT(100), BACKGROUND(101),
    CLOSED(200, true), IDLE_TIMEOUT(201, true), SLOW_CONSUMER(202, true),
    REPLACED(300), KICKED(301), AUTH_EXPIRED(302, true), AUTH_FAILED(303), SESSION_LIMIT(304), BANNED(305),
    PROTOCOL_ERROR(310), RATE_LIMITED(311, true), LOGIN_TIMEOUT(312, true), UNSUPPORTED(313), RECIPIENT_OFFLINE(314),
    TOO_LARGE(315), NOT_LOGGED_IN(316), RECIPIENT_DISCONNECTED(317, true), NOT_ALLOWED(318),
    SERVER_DRAIN(400, true), SERVER_RESTART(401, true), NODE_DOWN(402, true), SERVER_ERROR(403, true), BUSY(404, true);

    private static final Map<Long, Code> BY_NUMBER = new HashMap<>();

    static {
        for (Code code : values()) {
            BY_NUMBER.put((long) code.number, code);
        }
    }

    /** The number on the wire. */
    public final int number;
    /** The name on the wire and in events, such as {@code idle_timeout}. */
    @NotNull public final String reason;
    final boolean reconnect;

    Code(int number) {
        this(number, false);
    }

    Code(int number, boolean reconnect) {
        this.number = number;
        this.reconnect = reconnect;
        this.reason = name().toLowerCase(Locale.ROOT);
    }

    @Nullable
    static Code of(long number) {
        return BY_NUMBER.get(number);
    }

    /** Whether a client may return after an error that ended its connection; after an unknown code it may. */
    static boolean allowsReturn(long number, boolean hasRetryAfter) {
        Code code = of(number);
        return code == null || code.reconnect || (hasRetryAfter && (code == BANNED || code == SESSION_LIMIT));
    }
}
