package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.Map;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/** A change of what a session shows, for {@link Client#update} and {@link Client#logInWith}. Not thread-safe. */
public final class Update {
    final Map<String, Object> fields = new LinkedHashMap<>();
    @Nullable private Date until;
    private long forMs;

    /** Shown to others with the user's state, at most 256 bytes packed; an empty map removes it. */
    @NotNull
    public Update meta(@NotNull Map<String, ?> meta) {
        return set("meta", meta);
    }

    /** As {@link #meta}, for the application's backend only ({@code private} of the protocol). */
    @NotNull
    public Update privateMeta(@NotNull Map<String, ?> meta) {
        return set("private", meta);
    }

    /** A new token, before the old one expires. */
    @NotNull
    public Update token(@NotNull String token) {
        return set("token", token);
    }

    /** {@code online}, {@code away}, {@code busy}, {@code dnd} or {@code invisible}. */
    @NotNull
    public Update status(@NotNull String status) {
        return set("status", status);
    }

    /** With {@link #status}: when it ends and the one from before returns, by the server's clock. */
    @NotNull
    public Update until(@NotNull Date until) {
        this.until = until;
        return this;
    }

    /** The same as a duration from now, milliseconds. */
    @NotNull
    public Update forMs(long milliseconds) {
        this.forMs = ClientOptions.positive("forMs", milliseconds);
        return this;
    }

    /**
     * With {@link #status}, whose it is: {@code session}, or {@code user}: {@code invisible} is then of all devices, also
     * without this one, until an update of any device has another status with this scope.
     */
    @NotNull
    public Update scope(@NotNull String scope) {
        return set("scope", scope);
    }

    /** What others are not shown of the user: {@code last_seen}, or nothing. The server keeps it. */
    @NotNull
    public Update hide(@NotNull Collection<String> names) {
        return set("hide", new ArrayList<>(names));
    }

    /**
     * Whether the app is in the background: the server holds changes of watched users, and sends the latest of each
     * behind the next keepalive or request. Messages still come immediately.
     */
    @NotNull
    public Update quiet(boolean quiet) {
        return set("quiet", quiet);
    }

    /** The rooms that this device is in, at most 16; none if empty. */
    @NotNull
    public Update rooms(@NotNull Collection<String> rooms) {
        return set("rooms", new ArrayList<>(rooms));
    }

    /** Rooms that this device is also in. */
    @NotNull
    public Update join(@NotNull Collection<String> rooms) {
        return set("join", new ArrayList<>(rooms));
    }

    /** Rooms that it is not in, unless {@link #join} names them, too. */
    @NotNull
    public Update leave(@NotNull Collection<String> rooms) {
        return set("leave", new ArrayList<>(rooms));
    }

    private Update set(String name, Object value) {
        if (value == null) {
            throw new NullPointerException(name);
        }
        fields.put(name, value);
        return this;
    }

    /** Returns the fields with the end of a status; {@code serverTimeS} null: not known. */
    Map<String, Object> resolved(@Nullable Double serverTimeS) {
        boolean hasEnd = until != null || forMs > 0;
        boolean ofUser = "user".equals(fields.get("scope")) && "invisible".equals(fields.get("status"));
        if ((hasEnd || fields.containsKey("scope")) && !fields.containsKey("status") || (hasEnd && ofUser)) {
            throw new IllegalArgumentException("until, forMs and scope need a status; an invisible user has no end");
        } else if (until == null && forMs > 0 && serverTimeS == null) {
            throw new IllegalStateException("the server's clock is unknown before the first login");
        }
        Map<String, Object> resolved = new LinkedHashMap<>(fields);
        if (hasEnd) {
            resolved.put("until_ms", until != null ? until.getTime() : Times.ms(serverTimeS) + forMs);
        }
        return resolved;
    }
}
