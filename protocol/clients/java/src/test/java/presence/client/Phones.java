package presence.client;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * Devices in one JVM that come and go: an input line {@code uid port} starts one at that port of 127.0.0.1, {@code uid}
 * ends it without a logout. Prints the uid of a device each time it has connected; the end of the input ends the program.
 */
final class Phones {
    private Phones() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, Client> clients = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words.length == 1) {
                clients.remove(line).disconnect();
            } else {
                int port = Integer.parseInt(words[1]);
                clients.put(words[0], Client.start(
                        ClientOptions.builder("127.0.0.1", port).uid(words[0]).listener(printing(words[0])).build()));
            }
        }
        System.exit(0);
    }

    private static Listener printing(String uid) {
        return new Listener() {
            @Override
            public void onConnected(Client client, Push.Connected push) {
                System.out.println(uid);
            }
        };
    }
}
