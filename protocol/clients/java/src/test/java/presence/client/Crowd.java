package presence.client;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Many clients in one JVM that stay online: prints a line of JSON with threads, memory and losses. Arguments: host, port,
 * the first uid's number, clients, seconds.
 */
final class Crowd {
    private static final int AT_A_TIME = 100; // logins without an answer
    private static final int WARM_UP = 20; // clients before memory is measured

    private final AtomicInteger connected = new AtomicInteger();
    private final AtomicInteger lost = new AtomicInteger();
    private final AtomicInteger ended = new AtomicInteger();
    private final List<Client> clients = new ArrayList<>();
    private final Listener listener = new Listener() {
        @Override
        public void onConnected(Client client, Push.Connected push) {
            connected.incrementAndGet();
        }

        @Override
        public void onDisconnected(Client client, Push.Disconnected push) {
            lost.incrementAndGet();
        }

        @Override
        public void onEnded(Client client, PresenceError error) {
            ended.incrementAndGet();
        }
    };

    private Crowd() {}

    public static void main(String[] arguments) throws Exception {
        Crowd crowd = new Crowd();
        int first = Integer.parseInt(arguments[2]);
        int count = Integer.parseInt(arguments[3]);
        crowd.add(arguments[0], Integer.parseInt(arguments[1]), first - WARM_UP, WARM_UP);
        long before = heapBytes();
        long began = System.nanoTime();
        crowd.add(arguments[0], Integer.parseInt(arguments[1]), first, count);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("logins_s", (System.nanoTime() - began) / 1e9);
        Thread.sleep(Long.parseLong(arguments[4]) * 1000);
        long keepalives = 0;
        for (Client client : crowd.clients) {
            keepalives += client.statistics().keepalives;
        }
        found.put("keepalives", keepalives);
        found.put("heap_bytes_per_client", (heapBytes() - before) / count);
        found.put("resident_kb", residentKb());
        found.put("threads", threads(false));
        found.put("client_threads", threads(true));
        found.put("lost", crowd.lost.get());
        found.put("ended", crowd.ended.get());
        System.out.println(Json.text(found));
        System.in.read(); // the one who measures looks at the events first
        System.exit(0);
    }

    private void add(String host, int port, int first, int count) throws InterruptedException {
        int before = connected.get();
        for (int number = 0; number < count; number++) {
            clients.add(Client.start(ClientOptions.builder(host, port).uid("u" + (first + number)).listener(listener).build()));
            while (number + 1 - (connected.get() - before) >= AT_A_TIME) {
                Thread.sleep(1);
            }
        }
        while (connected.get() - before < count) {
            Thread.sleep(5);
        }
    }

    private static long heapBytes() throws InterruptedException {
        for (int round = 0; round < 3; round++) {
            System.gc();
            Thread.sleep(200);
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    private static int threads(boolean ours) {
        int count = 0;
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            count += !ours || thread.getName().startsWith("presence ") ? 1 : 0;
        }
        return count;
    }

    private static long residentKb() throws Exception {
        for (String line : Files.readAllLines(new File("/proc/self/status").toPath(), StandardCharsets.UTF_8)) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("[^0-9]", ""));
            }
        }
        return 0;
    }
}
