package presence.client;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import presence.client.PresenceError.Busy;
import presence.client.PresenceError.Ended;
import presence.client.PresenceError.LoginRefused;
import presence.client.PresenceError.NotConnected;
import presence.client.PresenceError.RequestTimeout;
import presence.client.PresenceError.Unreachable;
import presence.client.PresenceError.Unsupported;

/** Clients with connections: calls, pushes, threads. */
final class ClientTest {
    private static final int WAIT_MS = 1000 * ScriptedServer.WAIT_S;

    private static void await(String what, java.util.concurrent.Callable<Boolean> holds) throws Exception {
        for (long end = System.nanoTime() + WAIT_MS * 1_000_000L; !holds.call(); Thread.sleep(5)) {
            Check.that(System.nanoTime() < end, what);
        }
    }

    private static <T extends Push> T next(Client client, Class<T> kind) throws InterruptedException {
        while (true) {
            Push push = client.receive(null, WAIT_MS);
            Check.that(push != null, "no " + kind.getSimpleName());
            if (kind.isInstance(push)) {
                return kind.cast(push);
            }
        }
    }

    private static int closedPort() throws Exception {
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))) {
            return free.getLocalPort();
        }
    }

    void testASession() throws Exception {
        try (ScriptedServer server = new ScriptedServer()) {
            Client client = Client.connect(server.options().device("phone").build());
            Check.equal("phone", server.next(Kind.LOGIN).payload.get("device"));
            Check.equal(State.ONLINE, client.state());
            Check.equal(1, client.sendMessage("bob", Collections.singletonMap("text", "hi")).await());
            Check.equal(1, client.statistics().logins);
            client.logout("background").await();
            Check.equal("background", server.next(Kind.LOGOUT).payload.get("reason"));
            Check.equal(State.ENDED, client.state());
            Check.fails(Ended.class, () -> client.query(Collections.singletonList("bob")).await());
            client.close();
        }
    }

    void testAFirstAttemptThatFailsThrows() throws Exception {
        int port = closedPort();
        Check.fails(Unreachable.class, () -> Client.connect(ClientOptions.builder("127.0.0.1", port).uid("ann").build()));
        Check.fails(Unreachable.class,
                () -> Client.connect(ClientOptions.builder("nowhere.invalid", port).uid("ann").build()));
        try (ScriptedServer server = new ScriptedServer() {
            @Override
            Packet answer(Packet packet) {
                return refusal(packet, Code.BANNED);
            }
        }) {
            LoginRefused refused = Check.fails(LoginRefused.class, () -> Client.connect(server.options().build()));
            Check.equal("banned", refused.reason);
        }
    }

    void testAStartedClientRepeatsItsFirstAttempt() throws Exception {
        Client client = Client.start(ClientOptions.builder("127.0.0.1", closedPort()).uid("ann").build());
        Check.equal("unreachable", next(client, Push.Disconnected.class).reason);
        Check.fails(NotConnected.class, () -> client.sendMessage("bob", "hi").await());
        client.close();
        Check.fails(Ended.class, () -> client.receive(null, WAIT_MS));
    }

    void testAnInterruptedConnectLeavesNoClient() throws Exception {
        try (ScriptedServer server = new ScriptedServer() {
            @Override
            Packet answer(Packet packet) {
                return null;
            }
        }) {
            Thread.currentThread().interrupt();
            Check.fails(InterruptedException.class, () -> Client.connect(server.options().build()));
        }
    }

    void testRefusalsAndTimeOuts() throws Exception {
        try (ScriptedServer server = new ScriptedServer() {
            @Override
            Packet answer(Packet packet) {
                return packet.is(Kind.QUERY) ? refusal(packet, Code.BUSY) : packet.is(Kind.MESSAGE) ? null
                        : super.answer(packet);
            }
        }; Client client = Client.connect(server.options().requestTimeoutMs(100).build())) {
            Check.fails(Busy.class, () -> client.query(Collections.singletonList("bob")).await());
            Check.fails(RequestTimeout.class, () -> client.sendMessage("bob", "hi").await());
            Check.fails(Unsupported.class, () -> client.update(new Update().join(Collections.singletonList("hall"))).await());
        }
    }

    void testPushesWaitForTheProgramAndTheOldestAreDropped() throws Exception {
        try (ScriptedServer server = new ScriptedServer();
                Client client = Client.connect(server.options().maxMessages(2).build())) {
            server.push(ScriptedServer.message(1), ScriptedServer.message(2), ScriptedServer.message(3));
            await("three messages", () -> client.statistics().pushesDropped == 1);
            Check.equal(1, ((Push.Dropped) client.receive(PushKind.MESSAGES, 0)).count);
            Check.equal(2, ((Push.Delivered) client.receive(PushKind.MESSAGES, 0)).body);
            Check.equal(3, ((Push.Delivered) client.receive(PushKind.MESSAGES, 0)).body);
            Check.equal(null, client.receive(PushKind.MESSAGES, 0));
            Check.equal(null, client.receive(PushKind.MESSAGES, 10));
            Check.that(client.receive(null, 0) instanceof Push.Connected, "another queue");
        }
    }

    void testAListenerGetsAllInOrderWhateverItThrows() throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        CountDownLatch thrown = new CountDownLatch(1);
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> thrown.countDown());
        Listener listener = new Listener() {
            @Override
            public void onConnected(Client client, Push.Connected push) {
                events.add("connected " + push.again);
                throw new IllegalStateException("of the program");
            }

            @Override
            public void onDelivered(Client client, Push.Delivered push) {
                events.add("message " + push.body);
            }

            @Override
            public void onEnded(Client client, PresenceError error) {
                events.add("ended " + error);
            }
        };
        try (ScriptedServer server = new ScriptedServer();
                Client client = Client.connect(server.options().listener(listener).build())) {
            server.push(ScriptedServer.message(1), ScriptedServer.message(2));
            await("all messages", () -> events.size() == 3);
            Check.fails(IllegalStateException.class, () -> client.receive(null, 0));
            client.close();
            await("the end", () -> events.size() == 4);
            Check.equal(Arrays.asList("connected false", "message 1", "message 2", "ended null"), new ArrayList<>(events));
            Check.that(thrown.await(WAIT_MS, TimeUnit.MILLISECONDS), "the exception was swallowed");
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
    }

    void testItReturnsByItselfAndWatchesAgain() throws Exception {
        try (ScriptedServer server = new ScriptedServer(); Client client = Client.connect(server.options().build())) {
            client.watchNowait(Arrays.asList("bob", "eve"));
            Check.equal(Arrays.asList("bob", "eve"), server.next(Kind.WATCH).payload.get("uids"));
            server.drop();
            Check.equal("closed", next(client, Push.Disconnected.class).reason);
            Check.that(next(client, Push.Connected.class).again, "again");
            Check.equal(Arrays.asList("bob", "eve"), server.next(Kind.WATCH).payload.get("uids"));
        }
    }

    void testAnotherNetworkIsUsedImmediately() throws Exception {
        try (ScriptedServer server = new ScriptedServer(); Client client = Client.connect(server.options().build())) {
            server.next(Kind.LOGIN);
            long began = System.nanoTime();
            client.networkChanged();
            Check.that(next(client, Push.Disconnected.class).retryInMs <= 250, "it hurries");
            server.next(Kind.LOGIN);
            Check.that(System.nanoTime() - began < 5e9, "that took too long");
            client.waitOnline().await();
        }
    }

    void testAClientThatWakesAsksForASignOfLife() throws Exception {
        try (ScriptedServer server = new ScriptedServer(); Client client = Client.connect(server.options().build())) {
            client.wake();
            Check.that(server.next(Kind.KEEPALIVE).id != null, "it asks");
        }
    }

    void testACancelledWatchIsUndone() throws Exception {
        try (ScriptedServer server = new ScriptedServer() {
            @Override
            Packet answer(Packet packet) {
                return packet.is(Kind.WATCH) ? null : super.answer(packet);
            }
        }; Client client = Client.connect(server.options().build())) {
            PresenceFuture<?> watch = client.watch(Collections.singletonList("bob"));
            server.next(Kind.WATCH);
            Check.that(watch.cancel(false), "cancelled");
            Check.equal(Collections.singletonList("bob"), server.next(Kind.UNWATCH).payload.get("uids"));
        }
    }

    void testTokensComeFromTheSource() throws Exception {
        BlockingQueue<String> threads = new LinkedBlockingQueue<>();
        try (ScriptedServer server = new ScriptedServer();
                Client client = Client.connect(server.options().token(() -> {
                    threads.add(Thread.currentThread().getName());
                    return "abc";
                }).build())) {
            Check.equal("abc", server.next(Kind.LOGIN).payload.get("token"));
            Check.equal("presence blocking", threads.take());
            Check.equal(1, client.statistics().logins);
        }
        ClientOptions failing = ClientOptions.builder("127.0.0.1", closedPort()).uid("ann").token(() -> {
            throw new java.io.IOException("no way there");
        }).build();
        Check.fails(PresenceError.NoToken.class, () -> Client.connect(failing));
    }

    void testManyClientsShareOneThreadWhichEndsWithTheLast() throws Exception {
        await("other tests' threads are gone", () -> loops() == 0);
        try (ScriptedServer server = new ScriptedServer()) {
            List<Client> clients = new ArrayList<>();
            for (int number = 0; number < 20; number++) {
                clients.add(Client.connect(server.options().device("d" + number).build()));
            }
            Check.equal(1, loops());
            for (Client client : clients) {
                client.close();
            }
            await("the thread ends", () -> loops() == 0);
        }
    }

    private static int loops() {
        int count = 0;
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            count += thread.getName().equals("presence loop") ? 1 : 0;
        }
        return count;
    }

    void testRequestsOfManyThreadsGetTheirOwnAnswers() throws Exception {
        try (ScriptedServer server = new ScriptedServer() {
            @Override
            Packet answer(Packet packet) {
                if (!packet.is(Kind.QUERY)) {
                    return super.answer(packet);
                }
                return ok(packet, "states", packet.payload.get("uids"));
            }
        }; Client client = Client.connect(server.options().build())) {
            List<Thread> threads = new ArrayList<>();
            BlockingQueue<Object> found = new LinkedBlockingQueue<>();
            for (int number = 0; number < 8; number++) {
                String uid = "u" + number;
                Thread thread = new Thread(() -> {
                    try {
                        for (int round = 0; round < 50; round++) {
                            found.add(client.query(Collections.singletonList(uid)).await().keySet().equals(
                                    Collections.singleton(uid)));
                        }
                    } catch (Exception error) {
                        found.add(error);
                    }
                });
                threads.add(thread);
                thread.start();
            }
            for (Thread thread : threads) {
                thread.join(WAIT_MS);
            }
            Check.equal(Collections.nCopies(400, true), new ArrayList<>(found));
        }
    }
}
