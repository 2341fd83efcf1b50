package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Date;
import java.util.List;
import java.util.Map;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.EncodeError;
import presence.client.PresenceError.Ended;
import presence.client.PresenceError.NotConnected;
import presence.client.PresenceError.RequestError;

/**
 * A user's device on a presence server. It sends keepalives at the server's interval, detects a dead server, and
 * reconnects by itself until the server forbids it.
 *
 * <p>Every method may be called from any thread; only {@link #connect}, {@link #close}, {@link #receive} and
 * {@link PresenceFuture#await} block. Requests return a future, which fails with a {@link PresenceError}:
 * {@link NotConnected} while the client is not logged in, because requests are not queued. Pushes go to the listener of
 * the options, or wait for {@link #receive}. All clients share one thread for their connections; like all threads of
 * this library it is a daemon, so a program that has nothing else to do must wait by itself.
 */
public final class Client implements AutoCloseable {
    private static final long CONFIRM_MS = 5000; // to wait for confirmations: a phone that is awake takes a second or two

    private final Link link;
    private final double timeoutS;

    private Client(ClientOptions options, boolean isPersistent) {
        this.link = new Link(this, options, isPersistent);
        this.timeoutS = options.requestTimeoutS;
        link.start();
    }

    /**
     * Returns a client that is logged in; it blocks until then.
     *
     * @throws PresenceError.Unreachable the first attempt failed.
     * @throws PresenceError.NoToken the source gave no token.
     * @throws PresenceError.LoginRefused the server refused the login.
     * @throws EncodeError an option breaks a rule of the protocol.
     * @throws InterruptedException the thread was interrupted; no client is left.
     */
    @NotNull
    public static Client connect(@NotNull ClientOptions options) throws InterruptedException {
        Client client = new Client(options, false);
        try {
            client.waitOnline().await();
            return client;
        } catch (PresenceError | InterruptedException failed) {
            client.disconnect();
            throw failed;
        }
    }

    /**
     * Returns a client immediately; a failed first attempt is repeated like later ones, and reported as
     * {@link Push.Disconnected}.
     *
     * @throws EncodeError an option breaks a rule of the protocol.
     */
    @NotNull
    public static Client start(@NotNull ClientOptions options) {
        return new Client(options, true);
    }

    /** As {@link #sendMessage(String, Object, boolean)} with {@code retry}. */
    @NotNull
    public PresenceFuture<Long> sendMessage(@NotNull String to, @Nullable Object body) {
        return sendMessage(to, body, true);
    }

    /**
     * Sends a message to all sessions of a user; the result is their number, at least 1. Messages of one client to one
     * user arrive in the order of the calls. It fails with {@link PresenceError.RecipientOffline},
     * {@link PresenceError.RecipientDisconnected}, {@link PresenceError.NotAllowed}, {@link PresenceError.Busy} or
     * another {@link PresenceError.RequestFailed}: nothing was delivered; or {@link PresenceError.Uncertain}.
     *
     * @param body null, Boolean, a number, String, byte[], Collection or Map with String keys.
     * @param retry whether to send it again every second, until the time-out of requests, while the recipient has lost
     *     its connection and may return. Later messages to the same user wait behind it.
     */
    @NotNull
    public PresenceFuture<Long> sendMessage(@NotNull String to, @Nullable Object body, boolean retry) {
        Packet packet = message(to, body, null);
        return link.request(packet, timeoutS, retry, answer -> Receipt.number(answer, "delivered"));
    }

    /** As {@link #sendConfirmed(String, Object, long)} with five seconds. */
    @NotNull
    public PresenceFuture<Receipt> sendConfirmed(@NotNull String to, @Nullable Object body) {
        return sendConfirmed(to, body, CONFIRM_MS);
    }

    /**
     * Sends a message once; the result says which of the recipient's sessions certainly have it. It comes as soon as all
     * have confirmed it, or after {@code confirmMs}, 30,000 at most. Fails as {@link #sendMessage}.
     */
    @NotNull
    public PresenceFuture<Receipt> sendConfirmed(@NotNull String to, @Nullable Object body, long confirmMs) {
        double confirmS = ClientOptions.positive("confirmMs", confirmMs) / 1000.0;
        return link.request(message(to, body, confirmS), confirmS + timeoutS, false, Receipt::new);
    }

    private static Packet message(String to, @Nullable Object body, @Nullable Double confirm) {
        Packet packet = Packet.of(Kind.MESSAGE, "to", to, "confirm", confirm);
        packet.payload.put("body", body); // null is a body, too
        return packet;
    }

    /** Returns the states of at most 500 users. */
    @NotNull
    public PresenceFuture<Map<String, UserState>> query(@NotNull Collection<String> uids) {
        return query(uids, false);
    }

    /**
     * Returns the states of at most 500 users, with {@code detail} also those of their devices;
     * {@link PresenceError.LimitReached}: with these, so many do not fit into an answer.
     */
    @NotNull
    public PresenceFuture<Map<String, UserState>> query(@NotNull Collection<String> uids, boolean detail) {
        Packet packet = Packet.of(Kind.QUERY, "uids", new ArrayList<>(uids), "detail", detail ? true : null);
        return link.request(packet, timeoutS, false, States::users);
    }

    /**
     * Returns the states of at most 500 users; {@link Push.PresenceChanged} follows for each change. The watch outlives
     * the connection: after each reconnect the client restores it, and reports differences; {@link Push.WatchEnded} if
     * the server refuses. A failed request has added no watch; {@link PresenceError.LimitReached}: more than the server
     * allows on a connection.
     */
    @NotNull
    public PresenceFuture<Map<String, UserState>> watch(@NotNull Collection<String> uids) {
        PersistentState state = link.state();
        Packet packet = Requests.watch(uids, state.watchDevices);
        return link.request(packet, timeoutS, false, answer -> state.watches.newest(States.users(answer)));
    }

    /**
     * Watches at most 500 users from now on, logged in or not. Their states arrive as {@link Push.PresenceChanged} with
     * the reason {@code watched}; until then they are {@code unknown} in {@link #watched}.
     *
     * @throws EncodeError for invalid or too many uids.
     * @throws Ended the client has ended.
     */
    public void watchNowait(@NotNull Collection<String> uids) {
        List<String> copy = new ArrayList<>(uids);
        link.call((machine, now) -> machine.watchNowait(copy, now));
    }

    /**
     * Watches the users whom the backend has listed for this user; returns their states. Their changes follow as for
     * {@link #watch}, and so do those of the list: the reason {@code watched} for a user who is added, and the status and
     * reason {@code removed} for one who is taken off it. {@link PresenceError.Unsupported}: the server is older.
     */
    @NotNull
    public PresenceFuture<Map<String, UserState>> watchRoster() {
        PersistentState state = link.state();
        Packet packet = Requests.watchRoster(state.watchDevices);
        return link.request(packet, timeoutS, false, answer -> state.watches.newest(States.users(answer)));
    }

    /** As {@link #watchRoster}, logged in or not; the states arrive as for {@link #watchNowait}. */
    public void watchRosterNowait() {
        link.call((machine, now) -> machine.watchRosterNowait(now));
    }

    /**
     * Gives the server a pass, by which this user may see others until it expires. The client gives its passes again on
     * each connection. {@link PresenceError.RequestFailed} 303: it is not valid, or is another user's.
     */
    @NotNull
    public PresenceFuture<Void> addPass(@NotNull String pass) {
        return link.request(Requests.pass(pass), timeoutS, false, answer -> null);
    }

    /** Stops watching all users, the roster and all rooms. */
    @NotNull
    public PresenceFuture<Void> unwatch() {
        return link.unwatch((machine, now) -> machine.unwatch(null, timeoutS, now));
    }

    /**
     * Stops watching some users immediately, whatever the future says; queued pushes still come. It is done without the
     * server while the client is not logged in, and if the connection breaks.
     */
    @NotNull
    public PresenceFuture<Void> unwatch(@NotNull Collection<String> uids) {
        List<String> copy = new ArrayList<>(uids);
        return link.unwatch((machine, now) -> machine.unwatch(copy, timeoutS, now));
    }

    /** Stops watching the roster as {@link #unwatch}; users whom the program watches by name stay watched. */
    @NotNull
    public PresenceFuture<Void> unwatchRoster() {
        return link.unwatch((machine, now) -> machine.unwatchRoster(timeoutS, now));
    }

    /** Returns the states of at most 64 rooms. Fails as {@link #watchRooms}. */
    @NotNull
    public PresenceFuture<Map<String, RoomState>> queryRooms(@NotNull Collection<String> rooms) {
        Packet packet = Packet.of(Kind.QUERY, "uids", Collections.emptyList(), "rooms", new ArrayList<>(rooms));
        return link.request(packet, timeoutS, false, States::rooms);
    }

    /**
     * Returns the states of at most 64 rooms; {@link Push.RoomChanged} follows for each change. This device need not be
     * in them. {@link PresenceError.NotAllowed}: this client may not watch one of them;
     * {@link PresenceError.LimitReached}: more than 64 on a connection; {@link PresenceError.Unsupported}: the server
     * has no rooms.
     */
    @NotNull
    public PresenceFuture<Map<String, RoomState>> watchRooms(@NotNull Collection<String> rooms) {
        Packet packet = Requests.watchRooms(rooms);
        WatchedRooms watched = link.state().watchedRooms;
        return link.request(packet, timeoutS, false, answer -> watched.newest(States.rooms(answer)));
    }

    /** Stops watching all rooms as {@link #unwatch}. */
    @NotNull
    public PresenceFuture<Void> unwatchRooms() {
        return link.unwatch((machine, now) -> machine.unwatchRooms(null, timeoutS, now));
    }

    /** Stops watching some rooms as {@link #unwatch}. */
    @NotNull
    public PresenceFuture<Void> unwatchRooms(@NotNull Collection<String> rooms) {
        List<String> copy = new ArrayList<>(rooms);
        return link.unwatch((machine, now) -> machine.unwatchRooms(copy, timeoutS, now));
    }

    /**
     * Changes what this session shows; once granted, later logins carry it, too. {@link PresenceError.NotAllowed}: the
     * token does not name one of the rooms; {@link PresenceError.LimitReached}: more than 16 rooms;
     * {@link PresenceError.Unsupported}: the server is older, and hides nothing for the user, or has no rooms: the rest
     * was granted, the status for this device.
     *
     * @throws IllegalArgumentException an end or a scope without a status, or an end of the user's invisibility.
     * @throws IllegalStateException a duration, and the server has not said what time it is.
     */
    @NotNull
    public PresenceFuture<Void> update(@NotNull Update update) {
        Double serverTimeS = link.serverTimeS();
        boolean fails = serverTimeS == null && state() != State.ONLINE; // as NotConnected, whatever the time
        Map<String, Object> fields = update.resolved(fails ? (Double) 0.0 : serverTimeS);
        return link.request(new Packet((long) Kind.UPDATE, null, fields), timeoutS, false, answer -> {
            boolean hides = States.list(answer, "hide").containsAll(States.list(fields, "hide"));
            if (!hides || ("user".equals(fields.get("scope")) && !"user".equals(answer.get("scope")))) {
                throw new PresenceError.Unsupported(
                        new Refusal(Code.UNSUPPORTED, "this server does not hide that for the user"));
            }
            boolean names = fields.containsKey("rooms") || fields.containsKey("join") || fields.containsKey("leave");
            if (names && !answer.containsKey("joined")) {
                throw new PresenceError.Unsupported(new Refusal(Code.UNSUPPORTED, "this server has no rooms"));
            }
            return null;
        });
    }

    /** Shows the user as away, until {@link #back}. */
    @NotNull
    public PresenceFuture<Void> away() {
        return update(new Update().status("away"));
    }

    /** Shows the user as online again. */
    @NotNull
    public PresenceFuture<Void> back() {
        return update(new Update().status("online"));
    }

    /**
     * Requests another idle time-out, milliseconds; returns the granted one. The interval of keepalives follows, 0.4 of
     * it: an app that goes to the background asks for a longer one. Later logins request the same.
     */
    @NotNull
    public PresenceFuture<Long> setIdleTimeout(long idleTimeoutMs) {
        double wantedS = ClientOptions.positive("idleTimeoutMs", idleTimeoutMs) / 1000.0;
        return link.request(Packet.of(Kind.UPDATE, "idle_timeout", wantedS), timeoutS, false, answer -> {
            Double grantedS = Times.seconds(answer.get("idle_timeout"));
            return grantedS == null ? (Long) idleTimeoutMs : Times.ms(grantedS);
        });
    }

    /**
     * Changes what later logins carry, also while offline: after a {@link Push.Disconnected} 302, a new token.
     *
     * @throws EncodeError a field breaks a rule of the protocol; nothing was changed.
     * @throws IllegalArgumentException a field that logins do not carry: scope, hide, join or leave.
     * @throws IllegalStateException a duration before the first login, when the server's clock is unknown.
     */
    public void logInWith(@NotNull Update change) {
        Map<String, Object> fields = change.resolved(link.serverTimeS());
        for (String name : new String[] {"scope", "hide", "join", "leave"}) {
            if (fields.containsKey(name)) {
                throw new IllegalArgumentException("logins do not carry " + name);
            }
        }
        link.call((machine, now) -> machine.persistentState.logInWith(fields));
    }

    /** Logs out as {@link #logout(String)} with the reason {@code logout}. */
    @NotNull
    public PresenceFuture<Void> logout() {
        return logout(null);
    }

    /**
     * Logs out: the user is offline immediately, and the client has ended, whatever the future says, which fails if the
     * server did not confirm it.
     *
     * @param reason {@code logout} or {@code background}; any other fails with {@link EncodeError}, and the client goes on.
     */
    @NotNull
    public PresenceFuture<Void> logout(@Nullable String reason) {
        return link.logOut(reason);
    }

    /** Ends without a logout, as if the network broke: the user is offline after the server's grace. */
    public void disconnect() {
        link.end(null);
    }

    /**
     * Logs out, if the client is online, and waits until it has no connection, some two seconds at most. Does nothing
     * more the second time. A thread that is interrupted does not wait.
     */
    @Override
    public void close() {
        try {
            if (state() == State.ONLINE) {
                logout().await();
            }
        } catch (RequestError | Ended unconfirmed) {
            // The client ends anyway.
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        link.stop();
    }

    /** Returns the state of the client. */
    @NotNull
    public State state() {
        return link.get(machine -> machine.state);
    }

    /** Returns the newest known state of each watched user; while the client is offline, the last known one. */
    @NotNull
    public Map<String, UserState> watched() {
        return link.get(machine -> machine.persistentState.watches.states());
    }

    /** Returns the newest known state of each watched room; while the client is offline, the last known one. */
    @NotNull
    public Map<String, RoomState> watchedRooms() {
        return link.get(machine -> machine.persistentState.watchedRooms.states());
    }

    /**
     * Returns the rooms that this device is in, in the order of their bytes, as the server has said last; null before
     * the first login, and on a server without rooms.
     */
    @Nullable
    public List<String> joined() {
        List<String> joined = link.get(machine -> machine.persistentState.joined);
        return joined == null ? null : Collections.unmodifiableList(joined);
    }

    /** Returns counters since the start. */
    @NotNull
    public Statistics statistics() {
        return link.statistics();
    }

    /** Returns the time by the clock of the last server; null before the first login. */
    @Nullable
    public Date serverTime() {
        Double timeS = link.serverTimeS();
        return timeS == null ? null : new Date(Times.ms(timeS));
    }

    /** Returns a future that is done when the client is logged in; it fails with {@link Ended} if it never will be. */
    @NotNull
    public PresenceFuture<Void> waitOnline() {
        return link.waitOnline();
    }

    /**
     * Waits for the next push, or the next of a kind.
     *
     * @param kind null: of any kind, in the order of arrival.
     * @param timeoutMs how long to wait, milliseconds; 0: not at all, -1: without end.
     * @return null: none came in time.
     * @throws Ended no more will come: the server or the program has ended the client.
     * @throws IllegalStateException the pushes go to the listener of the options.
     * @throws InterruptedException the thread was interrupted.
     */
    @Nullable
    public Push receive(@Nullable PushKind kind, long timeoutMs) throws InterruptedException {
        return link.receive(kind, timeoutMs);
    }

    /**
     * The device has another network, or has one again: the client drops its connection and reconnects immediately,
     * though not before a time that a server has named. Call it from {@code ConnectivityManager.NetworkCallback}.
     */
    public void networkChanged() {
        link.networkChanged();
    }

    /**
     * The device has woken up, or the app was opened: the client acts on what has become due meanwhile, and makes sure
     * that its connection is alive; if it waits to reconnect, it does so now. Call it from an alarm within Doze.
     */
    public void wake() {
        link.call((machine, now) -> machine.wake(now));
    }
}
