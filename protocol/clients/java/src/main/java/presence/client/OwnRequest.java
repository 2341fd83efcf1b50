package presence.client;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.RequestFailed;
import presence.client.Push.WatchEnded;

/** A request that the client makes by itself: after a reconnect, or for a call that does not wait. */
abstract class OwnRequest {
    final PersistentState state;

    OwnRequest(PersistentState state) {
        this.state = state;
    }

    /** Returns the same for what is still wanted; null if nothing is. */
    @Nullable
    abstract OwnRequest current();

    abstract Packet packet();

    /**
     * The server has refused it for good: adds what that leads to, and returns what to request instead.
     *
     * @param others requests that are pending.
     */
    List<OwnRequest> refused(RequestFailed error, Collection<OwnRequest> others, List<Effect> effects) {
        return Collections.emptyList();
    }

    private static <T> List<List<T>> halves(List<T> values) {
        int half = values.size() / 2;
        return Arrays.asList(values.subList(0, half), values.subList(half, values.size()));
    }

    /** Users to watch. */
    static final class Users extends OwnRequest {
        // With their devices, into one answer: a refusal of so few is about the number of watches.
        private static final int USERS_THAT_FIT = 32;

        final List<String> uids;
        private final boolean areListed; // in the roster, and asked for by name because the server is older

        Users(PersistentState state, List<String> uids, boolean areListed) {
            super(state);
            this.uids = uids;
            this.areListed = areListed;
        }

        @Override
        @Nullable
        OwnRequest current() {
            List<String> wanted = new ArrayList<>();
            for (String uid : uids) {
                if (state.watches.contains(uid) && state.watches.isListed(uid) == areListed) {
                    wanted.add(uid);
                }
            }
            return wanted.isEmpty() ? null : new Users(state, wanted, areListed);
        }

        @Override
        Packet packet() {
            return Requests.watch(uids, state.watchDevices);
        }

        @Override
        List<OwnRequest> refused(RequestFailed error, Collection<OwnRequest> others, List<Effect> effects) {
            List<OwnRequest> instead = new ArrayList<>();
            if (error.code == Code.TOO_LARGE.number && state.watchDevices && uids.size() > USERS_THAT_FIT) {
                for (List<String> half : halves(uids)) { // with all devices, the answer would not fit into a frame
                    instead.add(new Users(state, half, areListed));
                }
                return instead;
            }
            List<String> ended = new ArrayList<>(uids);
            ended.removeAll(uidsOf(others));
            state.watches.end(ended);
            if (!ended.isEmpty()) {
                effects.add(new WatchEnded(Collections.unmodifiableList(ended), error));
            }
            return instead;
        }
    }

    /** Returns the users of those requests that name some. */
    static Set<String> uidsOf(Collection<OwnRequest> requests) {
        Set<String> uids = new HashSet<>();
        for (OwnRequest each : requests) {
            if (each instanceof Users) {
                uids.addAll(((Users) each).uids);
            }
        }
        return uids;
    }

    /** Rooms to watch again, in parts if the server refuses one of them. */
    static final class WatchRooms extends OwnRequest {
        private final List<String> rooms;

        WatchRooms(PersistentState state, List<String> rooms) {
            super(state);
            this.rooms = rooms;
        }

        @Override
        @Nullable
        OwnRequest current() {
            List<String> wanted = new ArrayList<>();
            for (String room : rooms) {
                if (state.watchedRooms.contains(room)) {
                    wanted.add(room);
                }
            }
            return wanted.isEmpty() ? null : new WatchRooms(state, wanted);
        }

        @Override
        Packet packet() {
            return Requests.watchRooms(rooms);
        }

        @Override
        List<OwnRequest> refused(RequestFailed error, Collection<OwnRequest> others, List<Effect> effects) {
            List<OwnRequest> instead = new ArrayList<>();
            boolean isOfOne = error.code == Code.NOT_ALLOWED.number || error.code == Code.TOO_LARGE.number;
            if (isOfOne && rooms.size() > 1) {
                for (List<String> half : halves(rooms)) {
                    instead.add(new WatchRooms(state, half));
                }
            } else {
                effects.addAll(state.watchedRooms.end(rooms));
            }
            return instead;
        }
    }

    /** The users whom the backend has listed for this one. */
    static final class Roster extends OwnRequest {
        Roster(PersistentState state) {
            super(state);
        }

        @Override
        @Nullable
        OwnRequest current() {
            return state.watches.followsRoster ? this : null;
        }

        @Override
        Packet packet() {
            return Requests.watchRoster(state.watchDevices);
        }

        @Override
        List<OwnRequest> refused(RequestFailed error, Collection<OwnRequest> others, List<Effect> effects) {
            List<OwnRequest> instead = new ArrayList<>();
            if (!state.watches.followsRoster) { // the program has unwatched it since
                return instead;
            }
            if (error.code == Code.UNSUPPORTED.number && state.watches.rosterWasGranted) {
                // An older server, as during an upgrade: it can watch the users as they were listed last.
                for (List<String> uids : state.watches.batches(true)) {
                    instead.add(new Users(state, uids, true));
                }
            } else {
                effects.add(new WatchEnded(Collections.unmodifiableList(state.watches.endRoster()), error));
            }
            return instead;
        }
    }

    /** A pass that an earlier connection had. */
    static final class Pass extends OwnRequest {
        private final String text;

        Pass(PersistentState state, String text) {
            super(state);
            this.text = text;
        }

        @Override
        @Nullable
        OwnRequest current() {
            return state.passes.contains(text) ? this : null;
        }

        @Override
        Packet packet() {
            return Requests.pass(text);
        }

        @Override
        List<OwnRequest> refused(RequestFailed error, Collection<OwnRequest> others, List<Effect> effects) {
            state.passes.remove(text);
            return Collections.emptyList();
        }
    }

    /** What the login had to leave out, besides rooms. */
    static final class Rest extends OwnRequest {
        Rest(PersistentState state) {
            super(state);
        }

        @Override
        @Nullable
        OwnRequest current() {
            return state.rest() == null ? null : this;
        }

        @Override
        Packet packet() {
            Packet rest = state.rest();
            return rest == null ? Packet.of(Kind.UPDATE) : rest;
        }
    }

    /** Rooms that the login had to leave out, in parts if the server refuses one of them. */
    static final class JoinRooms extends OwnRequest {
        private final List<String> rooms;

        JoinRooms(PersistentState state, List<String> rooms) {
            super(state);
            this.rooms = rooms;
        }

        @Override
        @Nullable
        OwnRequest current() {
            List<String> wanted = new ArrayList<>(rooms);
            wanted.retainAll(state.roomsToJoin());
            return wanted.isEmpty() ? null : new JoinRooms(state, wanted);
        }

        @Override
        Packet packet() {
            return Packet.of(Kind.UPDATE, "join", rooms);
        }

        @Override
        List<OwnRequest> refused(RequestFailed error, Collection<OwnRequest> others, List<Effect> effects) {
            List<OwnRequest> instead = new ArrayList<>();
            if (rooms.size() > 1) {
                for (List<String> half : halves(rooms)) {
                    instead.add(new JoinRooms(state, half));
                }
            }
            return instead;
        }
    }
}
