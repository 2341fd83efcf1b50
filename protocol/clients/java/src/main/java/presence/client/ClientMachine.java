package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.jetbrains.annotations.Nullable;
import presence.client.Effect.RequestResult;
import presence.client.PresenceError.ConnectionLost;
import presence.client.PresenceError.EncodeError;
import presence.client.PresenceError.Ended;
import presence.client.PresenceError.NotConnected;
import presence.client.Push.Connected;
import presence.client.Push.Disconnected;
import presence.client.Push.Goodbye;
import presence.client.ReconnectPolicy.Loss;
import presence.client.ReconnectPolicy.Outcome;

/**
 * The client's protocol as a state machine: no I/O, and time (seconds of any monotonic clock) and randomness are
 * arguments. It is not thread-safe.
 *
 * <p>A shell moves the bytes. It connects while the state is CONNECTING, reads and writes while {@link #isConnected},
 * closes the connection as soon as that is false, and calls {@link #tick} at {@link #deadline}. It must read all
 * received bytes before that call, or an answer that arrived in time would count as missing. Each input returns its
 * effects, in order; {@link #takeOutgoing} returns the bytes to send, and the shell calls {@link #written} after it has
 * sent them. While {@link #wantsToken} is true, the shell asks the program for a token, one call at a time, and passes
 * the result to {@link #tokenFetched}.
 *
 * <pre>
 * FETCHING_TOKEN -> CONNECTING -> LOGGING_IN -> ONLINE -> LOGGING_OUT -> ENDED
 *       ^ v            ^ v            v            v
 *       WAITING <------+-+------------+------------+         and from any state to ENDED
 *
 * state            input                                             next state
 * FETCHING_TOKEN   a token                                           CONNECTING
 *                  an exception, a stale token, a time-out           WAITING *
 * CONNECTING       established                                       LOGGING_IN
 *                  disconnected, a time-out                          WAITING *
 * LOGGING_IN       ok                                                ONLINE
 *                  error, goodbye                                    WAITING * or ENDED: ReconnectPolicy
 *                  disconnected, a time-out, invalid bytes           WAITING *
 *                  networkChanged                                    CONNECTING
 * ONLINE           logOut                                            LOGGING_OUT
 *                  goodbye to return, disconnected, networkChanged,
 *                    no answer to a keepalive, invalid bytes         WAITING
 *                  goodbye for good, disconnected after an error     ENDED
 * LOGGING_OUT      its answer, goodbye, disconnected, a time-out     ENDED
 * WAITING          the end of the pause                              FETCHING_TOKEN or CONNECTING
 * any              close, logOut                                     ENDED
 *
 * * ENDED, if the first attempt must succeed and has failed.
 * </pre>
 */
final class ClientMachine {
    private static final double CONNECT_TIMEOUT_S = 10; // name, TCP and TLS; a lost SYN is repeated after 1, 3 and 7 s
    private static final double LOGIN_TIMEOUT_S = 6; // the server refuses a login left unread for 5 s
    private static final double LOGOUT_TIMEOUT_S = 2;
    private static final double DEFAULT_IDLE_TIMEOUT_S = 30; // where the server names none
    private static final double HURRY_S = 0.25; // the most that ends a wait because of a sign from the device
    private static final long LOGIN_ID = 1;

    private final int askEvery;
    private final Chance chance;
    private final Session.Ids ids = new Session.Ids(LOGIN_ID);
    private final List<byte[]> outgoing = new ArrayList<>(2);
    private final ServerClock clock = new ServerClock();
    private final LoginToken loginToken;
    private final ReconnectPolicy reconnectPolicy;
    private Codec.Decoder decoder = new Codec.Decoder(Codec.SERVER_LIMIT_BYTES);
    private long logoutId = Packet.NO_ID;
    @Nullable private Session session;
    private double stateDeadline;
    private double notBefore; // a server has asked not to return earlier
    private long keepalivesSent;
    final PersistentState persistentState;
    State state;
    @Nullable PresenceError error; // why the client has ended; null before, and after its own logout or close

    /**
     * @param login the login packet, without an id.
     * @param fetches whether the program is asked for a token before each login, and before a token expires.
     * @param askEvery every n-th keepalive asks for an answer.
     * @param watchDevices whether watches ask for the devices of users.
     * @throws EncodeError the login breaks a rule of the protocol.
     */
    ClientMachine(Packet login, double now, ReconnectPolicy reconnectPolicy, boolean fetches, int askEvery,
            boolean watchDevices, Chance chance) {
        this.persistentState = new PersistentState(login, fetches, watchDevices);
        this.askEvery = askEvery;
        this.chance = chance;
        this.loginToken = new LoginToken(persistentState, clock, fetches, chance);
        this.reconnectPolicy = reconnectPolicy;
        begin(now);
    }

    // Queries of the shell

    /** Returns whether the shell should hold a connection. */
    boolean isConnected() {
        return state.isConnected();
    }

    /** Returns whether to ask the program for a token now, unless a call is already running. */
    boolean wantsToken() {
        return loginToken.isWanted() && (state == State.FETCHING_TOKEN || state == State.ONLINE);
    }

    /** Returns when to call {@link #tick}; infinite after the end. */
    double deadline() {
        if (state == State.ENDED) {
            return Double.POSITIVE_INFINITY;
        } else if (session == null) {
            return stateDeadline;
        }
        return state == State.ONLINE ? session.deadline() : Math.min(stateDeadline, session.requestsDueAt());
    }

    Statistics statistics(Inbox inbox) {
        Double roundTripS = session == null ? null : session.keepalives.roundTripS;
        Double roundTripMs = roundTripS == null ? null : (Double) (roundTripS * 1000);
        return new Statistics(reconnectPolicy.logins, reconnectPolicy.losses, keepalivesSent, roundTripMs, inbox);
    }

    /** Returns the Unix seconds by the clock of the last server; null before the first login. */
    @Nullable
    Double serverTimeS(double now) {
        return clock.timeS(now);
    }

    boolean hasOutgoing() {
        return !outgoing.isEmpty();
    }

    /** Returns the exception for requests to an ended client. */
    PresenceError endError() {
        return error != null ? error : new Ended(new Refusal(Code.LOGOUT, "this client was logged out or closed"));
    }

    /** Returns the bytes to send on the current connection, and clears them. */
    byte[] takeOutgoing() {
        int size = 0;
        for (byte[] frame : outgoing) {
            size += frame.length;
        }
        byte[] bytes = new byte[size];
        int at = 0;
        for (byte[] frame : outgoing) {
            System.arraycopy(frame, 0, bytes, at, frame.length);
            at += frame.length;
        }
        outgoing.clear();
        return bytes;
    }

    // Inputs of the shell

    /** Begins the first attempt to come online now, and not when the machine was made. */
    void begin(double now) {
        boolean waits = loginToken.beginAttempt(now);
        state = waits ? State.FETCHING_TOKEN : State.CONNECTING;
        stateDeadline = now + (waits ? LoginToken.TIMEOUT_S : CONNECT_TIMEOUT_S);
    }

    /** The bytes taken so far have been written to the connection. */
    void written(double now) {
        if (session != null && outgoing.isEmpty()) {
            session.keepalives.noteWritten(now);
        }
    }

    /** The program returned a token, or threw a Throwable; ignored if no token is wanted any more. */
    List<Effect> tokenFetched(@Nullable Object token, double now) {
        if (!wantsToken()) {
            return none();
        }
        Loss lacking = loginToken.offer(token, now);
        if (session != null) {
            session.renewToken(lacking, now);
        } else if (lacking != null) {
            return connectionLost(lacking, now, false);
        } else {
            state = State.CONNECTING;
            stateDeadline = now + CONNECT_TIMEOUT_S;
        }
        return none();
    }

    /** The connection is established: logs in, unless the client has ended meanwhile. */
    void established(double now) {
        if (state != State.CONNECTING) {
            return;
        }
        decoder = new Codec.Decoder(Codec.SERVER_LIMIT_BYTES);
        Double timeS = clock.timeS(now);
        Packet login = persistentState.loginPacket(LOGIN_ID, timeS == null ? null : (Double) (timeS * 1000));
        outgoing.clear();
        outgoing.add(Codec.encode(login, Codec.SERVER_LIMIT_BYTES));
        loginToken.loginSent();
        state = State.LOGGING_IN;
        stateDeadline = now + LOGIN_TIMEOUT_S;
    }

    /** Bytes were received; those after the end of the connection are dropped. The array may be used again. */
    List<Effect> received(byte[] data, int start, int length, double now) {
        if (!isConnected()) {
            return none();
        }
        List<Effect> effects = new ArrayList<>(2);
        if (session != null) {
            session.keepalives.noteReceived(now);
        }
        try {
            decoder.feed(data, start, length);
            Packet packet = decoder.next();
            while (packet != null) {
                effects.addAll(handlePacket(packet, now));
                packet = isConnected() ? decoder.next() : null;
            }
            if (session != null) {
                session.sendConfirmations();
            }
        } catch (ProtocolError broken) {
            effects.addAll(connectionLost(new Loss("bad_server", broken.getMessage(), null), now, false));
        }
        return effects;
    }

    /** The connection ended or could not be made; {@code message} says why, for people. */
    List<Effect> disconnected(String message, double now) {
        if (state == State.CONNECTING) {
            return connectionLost(new Loss("unreachable", message, null), now, false);
        } else if (!isConnected()) {
            return none();
        } else if (session != null && session.refusal != null) {
            return end(session.refusal.ofConnection());
        }
        return connectionLost(new Loss("closed", message, null), now, false);
    }

    /**
     * The device has another network: what was sent over the former one is lost. The shell has closed its connection,
     * or what it had of one. A waiting client returns immediately, but not before a time that a server has named.
     */
    List<Effect> networkChanged(double now) {
        if (state == State.ONLINE) {
            return connectionLost(new Loss("closed", "the network has changed", null), now, true);
        } else if (state == State.CONNECTING || state == State.LOGGING_IN) {
            outgoing.clear();
            state = State.CONNECTING;
            stateDeadline = now + CONNECT_TIMEOUT_S;
        } else if (state == State.WAITING) {
            hurry(now);
        }
        return none();
    }

    /**
     * The device may have slept: what the machine knows of the connection may be outdated. It asks the server for a sign
     * of life; if it waits to return, it does so immediately, but not before a time that a server has named.
     */
    void wake(double now) {
        if (state == State.ONLINE && session != null) {
            session.keepalives.probe(now);
        } else if (state == State.WAITING) {
            hurry(now);
        }
    }

    private void hurry(double now) {
        stateDeadline = Math.min(stateDeadline, Math.max(now, notBefore) + HURRY_S * chance.next());
    }

    /** Acts on time-outs; does nothing before the deadline. */
    List<Effect> tick(double now) {
        if (state == State.ONLINE && session != null) {
            return tickOnline(session, now);
        }
        List<Effect> effects = new ArrayList<>(2);
        if (state == State.LOGGING_OUT && session != null) {
            effects.addAll(session.expireRequests(now));
        }
        if (now < stateDeadline) {
            return effects;
        }
        switch (state) {
            case WAITING:
                begin(now);
                break;
            case FETCHING_TOKEN:
                Throwable late = new java.util.concurrent.TimeoutException("none came within 30 s");
                effects.addAll(tokenFetched(late, now));
                break;
            case CONNECTING:
                effects.addAll(connectionLost(new Loss("unreachable", "no connection within 10 s", null), now, false));
                break;
            case LOGGING_IN:
                Loss loss = new Loss("login_timeout", "no answer to the login within 6 s", null);
                effects.addAll(connectionLost(loss, now, false));
                break;
            case LOGGING_OUT:
                effects.addAll(end(null));
                break;
            default:
        }
        return effects;
    }

    /**
     * Sends a request and returns its id; one {@link RequestResult} follows. See {@link Session#request}.
     *
     * @throws NotConnected not logged in now.
     * @throws Ended ended for good.
     * @throws EncodeError the packet breaks a rule of the protocol.
     */
    long request(Packet packet, double timeoutS, double now, boolean retries) {
        long id = checkOnline().request(packet, timeoutS, now, retries, null);
        if (packet.is(Kind.UPDATE)) {
            persistentState.supersede(id, packet.payload);
        }
        return id;
    }

    private Session checkOnline() {
        checkNotEnded();
        if (state != State.ONLINE || session == null) {
            throw new NotConnected(state + ": nothing was sent");
        }
        return session;
    }

    private void checkNotEnded() {
        if (state == State.ENDED) {
            throw endError();
        }
    }

    /**
     * Sends a logout and returns its id: the user is offline as soon as the server reads it.
     *
     * @throws NotConnected the client has ended all the same, and a session of an earlier connection ends by itself.
     * @throws EncodeError the protocol has no such reason.
     */
    long logOut(@Nullable String reason, double now) {
        try {
            logoutId = request(Packet.of(Kind.LOGOUT, "reason", reason), LOGOUT_TIMEOUT_S, now, false);
        } catch (NotConnected offline) {
            if (state != State.LOGGING_OUT) {
                end(null);
            }
            throw offline;
        }
        session.isLeaving = true;
        state = State.LOGGING_OUT;
        stateDeadline = now + LOGOUT_TIMEOUT_S;
        return logoutId;
    }

    /**
     * Ends without a logout: the user is offline after the server's grace for lost connections.
     *
     * @param failure because of which the shell cannot go on; null: the program wants it.
     */
    List<Effect> close(@Nullable Throwable failure) {
        if (state == State.ENDED) {
            return none();
        } else if (failure == null) {
            return end(null);
        }
        Ended ended = new Ended(new Refusal(Code.CLOSED, "after " + Times.text(failure)));
        ended.initCause(failure);
        return end(ended);
    }

    /**
     * Watches users from now on, connected or not; their states arrive as changes.
     *
     * @throws EncodeError for invalid or too many uids.
     */
    void watchNowait(Collection<String> uids, double now) {
        checkNotEnded();
        Packet longest = Requests.watch(uids, persistentState.watchDevices).withId(Long.MAX_VALUE);
        Codec.encode(longest, Codec.LIMIT_BYTES);
        List<String> added = persistentState.watches.add(uids);
        if (!added.isEmpty() && session != null && state == State.ONLINE) {
            session.watch(added, now);
        }
    }

    /** Watches the users of the roster from now on, connected or not. */
    void watchRosterNowait(double now) {
        checkNotEnded();
        boolean isNew = persistentState.watches.followRoster();
        if (isNew && session != null && state == State.ONLINE) {
            session.watchRoster(now);
        }
    }

    /**
     * Stops watching some users, or for null all, the roster and all rooms; returns the request's id, or null if the
     * client is not connected.
     */
    @Nullable
    Long unwatch(@Nullable Collection<String> uids, double timeoutS, double now) {
        Packet packet = Requests.unwatch(uids);
        try {
            return request(packet, timeoutS, now, false);
        } catch (NotConnected offline) {
            Codec.encode(packet, Codec.LIMIT_BYTES);
            persistentState.unwatch(uids);
            return null;
        }
    }

    /** Stops watching some rooms, or all for null; returns the id of the last request, or null if not connected. */
    @Nullable
    Long unwatchRooms(@Nullable Collection<String> rooms, double timeoutS, double now) {
        List<Collection<String>> batches = new ArrayList<>();
        if (rooms != null) {
            batches.add(rooms);
        } else {
            batches.addAll(persistentState.watchedRooms.batches());
        }
        if (batches.isEmpty()) {
            batches.add(Collections.<String>emptyList());
        }
        Long id = null;
        for (Collection<String> batch : batches) {
            Packet packet = Requests.unwatchRooms(batch);
            try {
                id = request(packet, timeoutS, now, false);
            } catch (NotConnected offline) {
                Codec.encode(packet, Codec.LIMIT_BYTES);
                persistentState.watchedRooms.remove(batch);
            }
        }
        return id;
    }

    /** Stops watching the roster; returns the request's id, or null if the client is not connected. */
    @Nullable
    Long unwatchRoster(double timeoutS, double now) {
        try {
            return request(Requests.unwatchRoster(), timeoutS, now, false);
        } catch (NotConnected offline) {
            persistentState.watches.unwatchRoster();
            return null;
        }
    }

    /** Stops waiting for an answer; a watch is undone. */
    List<Effect> abandonRequest(long id) {
        return session == null ? none() : session.abandonRequest(id);
    }

    // Transitions

    private static List<Effect> none() {
        return Collections.emptyList();
    }

    private List<Effect> handlePacket(Packet packet, double now) {
        if (packet.is(Kind.GOODBYE)) {
            return handleGoodbye(packet.payload, now);
        }
        if (packet.is(Kind.OK) && (session == null || packet.payload.containsKey("joined"))) {
            boolean isKnown = packet.payload.containsKey("joined");
            persistentState.joined = isKnown ? PersistentState.strings(packet.payload, "joined") : null;
        }
        if (session == null) {
            return handleLoginAnswer(packet, now);
        }
        List<Effect> effects = session.handlePacket(packet, now);
        for (Effect each : effects) {
            if (each instanceof RequestResult && ((RequestResult) each).id == logoutId) {
                List<Effect> all = new ArrayList<>(effects);
                all.addAll(end(null));
                return all;
            }
        }
        return effects;
    }

    private List<Effect> handleLoginAnswer(Packet packet, double now) {
        Map<String, Object> payload = packet.payload;
        if (packet.is(Kind.ERROR)) {
            return loginRefused(Loss.of(Refusal.of(payload)), null, now);
        } else if (!packet.is(Kind.OK) || packet.id() != LOGIN_ID) {
            return none();
        }
        Double idleTimeout = Times.seconds(payload.get("idle_timeout"));
        idleTimeout = idleTimeout == null ? (Double) DEFAULT_IDLE_TIMEOUT_S : idleTimeout;
        Double keepalive = Times.seconds(payload.get("keepalive"));
        keepalive = keepalive == null ? (Double) (Keepalives.SHARE * idleTimeout) : keepalive;
        Double timeMs = Times.seconds(payload.get("time_ms"));
        clock.set(timeMs, now);
        loginToken.loginGranted(now);
        Keepalives keepalives = new Keepalives(keepalive, askEvery, now, chance);
        session = new Session(keepalives, now, ids, outgoing, persistentState, loginToken,
                timeMs == null ? null : (Double) (timeMs / 1000), chance);
        state = State.ONLINE;
        boolean again = ++reconnectPolicy.logins > 1;
        String name = (String) payload.get("session");
        Long serverMs = timeMs == null ? null : (Long) timeMs.longValue();
        return Collections.<Effect>singletonList(
                new Connected(name == null ? "" : name, idleTimeout, keepalive, serverMs, again));
    }

    private List<Effect> handleGoodbye(Map<String, Object> payload, double now) {
        Refusal refusal = Refusal.of(payload);
        boolean comesBack = (Boolean) payload.get("reconnect");
        List<Effect> effects = new ArrayList<>();
        effects.add(new Goodbye(refusal, comesBack));
        if (state == State.LOGGING_OUT) {
            effects.addAll(end(null));
        } else if (session == null) {
            effects.addAll(loginRefused(Loss.of(refusal), comesBack, now));
        } else if (!comesBack) {
            effects.addAll(end(refusal.ofConnection()));
        } else {
            effects.addAll(connectionLost(Loss.of(refusal), now, false));
        }
        return effects;
    }

    private List<Effect> tickOnline(Session online, double now) {
        List<Effect> effects = online.tick(now);
        if (online.keepalives.isDead(now)) {
            List<Effect> all = new ArrayList<>(effects);
            Loss loss = new Loss("dead_server", "the server did not answer a keepalive in time", null);
            all.addAll(connectionLost(loss, now, false));
            return all;
        }
        keepalivesSent += online.sendKeepalive(now, chance) ? 1 : 0;
        return effects;
    }

    /** The connection was lost or could not be made. {@code hurries}: the device says that a return will succeed. */
    private List<Effect> connectionLost(Loss loss, double now, boolean hurries) {
        Outcome outcome = reconnectPolicy.connectionLost(loss, session == null ? 0 : now - session.onlineSince);
        return state == State.LOGGING_OUT ? end(null) : reconnectOrEnd(loss, outcome, now, hurries);
    }

    /** Reconnects later, or ends, after a refused login. */
    private List<Effect> loginRefused(Loss loss, @Nullable Boolean reconnect, double now) {
        boolean isToken = loss.refusal != null && loss.refusal.is(Code.AUTH_FAILED);
        if (isToken && loginToken.loginRefused(loss.failure)) {
            return reconnectOrEnd(loss, reconnectPolicy.tokenRefused(loss), now, false);
        }
        return reconnectOrEnd(loss, reconnectPolicy.loginRefused(loss, reconnect), now, false);
    }

    private List<Effect> reconnectOrEnd(Loss loss, Outcome outcome, double now, boolean hurries) {
        if (outcome.end != null) {
            return end(outcome.end);
        }
        List<Effect> effects = new ArrayList<>(dropConnection(new ConnectionLost(loss.text())));
        state = State.WAITING;
        stateDeadline = now + outcome.waitS;
        notBefore = now + (loss.retryAfter() == null ? 0 : loss.retryAfter());
        if (hurries) {
            hurry(now);
        }
        Integer code = loss.refusal == null ? null : (Integer) loss.refusal.code;
        effects.add(new Disconnected(loss.reason, loss.message, stateDeadline - now, code));
        return effects;
    }

    private List<Effect> end(@Nullable PresenceError why) {
        boolean isLost = state == State.LOGGING_OUT;
        state = State.ENDED;
        error = why;
        return dropConnection(isLost ? new ConnectionLost("the connection broke during the logout") : endError());
    }

    private List<Effect> dropConnection(PresenceError reason) {
        Session dropped = session;
        session = null;
        loginToken.connectionLost();
        outgoing.clear();
        return dropped == null ? none() : dropped.failRequests(reason);
    }
}
