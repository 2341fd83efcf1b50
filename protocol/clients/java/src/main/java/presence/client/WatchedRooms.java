package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jetbrains.annotations.Nullable;
import presence.client.Push.RoomChanged;

/**
 * The rooms that a client watches, and their newest known states, across connections.
 *
 * <p>A row of a room follows from the one before it on the same connection. So the rows of watched rooms are all
 * applied, in the order of arrival, also those of an answer that no call waits for any more. The answer on a new
 * connection is compared with what is known, and a difference is reported as a change. Of a room whose members follow
 * the answer, their row is compared.
 */
final class WatchedRooms {
    private final Map<String, RoomState> known = new LinkedHashMap<>(2);
    private final Map<Long, Set<String>> requested = new HashMap<>(2); // pending watches, by id
    private final Set<Long> abandoned = new HashSet<>(2); // requests without a call, which may be answered yet

    Map<String, RoomState> states() {
        return new LinkedHashMap<>(known);
    }

    /** Returns the newest known state of the rooms in an answer: a later push may have been newer. */
    Map<String, RoomState> newest(Map<String, RoomState> states) {
        for (Map.Entry<String, RoomState> each : states.entrySet()) {
            RoomState newer = known.get(each.getKey());
            each.setValue(newer == null ? each.getValue() : newer);
        }
        return states;
    }

    boolean contains(String room) {
        return known.containsKey(room);
    }

    /** Returns the watched rooms, and those that are asked for, in lists that each fit into one request. */
    List<List<String>> batches() {
        List<String> rooms = new ArrayList<>(all());
        List<List<String>> batches = new ArrayList<>();
        for (int start = 0; start < rooms.size(); start += Schema.MAX_WATCHED_ROOMS) {
            int end = Math.min(rooms.size(), start + Schema.MAX_WATCHED_ROOMS);
            batches.add(new ArrayList<>(rooms.subList(start, end)));
        }
        return batches;
    }

    private Set<String> all() {
        Set<String> all = new LinkedHashSet<>(known.keySet());
        for (Set<String> rooms : requested.values()) {
            all.addAll(rooms);
        }
        return all;
    }

    void requestSent(long id, Collection<String> rooms) {
        requested.put(id, new LinkedHashSet<>(rooms));
    }

    /** Applies the answer to a request, perhaps of the client itself; returns the changes of rooms watched before. */
    List<RoomChanged> requestGranted(long id, Map<String, Object> answer, boolean isOwn) {
        Set<String> rooms = requested.remove(id);
        return answered(answer, isOwn || rooms == null ? Collections.<String>emptySet() : rooms);
    }

    void requestRefused(long id) {
        requested.remove(id);
        abandoned.remove(id);
    }

    /** No call waits for a request any more; returns the unwatch that undoes it, in case it is granted. */
    @Nullable
    Packet requestAbandoned(long id) {
        Set<String> unwanted = requested.remove(id);
        if (unwanted == null) {
            return null;
        }
        abandoned.add(id);
        unwanted.removeAll(all());
        return unwanted.isEmpty() ? null : Requests.unwatchRooms(unwanted);
    }

    /** Applies the answer to an abandoned request: later rows follow from it. */
    List<RoomChanged> answeredLate(long id, Map<String, Object> answer) {
        return abandoned.remove(id) ? answered(answer, Collections.<String>emptySet())
                : Collections.<RoomChanged>emptyList();
    }

    /** Applies pushed rows; returns the changes. Rooms that are not watched are ignored. */
    List<RoomChanged> pushed(List<?> rows) {
        return applied(rows, Collections.<String>emptySet());
    }

    /** Drops all pending requests. */
    void connectionLost() {
        requested.clear();
        abandoned.clear();
    }

    /** The server has refused to let some rooms be watched; returns the last change of each. */
    List<RoomChanged> end(List<String> rooms) {
        List<RoomChanged> changes = new ArrayList<>();
        for (String room : rooms) {
            if (known.remove(room) != null) {
                changes.add(changed(room, null, null));
            }
        }
        return changes;
    }

    /** Stops watching some rooms, or all for null, also in pending requests. */
    void remove(@Nullable Collection<String> rooms) {
        Collection<String> gone = rooms == null ? all() : rooms;
        for (Set<String> each : requested.values()) {
            each.removeAll(gone);
        }
        known.keySet().removeAll(gone);
    }

    /** Applies an answer, except to rooms that are known and whose members follow. */
    private List<RoomChanged> answered(Map<String, Object> answer, Set<String> wanted) {
        List<Object> rows = new ArrayList<>();
        for (Object row : States.list(answer, "rooms")) {
            String room = (String) ((List<?>) row).get(0);
            if (!(known.containsKey(room) && States.list(answer, "later").contains(room))) {
                rows.add(row);
            }
        }
        return applied(rows, wanted);
    }

    /** Applies rows to the rooms that are watched, or requested; returns the changes of the former. */
    private List<RoomChanged> applied(List<?> rows, Set<String> wanted) {
        List<RoomChanged> changes = new ArrayList<>();
        for (Object each : rows) {
            List<?> row = (List<?>) each;
            String room = (String) row.get(0);
            RoomState before = known.get(room);
            RoomState state = row.get(1) == null ? null : States.room(row, before);
            if (before == null) {
                if (wanted.contains(room) && state != null) {
                    known.put(room, state);
                }
            } else if (state == null) {
                known.remove(room);
                changes.add(changed(room, null, null));
            } else if (!state.equals(before)) {
                known.put(room, state);
                changes.add(changed(room, before, state));
            }
        }
        return changes;
    }

    private static RoomChanged changed(String room, @Nullable RoomState before, @Nullable RoomState after) {
        if (before == null || after == null || before.members == null || after.members == null) {
            return new RoomChanged(room, after, Collections.<String>emptySet(), Collections.<String>emptySet());
        }
        return new RoomChanged(room, after, without(after.members, before.members), without(before.members, after.members));
    }

    private static Set<String> without(Set<String> members, Set<String> others) {
        Set<String> rest = new HashSet<>(members);
        rest.removeAll(others);
        return Collections.unmodifiableSet(rest);
    }
}
