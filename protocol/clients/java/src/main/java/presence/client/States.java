package presence.client;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jetbrains.annotations.Nullable;
import presence.client.Push.PresenceChanged;

/** States of users and rooms as they come in packets: as maps, and as rows. */
final class States {
    private static final int ROW_ELEMENTS = 9;

    private States() {}

    /** Returns a list in a payload; empty if it is absent. */
    static List<?> list(Map<String, Object> payload, String key) {
        Object value = payload.get(key);
        return value == null ? Collections.emptyList() : (List<?>) value;
    }

    @SuppressWarnings("unchecked") // the schema has checked it, and the keys of every map are strings
    static Map<String, Object> map(@Nullable Object value) {
        return value == null ? Packet.EMPTY : (Map<String, Object>) value;
    }

    /** Returns the state that a valid row describes, with its {@code uid} among the keys. */
    static Map<String, Object> fromRow(Object row) {
        Object[] elements = new Object[ROW_ELEMENTS];
        if (row instanceof String) {
            elements[0] = row;
        } else {
            List<?> given = (List<?>) row;
            for (int at = 0; at < Math.min(given.size(), ROW_ELEMENTS); at++) {
                elements[at] = given.get(at);
            }
        }
        Object ms = elements[3];
        BigInteger since = elements[5] == null ? BigInteger.ZERO : Schema.big(ms).add(Schema.big(elements[5]));
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("uid", elements[0]);
        state.put("status", elements[1] == null ? "offline" : elements[1]);
        state.put("since_ms", elements[5] == null ? null : number(since));
        state.put("last_seen_ms", elements[6] == null ? null : number(since.subtract(Schema.big(elements[6]))));
        state.put("id", ms == null ? null : ms + "-" + elements[4]);
        putIfThere(state, "reason", elements[2] instanceof Number ? reason((Number) elements[2]) : elements[2]);
        putIfThere(state, "meta", elements[7]);
        putIfThere(state, "devices", elements[8]);
        return state;
    }

    private static void putIfThere(Map<String, Object> state, String key, @Nullable Object value) {
        if (value != null) {
            state.put(key, value);
        }
    }

    private static String reason(Number number) {
        Code code = number instanceof Long ? Code.of(number.longValue()) : null;
        return code == null ? number.toString() : code.reason;
    }

    private static Number number(BigInteger value) {
        return value.bitLength() < 64 ? (Number) value.longValue() : value;
    }

    static UserState user(Map<String, Object> state) {
        String status = (String) state.get("status");
        List<DeviceState> devices = null;
        if (state.get("devices") != null) {
            devices = new ArrayList<>();
            for (Object each : list(state, "devices")) {
                Map<String, Object> device = map(each);
                devices.add(new DeviceState((String) device.get("device"), (String) device.get("status"),
                        ms(device.get("since_ms")), (String) device.get("class"), map(device.get("meta"))));
            }
            devices = Collections.unmodifiableList(devices);
        }
        return new UserState(status, ms(state.get("since_ms")), ms(state.get("last_seen_ms")),
                (String) state.get("id"), map(state.get("meta")),
                status.equals("offline") ? (String) state.get("reason") : null, devices);
    }

    @Nullable
    private static Long ms(@Nullable Object value) {
        return value == null ? null : value instanceof Long ? (Long) value : (Long) Long.MAX_VALUE;
    }

    /** Returns the states in an answer, by uid; those of an older server are in {@code presence}. */
    static Map<String, UserState> users(Map<String, Object> answer) {
        Map<String, UserState> states = new LinkedHashMap<>();
        for (Map.Entry<String, Object> each : map(answer.get("presence")).entrySet()) {
            states.put(each.getKey(), user(map(each.getValue())));
        }
        for (Object row : list(answer, "states")) {
            Map<String, Object> state = fromRow(row);
            states.put((String) state.get("uid"), user(state));
        }
        return states;
    }

    /** Returns the changes in a packet of either kind that has some, in order; none of any other kind. */
    static List<PresenceChanged> changes(Packet packet) {
        List<PresenceChanged> changes = new ArrayList<>();
        if (packet.is(Kind.CHANGES)) {
            for (Object row : list(packet.payload, "changes")) {
                changes.add(change(fromRow(row)));
            }
        } else if (packet.is(Kind.PRESENCE)) {
            changes.add(change(packet.payload));
        }
        return changes;
    }

    private static PresenceChanged change(Map<String, Object> state) {
        return new PresenceChanged((String) state.get("uid"), user(state), (String) state.get("reason"));
    }

    /** Returns the state that a row of a room describes; {@code before}: that of the row before. */
    static RoomState room(List<?> row, @Nullable RoomState before) {
        long count = ms(row.get(1));
        if (row.size() == 2) {
            return new RoomState(count, null);
        }
        if (row.size() == 3) {
            return new RoomState(count, names((Collection<?>) row.get(2)));
        }
        if (before == null || before.members == null) {
            return new RoomState(count, null);
        }
        Set<String> members = new HashSet<>(before.members);
        members.removeAll(names((Collection<?>) row.get(3)));
        members.addAll(names((Collection<?>) row.get(2)));
        return new RoomState(count, members);
    }

    /** Returns the states in an answer, by room. */
    static Map<String, RoomState> rooms(Map<String, Object> answer) {
        Map<String, RoomState> states = new LinkedHashMap<>();
        for (Object each : list(answer, "rooms")) {
            List<?> row = (List<?>) each;
            if (row.get(1) != null) {
                states.put((String) row.get(0), room(row, null));
            }
        }
        return states;
    }

    private static Set<String> names(Collection<?> values) {
        Set<String> names = new HashSet<>();
        for (Object each : values) {
            names.add((String) each);
        }
        return names;
    }
}
