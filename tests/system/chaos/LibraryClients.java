package presence.client;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Clients with the library in Java, as a program for {@code tests.system.chaos.libraries}: {@code HOST PORT}. Its input
 * and output are those of {@code library_clients.py} beside it.
 */
final class LibraryClients extends Listener {
    private final Map<String, Object> users = Collections.synchronizedMap(new TreeMap<>());
    private final Map<String, Object> rooms = Collections.synchronizedMap(new TreeMap<>());
    private volatile String session;
    private boolean wasUnanswered; // by the thread of callbacks
    private volatile boolean isReplaced;

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Client> clients = new ArrayList<>();
        Map<String, LibraryClients> views = new TreeMap<>();
        for (Object each : (List<?>) Json.parse(in.readLine())) {
            Map<?, ?> who = (Map<?, ?>) each;
            LibraryClients view = new LibraryClients();
            String uid = (String) who.get("uid");
            views.put(uid, view);
            clients.add(view.start(ClientOptions.builder(arguments[0], Integer.parseInt(arguments[1])).uid(uid), who));
        }
        do {
            Map<String, Object> found = new TreeMap<>();
            for (Map.Entry<String, LibraryClients> each : views.entrySet()) {
                if (!each.getValue().isReplaced) {
                    found.put(each.getKey(), each.getValue().shown());
                }
            }
            System.out.println(Json.text(found));
        } while (in.readLine() != null);
        for (Client client : clients) {
            client.close();
        }
    }

    @SuppressWarnings("unchecked")
    private Client start(ClientOptions.Builder options, Map<?, ?> who) throws InterruptedException {
        options.status((String) who.get("status")).quiet((Boolean) who.get("quiet"));
        Client client = Client.start(options.rooms((List<String>) who.get("rooms")).listener(this).build());
        client.waitOnline().await();
        client.watch((List<String>) who.get("users")).whenDone((states, error) -> {
            if (states != null) {
                states.forEach((uid, state) -> users.put(uid, Arrays.asList(state.status, state.id)));
            }
        }).await();
        client.watchRooms((List<String>) who.get("watched_rooms")).whenDone((states, error) -> {
            if (states != null) {
                states.forEach((room, state) -> rooms.put(room, state.count));
            }
        }).await();
        return client;
    }

    private Map<String, Object> shown() {
        Map<String, Object> found = new TreeMap<>();
        found.put("session", session);
        synchronized (users) {
            found.put("users", new TreeMap<>(users));
        }
        synchronized (rooms) {
            found.put("rooms", new TreeMap<>(rooms));
        }
        return found;
    }

    @Override
    public void onConnected(Client client, Push.Connected push) {
        session = push.session;
    }

    @Override
    public void onDisconnected(Client client, Push.Disconnected push) {
        session = null;
        wasUnanswered |= push.reason.equals("login_timeout");
    }

    @Override
    public void onPresenceChanged(Client client, Push.PresenceChanged push) {
        users.put(push.uid, Arrays.asList(push.state.status, push.state.id));
    }

    @Override
    public void onRoomChanged(Client client, Push.RoomChanged push) {
        rooms.put(push.room, push.state == null ? null : push.state.count);
    }

    @Override
    public void onWatchEnded(Client client, Push.WatchEnded push) {
        throw new IllegalStateException(push.uids + " " + push.reason);
    }

    @Override
    public void onDropped(Client client, Push.Dropped push) {
        throw new IllegalStateException(push.count + " pushes dropped");
    }

    @Override
    public void onEnded(Client client, PresenceError error) {
        isReplaced = error instanceof PresenceError.Replaced && wasUnanswered;
        if (error != null && !isReplaced) {
            throw error;
        }
    }
}
