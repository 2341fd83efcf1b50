package presence.client;

import java.util.List;
import java.util.Map;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/**
 * A user's presence. With several devices the user has the first status of {@code dnd}, {@code busy},
 * {@code online} and {@code away} that one of them has.
 */
public final class UserState {
    static final UserState UNKNOWN = of("unknown");
    static final UserState GONE = of("removed"); // of a user who has left the roster while the client was offline

    /**
     * {@code online}, {@code away}, {@code busy}, {@code dnd}, {@code offline}, {@code unknown}, or
     * {@code not_allowed} if this client may not see the user; treat any other as {@code unknown}.
     */
    @NotNull public final String status;
    /** When this status began, Unix milliseconds; null: not known. */
    @Nullable public final Long sinceMs;
    /** The last sign of life, Unix milliseconds; null while online, or if the server does not know. */
    @Nullable public final Long lastSeenMs;
    /** Of the event that led to this state; null: not known. */
    @Nullable public final String id;
    /** What the user shows: that of the latest login among the devices with this status. */
    @NotNull public final Map<String, Object> meta;
    /** Why the user is offline: the name of a code; null: not known, or not offline. */
    @Nullable public final String reason;
    /** By name; null: not asked for, or not known. */
    @Nullable public final List<DeviceState> devices;

    UserState(String status, @Nullable Long sinceMs, @Nullable Long lastSeenMs, @Nullable String id,
            Map<String, Object> meta, @Nullable String reason, @Nullable List<DeviceState> devices) {
        this.status = status;
        this.sinceMs = sinceMs;
        this.lastSeenMs = lastSeenMs;
        this.id = id;
        this.meta = meta;
        this.reason = reason;
        this.devices = devices;
    }

    private static UserState of(String status) {
        return new UserState(status, null, null, null, Packet.EMPTY, null, null);
    }

    /** Returns whether this is newer than another state of the same user; true if one of them has no id. */
    boolean isNewerThan(UserState other) {
        String[] mine = numbers(id);
        String[] others = numbers(other.id);
        if (mine == null || others == null) {
            return true;
        }
        int first = compare(mine[0], others[0]);
        return first > 0 || (first == 0 && compare(mine[1], others[1]) > 0);
    }

    /** Returns whether a state in an answer differs from the known one: by the ids, else by what is shown. */
    boolean differsFrom(UserState known) {
        if (id != null && known.id != null) {
            return isNewerThan(known);
        }
        boolean sameTime = lastSeenMs == null ? known.lastSeenMs == null : lastSeenMs.equals(known.lastSeenMs);
        return !(sameTime && status.equals(known.status) && meta.equals(known.meta));
    }

    /** Returns the two numbers of an id without leading zeros; null if it has another form. */
    @Nullable
    private static String[] numbers(@Nullable String id) {
        int dash = id == null ? -1 : id.indexOf('-');
        if (dash < 1 || dash > 20 || id.length() - dash - 1 < 1 || id.length() - dash - 1 > 20) {
            return null;
        }
        for (int at = 0; at < id.length(); at++) {
            if (at != dash && (id.charAt(at) < '0' || id.charAt(at) > '9')) {
                return null;
            }
        }
        return new String[] {stripped(id.substring(0, dash)), stripped(id.substring(dash + 1))};
    }

    private static String stripped(String digits) {
        int at = 0;
        while (at < digits.length() - 1 && digits.charAt(at) == '0') {
            at++;
        }
        return digits.substring(at);
    }

    private static int compare(String digits, String others) {
        return digits.length() != others.length() ? digits.length() - others.length() : digits.compareTo(others);
    }

    @Override
    public String toString() {
        return "UserState(" + status + ", since " + sinceMs + ", last seen " + lastSeenMs + ", " + meta + ")";
    }
}
