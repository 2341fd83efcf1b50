package presence.client;

import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Executor;
import javax.net.ssl.SSLContext;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/** Who a client is, and how it uses its connection; the same object serves any number of clients. */
public final class ClientOptions {
    final String host;
    final int port;
    final Map<String, Object> login;
    @Nullable final TokenSource tokenSource;
    final boolean watchDevices;
    @Nullable final SSLContext tls;
    final double requestTimeoutS;
    final int askEvery;
    final int maxMessages;
    final int maxChanges;
    @Nullable final Listener listener;
    final Executor executor;
    final NanoClock clock;

    private ClientOptions(Builder builder) {
        host = builder.host;
        port = builder.port;
        login = new LinkedHashMap<>(builder.login);
        tokenSource = builder.tokenSource;
        watchDevices = builder.watchDevices;
        tls = builder.tls;
        requestTimeoutS = builder.requestTimeoutMs / 1000.0;
        askEvery = builder.askEvery;
        maxMessages = builder.maxMessages;
        maxChanges = builder.maxChanges;
        listener = builder.listener;
        executor = builder.executor;
        clock = builder.clock;
    }

    /**
     * Returns a builder of options for a server.
     *
     * @param host its name or address.
     * @param port its TCP port, 1 to 65535.
     */
    @NotNull
    public static Builder builder(@NotNull String host, int port) {
        return new Builder(host, port);
    }

    static long positive(String name, long value) {
        if (value < 1) {
            throw new IllegalArgumentException(name + " must be above 0, not " + value);
        }
        return value;
    }

    /** Collects options; each method throws {@link IllegalArgumentException} for a value out of its range. */
    public static final class Builder {
        private final String host;
        private final int port;
        private final Map<String, Object> login = new LinkedHashMap<>();
        @Nullable private TokenSource tokenSource;
        private boolean watchDevices;
        @Nullable private SSLContext tls;
        private long requestTimeoutMs = 10_000;
        private int askEvery = 1;
        private int maxMessages = 1000;
        private int maxChanges = 1000;
        @Nullable private Listener listener;
        private Executor executor = Threads.CALLBACKS;
        private NanoClock clock = System::nanoTime;

        private Builder(String host, int port) {
            if (host.isEmpty() || host.indexOf('\0') >= 0 || port < 1 || port > 65_535) {
                throw new IllegalArgumentException("not an address: " + host + ":" + port);
            }
            this.host = host;
            this.port = port;
            login.put("v", 1);
        }

        /** The user; may be left out if a token names it. */
        @NotNull
        public Builder uid(@NotNull String uid) {
            return set("uid", uid);
        }

        /** Which of the user's devices; if left out, the default device. */
        @NotNull
        public Builder device(@NotNull String device) {
            return set("device", device);
        }

        /** What the device is, such as {@code phone}; the server may limit sessions by it. */
        @NotNull
        public Builder deviceClass(@NotNull String deviceClass) {
            return set("class", deviceClass);
        }

        /** The user's token, if the server requires one. */
        @NotNull
        public Builder token(@NotNull String token) {
            return set("token", token);
        }

        /**
         * Where tokens come from. After a refusal, the same token again or an expired one counts as a failed attempt; if
         * another token is refused, the client ends.
         */
        @NotNull
        public Builder token(@NotNull TokenSource source) {
            tokenSource = source;
            return this;
        }

        /** The idle time-out to request, milliseconds; the server decides, and {@link Push.Connected} has the result. */
        @NotNull
        public Builder idleTimeoutMs(long milliseconds) {
            return set("idle_timeout", positive("idleTimeoutMs", milliseconds) / 1000.0);
        }

        /** Shown to others with the user's state: at most 256 bytes packed. */
        @NotNull
        public Builder meta(@NotNull Map<String, ?> meta) {
            return set("meta", meta);
        }

        /** As {@link #meta}, for the application's backend only. */
        @NotNull
        public Builder privateMeta(@NotNull Map<String, ?> meta) {
            return set("private", meta);
        }

        /** {@code online}, the default, {@code away}, {@code busy}, {@code dnd} or {@code invisible}. */
        @NotNull
        public Builder status(@NotNull String status) {
            return set("status", status);
        }

        /** Whether the app is in the background: see {@link Update#quiet}. */
        @NotNull
        public Builder quiet(boolean quiet) {
            return set("quiet", quiet);
        }

        /** The rooms that this device is in, at most 16; {@link Client#joined} has those that the server let it into. */
        @NotNull
        public Builder rooms(@NotNull Collection<String> rooms) {
            return set("rooms", new ArrayList<>(rooms));
        }

        /** Whether the states of watched users have their devices; the server's operator has to allow it. */
        @NotNull
        public Builder watchDevices(boolean watchDevices) {
            this.watchDevices = watchDevices;
            return this;
        }

        /** Connects with TLS and the system's authorities; the certificate must name the host. */
        @NotNull
        public Builder tls() {
            try {
                return tls(SSLContext.getDefault());
            } catch (NoSuchAlgorithmException error) {
                throw new IllegalStateException("this runtime has no TLS", error);
            }
        }

        /** Connects with TLS and a context of your own. A client that returns resumes its TLS session. */
        @NotNull
        public Builder tls(@NotNull SSLContext context) {
            tls = context;
            return this;
        }

        /** How long a request waits for its answer, milliseconds; 10,000 if left out. */
        @NotNull
        public Builder requestTimeoutMs(long milliseconds) {
            requestTimeoutMs = positive("requestTimeoutMs", milliseconds);
            return this;
        }

        /** Every n-th keepalive asks for an answer; a dead server is noticed within n + 1 intervals. 1 if left out. */
        @NotNull
        public Builder askEvery(int n) {
            askEvery = (int) positive("askEvery", n);
            return this;
        }

        /** Messages that wait for the program; beyond it the oldest are dropped: {@link Push.Dropped}. 1000. */
        @NotNull
        public Builder maxMessages(int count) {
            maxMessages = (int) positive("maxMessages", count);
            return this;
        }

        /** The same for changes of presence and of rooms; those that a later one supersedes go first. 1000. */
        @NotNull
        public Builder maxChanges(int count) {
            maxChanges = (int) positive("maxChanges", count);
            return this;
        }

        /** Gets all pushes; without one they wait for {@link Client#receive}. */
        @NotNull
        public Builder listener(@NotNull Listener listener) {
            this.listener = listener;
            return this;
        }

        /**
         * Runs listeners and callbacks, such as {@code handler::post}; if left out, one thread that all clients share. It
         * must run tasks in their order or one at a time for each client.
         */
        @NotNull
        public Builder executor(@NotNull Executor executor) {
            this.executor = executor;
            return this;
        }

        /** See {@link NanoClock}; {@code System.nanoTime} if left out. */
        @NotNull
        public Builder clock(@NotNull NanoClock clock) {
            this.clock = clock;
            return this;
        }

        /** Returns the options. */
        @NotNull
        public ClientOptions build() {
            return new ClientOptions(this);
        }

        private Builder set(String key, Object value) {
            if (value == null) {
                throw new NullPointerException(key);
            }
            login.put(key, value);
            return this;
        }
    }
}
