package presence.client;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.EncodeError;

/**
 * What a client keeps across connections: its login, its rooms, its passes, and what it watches. A failed request
 * changes nothing here. Only an unwatch takes effect as soon as it is sent, because no answer can undo it.
 *
 * <p>What one login cannot carry follows it in an update: meta, private and rooms that do not fit, and a status with an
 * end, where another status than online returns after it. The rooms of the login are those that the program wants;
 * {@code joined} are those that the server says the session is in, null if it has no rooms.
 */
final class PersistentState {
    private static final int MAX_PASSES = 16; // that a server takes on one connection
    private static final Set<String> NOT_OF_LOGINS = set("scope", "hide", "rooms", "join", "leave");

    /** Fields and rooms that an update of the program replaces, if it is granted. */
    private static final class Superseded {
        final Set<String> fields;
        final Set<String> rooms;

        Superseded(Set<String> fields, Set<String> rooms) {
            this.fields = fields;
            this.rooms = rooms;
        }
    }

    private final boolean tokenComesLater;
    final boolean watchDevices;
    private Map<String, Object> login;
    private String lastingStatus; // the last one without an end
    private final Set<String> leftOut = new HashSet<>(2); // fields that the latest login did not carry
    private final Set<String> roomsLeftOut = new HashSet<>(2);
    private final Map<Long, Superseded> superseded = new HashMap<>(2); // by the update that decides about them
    @Nullable List<String> joined;
    final WatchedUsers watches = new WatchedUsers();
    final WatchedRooms watchedRooms = new WatchedRooms();
    final Set<String> passes = new LinkedHashSet<>(2); // the newest that the server has taken, in order

    /** @throws EncodeError the login breaks a rule of the protocol. */
    PersistentState(Packet login, boolean tokenComesLater, boolean watchDevices) {
        this.tokenComesLater = tokenComesLater;
        this.watchDevices = watchDevices;
        this.login = validated(login.payload);
        Object status = this.login.get("status");
        this.lastingStatus = status == null ? "online" : (String) status;
    }

    /** Returns the newest token that the client has. */
    @Nullable
    String token() {
        return (String) login.get("token");
    }

    /**
     * Returns the login to send now; what it leaves out is in {@link #rest} until the next one.
     *
     * @param timeMs Unix milliseconds by the server's clock; null: not known.
     */
    Packet loginPacket(long id, @Nullable Double timeMs) {
        Map<String, Object> payload = new LinkedHashMap<>(login);
        payload.put("confirms", true);
        leftOut.clear();
        roomsLeftOut.clear();
        superseded.clear();
        Object untilMs = payload.get("until_ms");
        if (untilMs != null) {
            boolean isOver = timeMs != null && ((Number) untilMs).doubleValue() <= timeMs;
            boolean hides = "invisible".equals(payload.get("status")) && !lastingStatus.equals("invisible");
            // After a login's status ends, online follows. A hiding user must not be visible first.
            if (isOver || !(hides || lastingStatus.equals("online"))) {
                payload.remove("until_ms");
                payload.remove("status");
                if (!lastingStatus.equals("online")) { // the default
                    payload.put("status", lastingStatus);
                }
                leftOut.addAll(isOver ? set() : set("status", "until_ms"));
            }
        }
        Packet packet = new Packet((long) Kind.LOGIN, id, payload);
        // Rooms last of what can follow: leaving them for a moment is seen. With the longest names there is no space
        // for `confirms`, nor for `batch`, which saves bytes and is not worth another packet.
        for (String name : Arrays.asList("private", "meta", "rooms", "confirms")) {
            if (payload.containsKey(name) && !fits(packet)) {
                payload.remove(name);
                leftOut.add(name);
            }
        }
        if (leftOut.remove("rooms")) {
            roomsLeftOut.addAll(rooms());
        }
        payload.put("batch", true);
        if (!fits(packet)) {
            payload.remove("batch");
        }
        return packet;
    }

    /** Returns the update that completes the latest login, as granted by now; null if it is complete. */
    @Nullable
    Packet rest() {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (String name : leftOut) {
            if (login.containsKey(name)) {
                fields.put(name, login.get(name));
            }
        }
        return fields.isEmpty() ? null : new Packet((long) Kind.UPDATE, null, fields);
    }

    /** Returns the rooms that the latest login did not carry, and that the program still wants. */
    List<String> roomsToJoin() {
        List<String> wanted = new ArrayList<>(rooms());
        wanted.retainAll(roomsLeftOut);
        return wanted;
    }

    private List<String> rooms() {
        return strings(login, "rooms");
    }

    @SuppressWarnings("unchecked") // the schema has checked it
    static List<String> strings(Map<String, Object> payload, String key) {
        return (List<String>) States.list(payload, key);
    }

    /** The program has sent an update: {@link #rest} must not overtake it with what was granted before. */
    void supersede(long id, Map<String, Object> payload) {
        Set<String> fields = new HashSet<>(leftOut);
        fields.retainAll(payload.keySet());
        Set<String> rooms = new HashSet<>(roomsLeftOut);
        if (!payload.containsKey("rooms")) {
            rooms.retainAll(strings(payload, "leave"));
        }
        if (!fields.isEmpty() || !rooms.isEmpty()) {
            leftOut.removeAll(fields);
            roomsLeftOut.removeAll(rooms);
            superseded.put(id, new Superseded(fields, rooms));
        }
    }

    /** Returns whether {@link #rest} has fields again, because an update was refused that was to replace them. */
    boolean updateRefused(long id) {
        Superseded again = superseded.remove(id);
        if (again != null) {
            leftOut.addAll(again.fields);
            roomsLeftOut.addAll(again.rooms);
        }
        return again != null;
    }

    /**
     * Changes what later logins carry; an empty map or list removes a field, and a status replaces the end of the
     * former one, too.
     *
     * @throws EncodeError a field breaks a rule of the protocol; nothing was changed.
     */
    void logInWith(Map<String, Object> change) {
        Codec.encode(new Packet((long) Kind.UPDATE, null, change), Codec.SERVER_LIMIT_BYTES);
        Map<String, Object> payload = new LinkedHashMap<>(login);
        payload.putAll(change);
        for (String name : Arrays.asList("meta", "private", "quiet", "rooms")) {
            Object value = payload.get(name);
            if (Boolean.FALSE.equals(value) || (value instanceof Map && ((Map<?, ?>) value).isEmpty())
                    || (value instanceof Collection && ((Collection<?>) value).isEmpty())) {
                payload.remove(name);
            }
        }
        boolean isLasting = change.containsKey("status") && !change.containsKey("until_ms");
        if (isLasting) {
            payload.remove("until_ms");
        }
        if ("online".equals(payload.get("status")) && !payload.containsKey("until_ms")) { // the default
            payload.remove("status");
        }
        login = validated(payload);
        lastingStatus = isLasting ? (String) change.get("status") : lastingStatus;
    }

    void requestSent(long id, Packet packet) {
        boolean hasRooms = packet.payload.containsKey("rooms");
        boolean isRoster = Boolean.TRUE.equals(packet.payload.get("roster"));
        if (packet.is(Kind.WATCH)) {
            if (hasRooms) {
                watchedRooms.requestSent(id, strings(packet.payload, "rooms"));
            } else if (isRoster) {
                watches.rosterRequested(id);
            } else {
                watches.requestSent(id, strings(packet.payload, "uids"));
            }
        } else if (packet.is(Kind.UNWATCH) && hasRooms) {
            watchedRooms.remove(strings(packet.payload, "rooms"));
        } else if (packet.is(Kind.UNWATCH)) {
            boolean isOfAll = !packet.payload.containsKey("uids");
            watches.unwatchSent(id, isOfAll ? null : strings(packet.payload, "uids"));
            if (isOfAll) {
                watchedRooms.remove(null);
            }
            if (isRoster) {
                watches.unwatchRoster();
            }
        }
    }

    /** Applies a granted request, perhaps of the client itself; returns the changes of what was watched before. */
    List<? extends Push> requestGranted(long id, Packet packet, Map<String, Object> answer, boolean isOwn) {
        if (packet.is(Kind.WATCH) && packet.payload.containsKey("rooms")) {
            return watchedRooms.requestGranted(id, answer, isOwn);
        } else if (packet.is(Kind.WATCH)) {
            keepPass((String) packet.payload.get("pass"));
            boolean isRoster = Boolean.TRUE.equals(packet.payload.get("roster"));
            return isRoster ? watches.rosterGranted(id, States.users(answer), isOwn)
                    : watches.requestGranted(id, States.users(answer), isOwn);
        } else if (packet.is(Kind.UPDATE)) {
            superseded.remove(id);
            try {
                logInWith(ofThisDevice(packet.payload, answer, isOwn));
            } catch (EncodeError error) {
                // With the longest names even a login without `meta` may be too long.
            }
        }
        return new ArrayList<>(0);
    }

    private void keepPass(@Nullable String pass) {
        if (pass != null) {
            passes.remove(pass);
            passes.add(pass);
            if (passes.size() > MAX_PASSES) {
                passes.remove(passes.iterator().next());
            }
        }
    }

    void requestRefused(long id) {
        watches.requestFailed(id);
        watchedRooms.requestRefused(id);
    }

    /** Drops a watch that no call waits for; returns the unwatch that undoes it, in case it was granted. */
    @Nullable
    Packet requestAbandoned(long id) {
        Packet undo = watches.requestFailed(id);
        return undo != null ? undo : watchedRooms.requestAbandoned(id);
    }

    /** Drops all pending watches. */
    void connectionLost() {
        watches.connectionLost();
        watchedRooms.connectionLost();
    }

    /** Stops watching some users while there is no connection, or for null all, the roster and all rooms. */
    void unwatch(@Nullable Collection<String> uids) {
        watches.remove(uids);
        if (uids == null) {
            watchedRooms.remove(null);
        }
    }

    /** Returns what later logins carry of a granted update: not what the server keeps with the user. */
    private Map<String, Object> ofThisDevice(Map<String, Object> update, Map<String, Object> answer, boolean isOwn) {
        Map<String, Object> kept = new LinkedHashMap<>(update);
        kept.keySet().removeAll(NOT_OF_LOGINS);
        if ("user".equals(answer.get("scope")) && "invisible".equals(kept.get("status"))) {
            kept.remove("status"); // sent again, it would undo what another device has changed since
            if ("invisible".equals(login.get("status"))) {
                kept.put("status", "online");
            }
        }
        boolean namesRooms = update.containsKey("rooms") || update.containsKey("join") || update.containsKey("leave");
        if (!isOwn && namesRooms && answer.containsKey("joined")) {
            kept.put("rooms", roomsAfter(update, strings(answer, "joined")));
        }
        return kept;
    }

    /** Returns the rooms that the program wants from now on; if they are too many, first those that it is in. */
    private List<String> roomsAfter(Map<String, Object> update, List<String> isIn) {
        Set<String> wanted = new LinkedHashSet<>(update.containsKey("rooms") ? strings(update, "rooms") : rooms());
        wanted.removeAll(strings(update, "leave"));
        wanted.addAll(strings(update, "join"));
        List<String> sorted = new ArrayList<>(wanted);
        sorted.retainAll(isIn);
        wanted.removeAll(isIn);
        sorted.addAll(wanted);
        return new ArrayList<>(sorted.subList(0, Math.min(sorted.size(), Schema.MAX_ROOMS)));
    }

    /** Returns a copy of a valid login, with maps of its own: the program may change those it has passed. */
    private Map<String, Object> validated(Map<String, Object> payload) {
        Map<String, Object> trial = new LinkedHashMap<>(payload);
        boolean hasToken = trial.containsKey("token");
        if (tokenComesLater && !hasToken) {
            trial.put("token", "-");
        }
        Map<String, Object> copy = ownCopy(new Packet((long) Kind.LOGIN, 1L, trial)).payload;
        trial.keySet().removeAll(Arrays.asList("private", "meta", "rooms")); // they may follow the login
        Codec.encode(new Packet((long) Kind.LOGIN, 1L, trial), Codec.LOGIN_LIMIT_BYTES);
        if (!hasToken) {
            copy.remove("token");
        }
        return copy;
    }

    /** @throws EncodeError the packet breaks a rule of the protocol. */
    static Packet ownCopy(Packet packet) {
        byte[] frame = Codec.encode(packet, Codec.SERVER_LIMIT_BYTES);
        try {
            return Codec.decode(frame, Codec.HEADER_BYTES, frame.length);
        } catch (ProtocolError error) {
            throw new IllegalStateException(error); // the encoder has checked it
        }
    }

    private static boolean fits(Packet login) {
        return Codec.encode(login, Codec.SERVER_LIMIT_BYTES).length - Codec.HEADER_BYTES <= Codec.LOGIN_LIMIT_BYTES;
    }

    private static Set<String> set(String... names) {
        return new HashSet<>(Arrays.asList(names));
    }
}
