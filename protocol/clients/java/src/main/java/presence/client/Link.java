package presence.client;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import org.jetbrains.annotations.Nullable;
import presence.client.Effect.RequestResult;
import presence.client.PresenceError.ConnectionLost;

/**
 * Runs a machine: the calls of the program, on any thread, and the connections, on the loop's thread.
 *
 * <p>The machine and the inbox are touched under {@code lock} only, and no code of the program runs under it: results
 * are collected in {@code settled} and handed out afterwards. What the machine wants of the network is done by
 * {@link #service} on the loop's thread, after each input.
 */
final class Link {
    /** An input to the machine by a call of the program. */
    interface Input {
        void into(ClientMachine machine, double now);
    }

    /** An input that sends an unwatch; returns its id, or null: there is nothing to wait for. */
    interface UnwatchInput {
        @Nullable
        Long into(ClientMachine machine, double now);
    }

    interface Getter<T> {
        T from(ClientMachine machine);
    }

    /** Makes the result of a request of the payload of its ok; under the lock. */
    interface Answer<T> {
        @Nullable
        T of(Map<String, Object> payload);
    }

    /** A request that the program waits for. */
    private final class Waiting<T> implements Runnable {
        final PresenceFuture<T> future = new PresenceFuture<>(options.executor, this);
        final Answer<T> answer;
        final boolean ignoresLoss; // with the connection went the watch
        long id = Packet.NO_ID;

        Waiting(Answer<T> answer, boolean ignoresLoss) {
            this.answer = answer;
            this.ignoresLoss = ignoresLoss;
        }

        @Override
        public void run() { // cancelled
            synchronized (lock) {
                waiting.remove(id);
                perform(machine.abandonRequest(id));
            }
            settle();
        }

        void answered(RequestResult result) {
            PresenceError error = result.error;
            T value = null;
            try {
                value = result.answer == null ? null : answer.of(result.answer);
            } catch (PresenceError unsupported) {
                error = unsupported;
            }
            PresenceError failure = ignoresLoss && error instanceof ConnectionLost ? null : error;
            T success = value;
            settled.add(() -> {
                if (failure == null) {
                    future.succeed(success);
                } else {
                    future.fail(failure);
                }
            });
        }
    }

    private final Object lock = new Object();
    private final Client client;
    private final ClientOptions options;
    private final ClientMachine machine;
    private final Inbox inbox;
    private final long originNanos;
    private final Map<Long, Waiting<?>> waiting = new HashMap<>(2);
    private final List<PresenceFuture<Void>> waitingOnline = new ArrayList<>(1);
    private List<Runnable> settled = new ArrayList<>(2);
    private boolean isDelivering; // a task of the listener runs, or is to run
    private boolean endWasTold;
    private boolean isServicePending;
    private boolean dropsConnection; // the network has changed
    private boolean isFetching; // the source's call runs
    @Nullable private Thread fetchThread; // to interrupt it
    private boolean isStopped; // no connection is left
    // Of the loop's thread:
    @Nullable private Connector connector;
    @Nullable private Connection connection;
    final Loop loop;
    @Nullable Loop.Timer timer;

    Link(Client client, ClientOptions options, boolean isPersistent) {
        Chance chance = () -> ThreadLocalRandom.current().nextDouble();
        String server = options.host + ":" + options.port;
        this.client = client;
        this.options = options;
        this.originNanos = options.clock.nanos();
        this.machine = new ClientMachine(new Packet((long) Kind.LOGIN, null, options.login), 0,
                new ReconnectPolicy(server, isPersistent, chance), options.tokenSource != null, options.askEvery,
                options.watchDevices, chance);
        this.inbox = new Inbox(options.maxMessages, options.maxChanges);
        this.loop = Loop.acquire();
    }

    void start() {
        settle();
    }

    private double now() {
        return (options.clock.nanos() - originNanos) / 1e9;
    }

    PersistentState state() {
        return machine.persistentState;
    }

    // Calls of the program

    <T> T get(Getter<T> getter) {
        synchronized (lock) {
            return getter.from(machine);
        }
    }

    Statistics statistics() {
        return get(machine -> machine.statistics(inbox));
    }

    @Nullable
    Double serverTimeS() {
        return get(machine -> machine.serverTimeS(now()));
    }

    void call(Input input) {
        synchronized (lock) {
            input.into(machine, now());
        }
        settle();
    }

    <T> PresenceFuture<T> request(Packet packet, double timeoutS, boolean retries, Answer<T> answer) {
        return request(new Waiting<>(answer, false), (machine, now) -> machine.request(packet, timeoutS, now, retries));
    }

    PresenceFuture<Void> unwatch(UnwatchInput input) {
        return request(new Waiting<Void>(payload -> null, true), input);
    }

    PresenceFuture<Void> logOut(@Nullable String reason) {
        return request(new Waiting<Void>(payload -> null, false), (machine, now) -> machine.logOut(reason, now));
    }

    private <T> PresenceFuture<T> request(Waiting<T> request, UnwatchInput input) {
        synchronized (lock) {
            try {
                Long id = input.into(machine, now());
                if (id == null) {
                    settled.add(() -> request.future.succeed(null));
                } else {
                    request.id = id;
                    waiting.put(id, request);
                }
            } catch (PresenceError refused) {
                settled.add(() -> request.future.fail(refused));
            }
        }
        settle();
        return request.future;
    }

    PresenceFuture<Void> waitOnline() {
        PresenceFuture<Void> future = new PresenceFuture<>(options.executor, () -> {});
        synchronized (lock) {
            waitingOnline.add(future);
        }
        settle();
        return future;
    }

    @Nullable
    Push receive(@Nullable PushKind kind, long timeoutMs) throws InterruptedException {
        if (options.listener != null) {
            throw new IllegalStateException("the pushes go to the listener");
        }
        long end = System.nanoTime() + timeoutMs * 1_000_000;
        synchronized (lock) {
            while (true) {
                Push push = inbox.pop(kind);
                if (push != null) {
                    return push;
                } else if (machine.state == State.ENDED) {
                    throw machine.endError();
                }
                long leftMs = timeoutMs < 0 ? 0 : (end - System.nanoTime() + 999_999) / 1_000_000;
                if (timeoutMs >= 0 && leftMs <= 0) {
                    return null;
                }
                lock.wait(leftMs);
            }
        }
    }

    void networkChanged() {
        synchronized (lock) {
            dropsConnection = true;
            perform(machine.networkChanged(now()));
        }
        settle();
    }

    /** Ends without a logout; {@code failure}: why the client cannot go on, null: the program wants it. */
    void end(@Nullable Throwable failure) {
        synchronized (lock) {
            perform(machine.close(failure));
        }
        settle();
    }

    /** Ends without a logout, and waits until no connection is left; a thread that is interrupted does not wait. */
    void stop() {
        try {
            synchronized (lock) {
                while (machine.state == State.LOGGING_OUT) { // by another call, which is still to be sent
                    lock.wait();
                }
            }
            end(null);
            synchronized (lock) {
                while (!isStopped) {
                    lock.wait();
                }
            }
        } catch (InterruptedException interrupted) {
            end(null);
            Thread.currentThread().interrupt();
        }
    }

    // Effects

    /** Applies effects of the machine; under the lock. */
    private void perform(List<Effect> effects) {
        for (Effect each : effects) {
            if (each instanceof Push) {
                inbox.put((Push) each);
            } else {
                RequestResult result = (RequestResult) each;
                Waiting<?> request = waiting.remove(result.id);
                if (request != null) {
                    request.answered(result);
                }
            }
        }
        if (!effects.isEmpty() || machine.state == State.ENDED) {
            lock.notifyAll();
        }
    }

    /** Hands results and pushes to the program, and has the loop do what the machine wants; without the lock. */
    private void settle() {
        List<Runnable> results = Collections.emptyList();
        boolean delivers;
        boolean needsService;
        synchronized (lock) {
            if (machine.state == State.ONLINE || machine.state == State.ENDED) {
                boolean isOnline = machine.state == State.ONLINE;
                for (PresenceFuture<Void> each : waitingOnline) {
                    settled.add(isOnline ? () -> each.succeed(null) : () -> each.fail(machine.endError()));
                }
                waitingOnline.clear();
            }
            if (!settled.isEmpty()) {
                results = settled;
                settled = new ArrayList<>(2);
            }
            boolean hasNews = inbox.size() > 0 || (machine.state == State.ENDED && !endWasTold);
            delivers = options.listener != null && hasNews && !isDelivering;
            isDelivering |= delivers;
            needsService = !isServicePending && !isStopped;
            isServicePending |= needsService;
        }
        for (Runnable each : results) {
            each.run();
        }
        if (delivers && !Threads.run(options.executor, this::deliver)) {
            synchronized (lock) {
                isDelivering = false;
            }
        }
        if (needsService) {
            execute(this::service);
        }
    }

    /** Calls the listener until no push is left; on the executor of the options. */
    private void deliver() {
        while (true) {
            Push push;
            PresenceError why;
            synchronized (lock) {
                push = inbox.pop(null);
                why = machine.error;
                if (push == null && (machine.state != State.ENDED || endWasTold)) {
                    isDelivering = false;
                    return;
                }
                endWasTold |= push == null;
            }
            try {
                if (push != null) {
                    options.listener.dispatch(client, push);
                } else {
                    options.listener.onEnded(client, why);
                }
            } catch (Throwable error) { // the program's own: it must not cost the pushes that follow
                Thread thread = Thread.currentThread();
                thread.getUncaughtExceptionHandler().uncaughtException(thread, error);
            }
        }
    }

    // The loop's thread

    /** Does what the machine wants of the network: connect, close, write, ask for a token, wake up in time. */
    private void service() throws IOException {
        State state;
        boolean wantsToken;
        boolean drops;
        synchronized (lock) {
            isServicePending = false;
            state = machine.state;
            wantsToken = machine.wantsToken();
            drops = dropsConnection;
            dropsConnection = false;
        }
        if (connector != null && (drops || state != State.CONNECTING)) {
            connector.cancel();
            connector = null;
        }
        if (connection != null && (drops || (state != State.CONNECTING && !state.isConnected()))) {
            connection.close();
            connection = null;
        }
        if (state == State.CONNECTING && connector == null && connection == null) {
            connector = new Connector(this, options.host, options.port);
            connector.start();
        }
        updateFetch(wantsToken);
        flush();
        double deadline;
        synchronized (lock) {
            deadline = machine.deadline();
        }
        double waitS = deadline - now();
        loop.schedule(this, connector == null ? waitS : Math.min(waitS, connector.nextAttemptIn()));
        if (state == State.ENDED) {
            stopped();
        }
    }

    private void stopped() {
        synchronized (lock) {
            if (isStopped) {
                return;
            }
            isStopped = true;
            lock.notifyAll();
        }
        loop.release(this);
    }

    /** Time has come: for the machine, or for the next address of a connection. */
    void tick() {
        guard(() -> {
            if (connector != null) {
                connector.tick();
            }
            input(() -> machine.tick(now()));
        });
    }

    /** A task of the loop for this client. */
    interface Task {
        void run() throws IOException;
    }

    /** Runs a task on the loop's thread, soon; from any thread. */
    void execute(Task task) {
        loop.execute(() -> guard(task));
    }

    /** Runs a task; a bug in it ends this client, and no other one. */
    private void guard(Task task) {
        try {
            task.run();
        } catch (IOException | RuntimeException | Error bug) {
            end(bug);
        }
    }

    private interface LoopInput {
        List<Effect> into();
    }

    private void input(LoopInput input) {
        synchronized (lock) {
            perform(input.into());
        }
        settle();
    }

    /** An input from a connection, unless it is one of the former network. */
    private void networkInput(LoopInput input) {
        input(() -> dropsConnection ? Collections.<Effect>emptyList() : input.into());
    }

    private void updateFetch(boolean wantsToken) {
        synchronized (lock) {
            if (wantsToken && !isFetching) {
                isFetching = true;
                Threads.BLOCKING.execute(this::fetchToken);
            } else if (!wantsToken && fetchThread != null) {
                fetchThread.interrupt();
            }
        }
    }

    private void fetchToken() {
        Object token = null;
        boolean isWanted;
        synchronized (lock) {
            isWanted = machine.wantsToken();
            fetchThread = Thread.currentThread();
        }
        try {
            token = isWanted ? options.tokenSource.token() : null;
        } catch (Throwable error) { // the program's own: the machine reports it
            token = error;
        }
        synchronized (lock) {
            fetchThread = null;
            isFetching = false;
            Thread.interrupted(); // the thread is that of all clients
            perform(isWanted ? machine.tokenFetched(token, now()) : Collections.<Effect>emptyList());
        }
        settle();
    }

    /** The connector has reached the server. */
    void tcpEstablished(SocketChannel channel) throws IOException {
        connector = null;
        connection = new Connection(this, channel, options.tls == null ? null
                : new TlsLayer(options.tls, options.host, options.port));
        connection.start();
    }

    /** The connection is established, with TLS if it is wanted. */
    void established() {
        networkInput(() -> {
            machine.established(now());
            return Collections.emptyList();
        });
    }

    /** The connection ended or could not be made. */
    void disconnected(String why) {
        connector = null;
        if (connection != null) {
            connection.close();
            connection = null;
        }
        networkInput(() -> machine.disconnected(why, now()));
    }

    void received(byte[] data, int start, int length) {
        networkInput(() -> machine.received(data, start, length, now()));
    }

    /** Writes what the machine has to send, as far as the connection takes it. */
    void flush() {
        while (connection != null && connection.isReadyToSend()) {
            byte[] bytes;
            synchronized (lock) {
                if (!machine.isConnected() || !machine.hasOutgoing()) {
                    return;
                }
                bytes = machine.takeOutgoing();
            }
            connection.send(bytes);
            noteWritten();
        }
    }

    /** Tells the machine, if everything was written. */
    void noteWritten() {
        if (connection != null && connection.isReadyToSend()) {
            synchronized (lock) {
                machine.written(now());
            }
        }
    }
}
