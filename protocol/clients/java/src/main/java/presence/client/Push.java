package presence.client;

import java.util.List;
import java.util.Set;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/** What a client reports without a request: messages, changes of its connection, of watched users and rooms. */
public abstract class Push implements Effect {
    /** The queue in which the push waits for the program. */
    @NotNull public final PushKind queue;

    Push(PushKind queue) {
        this.queue = queue;
    }

    /**
     * Logged in: for the first time, or again. The client restores its watches and its own meta and status by
     * itself; changes since the last connection follow as {@link PresenceChanged} and {@link RoomChanged}.
     */
    public static final class Connected extends Push {
        /** The server's name for this session, as in its logs and events. */
        @NotNull public final String session;
        /** Silence after which the server ends the session, milliseconds. */
        public final long idleTimeoutMs;
        /** The interval of keepalives, milliseconds. */
        public final long keepaliveMs;
        /** The server's clock, Unix milliseconds; null: not known. */
        @Nullable public final Long timeMs;
        /** Whether this client was online before. */
        public final boolean again;

        Connected(String session, double idleTimeout, double keepalive, @Nullable Long timeMs, boolean again) {
            super(PushKind.CONNECTION);
            this.session = session;
            this.idleTimeoutMs = Times.ms(idleTimeout);
            this.keepaliveMs = Times.ms(keepalive);
            this.timeMs = timeMs;
            this.again = again;
        }
    }

    /** The connection is lost, or an attempt to reconnect failed; the client tries again by itself. */
    public static final class Disconnected extends Push {
        /**
         * The server's, or {@code closed} (it closed, or the network did), {@code unreachable} (no connection),
         * {@code no_token} (the program returned none), {@code login_timeout} (no answer to the login),
         * {@code dead_server} (no answer to a keepalive), {@code bad_server} (its bytes break the protocol).
         */
        @NotNull public final String reason;
        /** The same for people; may be empty. */
        @NotNull public final String message;
        /** Time until the next attempt, milliseconds. */
        public final long retryInMs;
        /** The server's; null: the client detected the loss. */
        @Nullable public final Integer code;

        Disconnected(String reason, String message, double retryIn, @Nullable Integer code) {
            super(PushKind.CONNECTION);
            this.reason = reason;
            this.message = message;
            this.retryInMs = Times.ms(retryIn);
            this.code = code;
        }
    }

    /** The server has announced that it closes the connection; the consequence follows as another push, or the end. */
    public static final class Goodbye extends Push {
        /** A reason code. */
        public final int code;
        /** Its name. */
        @NotNull public final String reason;
        /** Whether the client comes back (then {@link Disconnected} follows) or has ended. */
        public final boolean reconnect;
        /** Time to wait, as the server asks, milliseconds; null: it named none. */
        @Nullable public final Long retryAfterMs;
        /** For people; may be empty. */
        @NotNull public final String message;

        Goodbye(Refusal refusal, boolean reconnect) {
            super(PushKind.CONNECTION);
            this.code = refusal.code;
            this.reason = refusal.reason;
            this.reconnect = reconnect;
            this.retryAfterMs = Times.ms(refusal.retryAfter);
            this.message = refusal.message;
        }
    }

    /** A message from another user, or from the application's backend. */
    public static final class Delivered extends Push {
        /** The uid of the sender. */
        @NotNull public final String sender;
        /** As it was sent: null, Boolean, Long, BigInteger, Double, String, byte[], List or Map. */
        @Nullable public final Object body;
        /** When the server received it, Unix milliseconds. */
        public final long atMs;

        Delivered(String sender, @Nullable Object body, long atMs) {
            super(PushKind.MESSAGES);
            this.sender = sender;
            this.body = body;
            this.atMs = atMs;
        }
    }

    /** A watched user's state has changed. Each change of a user is reported once, in order. */
    public static final class PresenceChanged extends Push {
        static final String WATCHED = "watched";
        static final String REMOVED = "removed";
        static final String MEANWHILE = "meanwhile";
        static final String HIDDEN = "not_allowed";

        /** The user. */
        @NotNull public final String uid;
        /** The new state. */
        @NotNull public final UserState state;
        /**
         * The name of the code that caused it; {@code watched} for the first state of a user given to
         * {@link Client#watchNowait}, or added to the roster; {@code removed}, as is the status, for a user who was
         * taken off the roster and is not watched any more; {@code meanwhile} for a change found after a lost
         * connection.
         */
        @NotNull public final String reason;

        PresenceChanged(String uid, UserState state, String reason) {
            super(PushKind.PRESENCE);
            this.uid = uid;
            this.state = state;
            this.reason = reason;
        }
    }

    /** The server refused a watch that no call waits for: no changes of these users will be reported. */
    public static final class WatchEnded extends Push {
        /** The users. */
        @NotNull public final List<String> uids;
        /** A reason code. */
        public final int code;
        /** Its name. */
        @NotNull public final String reason;
        /** For people; may be empty. */
        @NotNull public final String message;

        WatchEnded(List<String> uids, PresenceError error) {
            super(PushKind.PRESENCE);
            this.uids = uids;
            this.code = error.code;
            this.reason = error.reason;
            this.message = error.detail;
        }
    }

    /**
     * A watched room has changed; of several changes in a short time, only the result is reported. After a lost
     * connection it reports what has changed meanwhile.
     */
    public static final class RoomChanged extends Push {
        /** The room. */
        @NotNull public final String room;
        /** The new state; null: this client may not watch the room, or the server has no rooms; no more follows. */
        @Nullable public final RoomState state;
        /** Members who have come since the state before; empty if the members of one of the two are not known. */
        @NotNull public final Set<String> joined;
        /** Members who have gone; empty as {@link #joined}. */
        @NotNull public final Set<String> left;

        RoomChanged(String room, @Nullable RoomState state, Set<String> joined, Set<String> left) {
            super(PushKind.ROOMS);
            this.room = room;
            this.state = state;
            this.joined = joined;
            this.left = left;
        }
    }

    /**
     * Here were pushes that the program has not read in time: the queue of their kind was full. Messages of this
     * number were acknowledged to their senders as delivered. After changes {@link Client#watched} and
     * {@link Client#watchedRooms} have the newest states. Superseded changes do not count.
     */
    public static final class Dropped extends Push {
        /** The queue that was full. */
        @NotNull public final PushKind kind;
        /** How many. */
        public final long count;

        Dropped(PushKind kind, long count) {
            super(kind);
            this.kind = kind;
            this.count = count;
        }
    }
}
