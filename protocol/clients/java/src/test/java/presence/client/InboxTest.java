package presence.client;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The bounded queues of pushes. */
final class InboxTest {
    private final Inbox inbox = new Inbox(2, 2);

    private void message(long body) {
        inbox.put(new Push.Delivered("bob", body, 1));
    }

    private void change(String uid, String status) {
        UserState state = new UserState(status, null, null, null, Packet.EMPTY, null, null);
        inbox.put(new Push.PresenceChanged(uid, state, "login"));
    }

    private List<String> taken(PushKind kind) {
        List<String> found = new ArrayList<>();
        for (Push push = inbox.pop(kind); push != null; push = inbox.pop(kind)) {
            if (push instanceof Push.Dropped) {
                found.add(((Push.Dropped) push).count + " dropped");
            } else if (push instanceof Push.Delivered) {
                found.add(String.valueOf(((Push.Delivered) push).body));
            } else {
                found.add(((Push.PresenceChanged) push).uid + " " + ((Push.PresenceChanged) push).state.status);
            }
        }
        return found;
    }

    void testAllKindsComeInTheOrderOfArrival() {
        message(1);
        change("eve", "online");
        message(2);
        Check.equal(Arrays.asList("1", "eve online", "2"), taken(null));
    }

    void testTheOldestAreDroppedAndCounted() {
        for (int body = 1; body <= 5; body++) {
            message(body);
        }
        Check.equal(3, inbox.size());
        Check.equal(Arrays.asList("3 dropped", "4", "5"), taken(PushKind.MESSAGES));
        Check.equal(3, inbox.dropped());
    }

    void testAChangeThatALaterOneSupersedesGoesWithoutAWord() {
        change("bob", "online");
        change("eve", "online");
        change("bob", "away");
        Check.equal(Arrays.asList("eve online", "bob away"), taken(PushKind.PRESENCE));
        Check.equal("1 0", inbox.superseded() + " " + inbox.dropped());
    }

    void testOneKindTakesNoPlaceFromAnother() {
        message(1);
        for (int number = 0; number < 10; number++) {
            change("u" + number, "online");
        }
        Check.equal(Arrays.asList("1", "8 dropped", "u8 online", "u9 online"), taken(null));
    }
}
