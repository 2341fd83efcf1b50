package presence.client;

import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import java.util.Map;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * One device on the command line, as protocol/clients/node/examples/device.ts: prints a line of JSON for each push and
 * for each answer to a command, which is a line of JSON, too: a verb and its arguments. It logs out at the end of the
 * input. Arguments: host, perhaps with tls:// before it; port; uid; device; a file with a token, after an @. The
 * variable PRESENCE_AUTHORITY names the certificate authority to trust in place of the system's.
 */
final class Device extends Listener {
    private final PrintStream out;
    private int unanswered; // commands
    private Integer status; // of the program, once the client has ended

    private Device() throws IOException {
        out = new PrintStream(System.out, true, "UTF-8");
    }

    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        Device device = new Device();
        ClientOptions.Builder options = ClientOptions.builder(host.replaceFirst("^tls://", ""), Integer.parseInt(arguments[1]))
                .uid(arguments[2]).listener(device);
        if (arguments.length > 3 && !arguments[3].isEmpty()) {
            options.device(arguments[3]);
        }
        if (arguments.length > 4) {
            File file = new File(arguments[4].replaceFirst("^@", ""));
            options.token(() -> new String(Files.readAllBytes(file.toPath()), StandardCharsets.UTF_8).trim());
        }
        if (host.startsWith("tls://")) {
            String authority = System.getenv("PRESENCE_AUTHORITY");
            if (authority == null) {
                options.tls();
            } else {
                options.tls(trusting(new File(authority)));
            }
        }
        Client client = Client.start(options.build());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            device.execute(client, (List<?>) Json.parse(line));
        }
        client.logout();
        Thread.sleep(60_000); // onEnded ends the program
    }

    static SSLContext trusting(File authority) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream in = new FileInputStream(authority)) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    private void execute(Client client, List<?> command) {
        String verb = (String) command.get(0);
        synchronized (this) {
            unanswered++;
        }
        try {
            request(client, verb, command).whenDone((answer, error) -> answered(verb, answer, error));
        } catch (RuntimeException error) {
            answered(verb, null, error);
        }
    }

    private void answered(String verb, Object answer, Exception error) {
        Map<String, Object> line = Packet.of(0, "verb", verb).payload;
        line.put(error == null ? "answer" : "error", Plain.of(error == null ? answer : error));
        out.println(Json.text(line));
        synchronized (this) {
            unanswered--;
            exitIfOver();
        }
    }

    /** The end may be told before the answer to a logout. */
    private void exitIfOver() {
        if (status != null && unanswered == 0) {
            System.exit(status);
        }
    }

    @SuppressWarnings("unchecked") // a wrong command is a mistake of the test
    private static PresenceFuture<?> request(Client client, String verb, List<?> command) {
        Object first = command.size() > 1 ? command.get(1) : null;
        List<String> names = first instanceof List ? (List<String>) first : null;
        switch (verb) {
            case "query": return client.query(names);
            case "watch": return client.watch(names);
            case "unwatch": return names == null ? client.unwatch() : client.unwatch(names);
            case "queryRooms": return client.queryRooms(names);
            case "watchRooms": return client.watchRooms(names);
            case "unwatchRooms": return names == null ? client.unwatchRooms() : client.unwatchRooms(names);
            case "message": return client.sendMessage((String) first, command.get(2));
            case "confirmed": return client.sendConfirmed((String) first, command.get(2));
            case "update":
                Update update = new Update();
                update.fields.putAll((Map<String, Object>) first);
                return client.update(update);
            case "away": return client.away();
            case "back": return client.back();
            case "networkChanged":
                client.networkChanged();
                return client.waitOnline();
            case "wake":
                client.wake();
                return client.waitOnline();
            case "logout": return client.logout((String) first);
            default: throw new IllegalArgumentException("no such verb: " + verb);
        }
    }

    private void print(String event, Object push) {
        Map<String, Object> line = States.map(Plain.of(push));
        line.put("event", event);
        out.println(Json.text(line));
    }

    @Override
    public void onConnected(Client client, Push.Connected push) {
        print("connected", push);
    }

    @Override
    public void onDisconnected(Client client, Push.Disconnected push) {
        print("disconnected", push);
    }

    @Override
    public void onGoodbye(Client client, Push.Goodbye push) {
        print("goodbye", push);
    }

    @Override
    public void onDelivered(Client client, Push.Delivered push) {
        print("message", push);
    }

    @Override
    public void onPresenceChanged(Client client, Push.PresenceChanged push) {
        print("presence", push);
    }

    @Override
    public void onWatchEnded(Client client, Push.WatchEnded push) {
        print("watchEnded", push);
    }

    @Override
    public void onRoomChanged(Client client, Push.RoomChanged push) {
        print("room", push);
    }

    @Override
    public void onEnded(Client client, PresenceError error) {
        Map<String, Object> line = Packet.of(0, "event", "end").payload;
        line.put("error", Plain.of(error));
        out.println(Json.text(line));
        synchronized (this) {
            status = error == null ? 0 : 1;
            exitIfOver();
        }
    }
}
