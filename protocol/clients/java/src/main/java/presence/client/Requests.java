package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import org.jetbrains.annotations.Nullable;

/** Packets that are made in more than one place. */
final class Requests {
    private Requests() {}

    static Packet watch(Collection<String> uids, boolean withDevices) {
        return Packet.of(Kind.WATCH, "uids", new ArrayList<>(uids), "detail", withDevices ? true : null);
    }

    static Packet watchRoster(boolean withDevices) {
        return Packet.of(Kind.WATCH, "uids", none(), "detail", withDevices ? true : null, "roster", true);
    }

    static Packet watchRooms(Collection<String> rooms) {
        return Packet.of(Kind.WATCH, "uids", none(), "rooms", new ArrayList<>(rooms));
    }

    static Packet pass(String pass) {
        return Packet.of(Kind.WATCH, "uids", none(), "pass", pass);
    }

    /** Stops watching some users; all watches end for null. */
    static Packet unwatch(@Nullable Collection<String> uids) {
        return Packet.of(Kind.UNWATCH, "uids", uids == null ? null : new ArrayList<>(uids));
    }

    static Packet unwatchRoster() {
        return Packet.of(Kind.UNWATCH, "uids", none(), "roster", true);
    }

    static Packet unwatchRooms(Collection<String> rooms) {
        return Packet.of(Kind.UNWATCH, "uids", none(), "rooms", new ArrayList<>(rooms));
    }

    private static Collection<String> none() {
        return Collections.emptyList();
    }
}
