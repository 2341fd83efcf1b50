package presence.client;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import presence.client.Push.PresenceChanged;

/** Rows and the older form of states are the same to a program, in answers and in changes. */
final class StatesTest {
    /** Of a state in the older form, as the vectors have it: what a row says of it, and nothing that is the default. */
    private static String text(UserState state) {
        return Check.exact(Arrays.asList(state.status, state.sinceMs, state.lastSeenMs, state.id, state.meta, state.reason))
                + (state.devices == null ? "" : devices(state.devices));
    }

    private static String devices(List<DeviceState> devices) {
        StringBuilder text = new StringBuilder();
        for (DeviceState each : devices) {
            text.append(Check.exact(Arrays.asList(each.device, each.status, each.sinceMs, each.deviceClass, each.meta)));
        }
        return text.toString();
    }

    private static Packet received(Packet packet) throws ProtocolError {
        byte[] frame = Codec.encode(packet, Codec.SERVER_LIMIT_BYTES);
        return Codec.decode(frame, Codec.HEADER_BYTES, frame.length);
    }

    void testARowIsTheSameAsItsState() throws ProtocolError {
        for (Vectors.Row each : Vectors.rows) {
            Map<String, Object> state = new HashMap<>(each.state);
            state.put("uid", each.uid);
            Map<String, Object> found = States.fromRow(each.row);
            for (Map.Entry<String, Object> entry : found.entrySet()) {
                Check.equal(state.get(entry.getKey()), entry.getValue(), each.name + ": " + entry.getKey());
            }
            Check.that(found.keySet().containsAll(state.keySet()), each.name);

            Packet rows = received(Packet.of(Kind.OK, "states", Collections.singletonList(each.row)).withId(1));
            Packet older = received(
                    Packet.of(Kind.OK, "presence", Collections.singletonMap(each.uid, each.state)).withId(1));
            UserState one = States.users(rows.payload).get(each.uid);
            Check.equal(text(States.users(older.payload).get(each.uid)), text(one), each.name);
        }
    }

    void testAChangeIsTheSameAsAPresencePacket() throws ProtocolError {
        int compared = 0;
        for (Vectors.Row each : Vectors.rows) {
            if (each.state.get("reason") != null) {
                Map<String, Object> payload = new HashMap<>(each.state);
                payload.put("uid", each.uid);
                Packet change = received(Packet.of(Kind.CHANGES, "changes", Collections.singletonList(each.row)));
                PresenceChanged one = States.changes(change).get(0);
                PresenceChanged other = States.changes(received(new Packet((long) Kind.PRESENCE, null, payload))).get(0);
                Check.equal(Arrays.asList(other.uid, other.reason, text(other.state)),
                        Arrays.asList(one.uid, one.reason, text(one.state)), each.name);
                compared++;
            }
        }
        Check.that(compared > 0, "no row has a reason");
    }

    void testAnAnswerMayHoldBothForms() {
        Map<String, Object> answer = new HashMap<>();
        answer.put("presence", Collections.singletonMap("ann", Collections.singletonMap("status", "away")));
        answer.put("states", Arrays.asList("bob", Arrays.asList("eve", "online")));
        Map<String, UserState> states = States.users(answer);
        Check.equal("away offline online",
                states.get("ann").status + " " + states.get("bob").status + " " + states.get("eve").status);
    }
}
