package presence.client;

import java.util.Collections;
import java.util.Date;
import presence.client.PresenceError.EncodeError;

/** Mistakes of a program are refused where it makes them. */
final class OptionsTest {
    private static ClientOptions.Builder options() {
        return ClientOptions.builder("127.0.0.1", 7400).uid("ann");
    }

    void testValuesOutOfRange() {
        Check.fails(IllegalArgumentException.class, () -> ClientOptions.builder("", 7400));
        for (int port : new int[] {-1, 0, 65_536}) {
            Check.fails(IllegalArgumentException.class, () -> ClientOptions.builder("host", port));
        }
        Check.fails(IllegalArgumentException.class, () -> options().idleTimeoutMs(0));
        Check.fails(IllegalArgumentException.class, () -> options().requestTimeoutMs(-5));
        Check.fails(IllegalArgumentException.class, () -> options().askEvery(0));
        Check.fails(IllegalArgumentException.class, () -> options().maxMessages(0));
        Check.fails(IllegalArgumentException.class, () -> options().maxChanges(0));
        Check.fails(NullPointerException.class, () -> options().device(null));
    }

    void testWhatTheProtocolForbids() {
        Check.fails(EncodeError.class, () -> Client.start(options().uid("").build()));
        Check.fails(EncodeError.class, () -> Client.start(options().status("asleep").build()));
        Check.fails(EncodeError.class,
                () -> Client.start(options().meta(Collections.singletonMap("n", new Date(0))).build()));
    }

    void testAnUpdateNeedsAStatusForItsEnd() {
        Check.fails(IllegalArgumentException.class, () -> new Update().forMs(1000).resolved(0.0));
        Check.fails(IllegalArgumentException.class, () -> new Update().scope("user").resolved(0.0));
        Check.fails(IllegalStateException.class, () -> new Update().status("busy").forMs(1000).resolved(null));
        Check.equal(11_000, new Update().status("busy").forMs(1000).resolved(10.0).get("until_ms"));
    }
}
