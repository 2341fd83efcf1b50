package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jetbrains.annotations.Nullable;
import presence.client.Effect.RequestResult;
import presence.client.MessageLines.Moves;
import presence.client.PresenceError.ConnectionLost;
import presence.client.PresenceError.EncodeError;
import presence.client.PresenceError.NotConnected;
import presence.client.PresenceError.RecipientDisconnected;
import presence.client.PresenceError.RequestTimeout;
import presence.client.PresenceError.Uncertain;
import presence.client.Push.Delivered;
import presence.client.Push.PresenceChanged;
import presence.client.ReconnectPolicy.Loss;

/**
 * A connection from the login's answer to its end: keepalives, requests, pushes, and the requests that the client makes
 * by itself, which renew the token, and after a reconnect restore watches, passes and what the login could not carry.
 */
final class Session {
    private static final double MESSAGE_RETRY_S = 1; // between attempts to reach a recipient who may return
    private static final double MIN_MESSAGE_RETRY_S = 0.1; // whatever the server asks for
    private static final int MAX_CONFIRMED = Schema.MAX_UIDS; // messages in a keepalive

    private final Ids ids; // shared by all connections of a client
    private final List<byte[]> outgoing;
    private final LoginToken loginToken;
    private final OwnRequests ownRequests;
    private final PendingRequests requests = new PendingRequests();
    private final MessageLines lines = new MessageLines();
    private final List<Object> toConfirm = new ArrayList<>(2); // numbers of messages that were received
    final PersistentState persistentState;
    final Keepalives keepalives;
    final double onlineSince;
    final Set<Long> sightRequests = new HashSet<>(2); // without an answer, that may change what the client sees
    final Set<Long> watchRequests = new HashSet<>(2); // watches without an answer
    boolean isLeaving; // whether the logout was sent: nothing that may wait follows it
    @Nullable Refusal refusal; // of the last packet, if the server closes after it

    /** Request ids. */
    static final class Ids {
        private long last;

        Ids(long last) {
            this.last = last;
        }

        long next() {
            return ++last;
        }
    }

    Session(Keepalives keepalives, double now, Ids ids, List<byte[]> outgoing, PersistentState state,
            LoginToken loginToken, @Nullable Double serverTimeS, Chance chance) {
        this.keepalives = keepalives;
        this.onlineSince = now;
        this.ids = ids;
        this.outgoing = outgoing;
        this.persistentState = state;
        this.loginToken = loginToken;
        this.ownRequests = new OwnRequests(this, chance);
        dropExpiredPasses(serverTimeS);
        completeLogin();
        for (String pass : state.passes) {
            ownRequests.enqueue(new OwnRequest.Pass(state, pass));
        }
        if (state.watches.followsRoster) {
            ownRequests.enqueue(new OwnRequest.Roster(state));
        }
        for (List<String> uids : state.watches.batches(false)) {
            ownRequests.enqueue(new OwnRequest.Users(state, uids, false));
        }
        for (List<String> rooms : state.watchedRooms.batches()) {
            ownRequests.enqueue(new OwnRequest.WatchRooms(state, rooms));
        }
        ownRequests.send(now);
    }

    private void dropExpiredPasses(@Nullable Double serverTimeS) {
        for (Iterator<String> each = persistentState.passes.iterator(); each.hasNext();) {
            Double leftS = Tokens.remainingLifetimeS(each.next(), serverTimeS);
            if (leftS != null && leftS <= 0) {
                each.remove();
            }
        }
    }

    /** Requests what the login left out; rooms first, because leaving them is seen. */
    private void completeLogin() {
        List<String> rooms = persistentState.roomsToJoin();
        if (!rooms.isEmpty()) {
            ownRequests.enqueue(new OwnRequest.JoinRooms(persistentState, rooms));
        }
        if (persistentState.rest() != null) {
            ownRequests.enqueue(new OwnRequest.Rest(persistentState));
        }
    }

    /** Returns when {@link #tick} or a keepalive is due. */
    double deadline() {
        double first = Math.min(Math.min(keepalives.nextAt, keepalives.deadAt), requests.nextActionAt());
        return Math.min(first, Math.min(ownRequests.dueAt, loginToken.dueAt));
    }

    /** Returns when the next request has to be resent or timed out. */
    double requestsDueAt() {
        return requests.nextActionAt();
    }

    /** Requests watches, until they are granted or refused for good. */
    void watch(List<String> uids, double now) {
        ownRequests.add(new OwnRequest.Users(persistentState, uids, false), now);
    }

    /** Requests the roster, until it is granted or refused for good. */
    void watchRoster(double now) {
        ownRequests.add(new OwnRequest.Roster(persistentState), now);
    }

    /** Sends the token that the program has returned; asks for it again later if there is none to send. */
    void renewToken(@Nullable Loss lacking, double now) {
        if (lacking != null) {
            loginToken.postpone(now, null);
            return;
        }
        Packet update = Packet.of(Kind.UPDATE, "token", loginToken.sent);
        request(update, OwnRequests.ANSWER_TIMEOUT_S, now, false, (answer, error, at) -> {
            if (error != null) {
                loginToken.updateFailed(error, at);
            }
            return Collections.emptyList();
        });
    }

    /**
     * Sends a request and returns its id; its {@link RequestResult} follows, or {@code onAnswer} is called instead.
     *
     * <p>With {@code retries} a message is sent again until its time-out while its recipient may return. Later messages
     * to the same recipient may wait for it: see {@link MessageLines}.
     *
     * @throws EncodeError the packet breaks a rule of the protocol; nothing was sent.
     */
    long request(Packet given, double timeoutS, double now, boolean retries,
            @Nullable PendingRequest.OnAnswer onAnswer) {
        long id = ids.next();
        Packet packet = given.withId(id);
        byte[] frame = Codec.encode(packet, Codec.LIMIT_BYTES);
        boolean isMessage = packet.is(Kind.MESSAGE);
        boolean isUpdate = packet.is(Kind.UPDATE);
        Packet kept = isUpdate ? PersistentState.ownCopy(packet) : packet; // once granted, later logins carry it
        PendingRequest pending = new PendingRequest(
                id, kept, now + timeoutS, retries, onAnswer, isMessage ? frame : Codec.KEEPALIVE);
        pending.isHeld = isMessage && !lines.join(pending.to(), id, now, retries);
        if (!pending.isHeld) {
            outgoing.add(frame);
        }
        requests.put(pending);
        if (pending.mayChangeSight()) {
            sightRequests.add(id);
        } else if (packet.is(Kind.WATCH)) {
            watchRequests.add(id);
        }
        persistentState.requestSent(id, packet);
        Double idleTimeout = isUpdate ? Times.seconds(packet.payload.get("idle_timeout")) : null;
        if (idleTimeout != null) {
            keepalives.shortenInterval(Keepalives.SHARE * idleTimeout, now);
        }
        return id;
    }

    /** Sends a keepalive if one is due; returns whether one was sent. */
    boolean sendKeepalive(double now, Chance chance) {
        if (now < keepalives.nextAt) {
            return false;
        }
        if (keepalives.countSent(now, chance)) {
            long id = ids.next();
            keepalives.expectAnswer(id, now);
            outgoing.add(Codec.encode(Packet.of(Kind.KEEPALIVE).withId(id), Codec.LIMIT_BYTES));
        } else {
            outgoing.add(Codec.KEEPALIVE);
        }
        return true;
    }

    /** Confirms the messages that were received, immediately: their senders wait. */
    void sendConfirmations() {
        for (int start = 0; start < toConfirm.size() && !isLeaving; start += MAX_CONFIRMED) {
            List<Object> numbers = toConfirm.subList(start, Math.min(toConfirm.size(), start + MAX_CONFIRMED));
            outgoing.add(Codec.encode(Packet.of(Kind.KEEPALIVE, "confirmed", numbers), Codec.LIMIT_BYTES));
        }
        toConfirm.clear();
    }

    /** Times out requests, and sends due requests of the client itself and renewals. */
    List<Effect> tick(double now) {
        List<Effect> effects = expireRequests(now);
        ownRequests.tick(now);
        loginToken.tick(now);
        return effects;
    }

    /** Times out requests, and resends messages that are due. */
    List<Effect> expireRequests(double now) {
        if (now < requests.nextActionAt()) {
            return new ArrayList<>(0);
        }
        List<Effect> effects = new ArrayList<>();
        List<PendingRequest> due = requests.due(now);
        for (PendingRequest each : due) {
            if (now >= each.deadline) {
                forget(each.id);
                effects.addAll(each.failed(timeoutOf(each), now));
            }
        }
        for (PendingRequest each : due) {
            if (now < each.deadline) {
                each.resendAt = PendingRequest.NEVER;
                requests.put(each);
                sendWaiting(lines.pauseIsOver(each.to(), each.id));
            }
        }
        for (PendingRequest each : due) { // at last: those that wait for it may have timed out, too
            if (now >= each.deadline) {
                effects.addAll(leaveLine(each, false, true));
            }
        }
        return effects;
    }

    private PresenceError timeoutOf(PendingRequest pending) {
        if (!pending.isHeld) {
            return pending.refusal != null ? pending.refusal : new RequestTimeout("no answer came in time");
        }
        PresenceError refused = lines.refusal(pending.to());
        return refused != null ? refused
                : new RequestTimeout("not sent: those before it to the same user took too long");
    }

    /** Stops waiting for an answer; undoes a watch that may have been granted, resends no message. */
    List<Effect> abandonRequest(long id) {
        PendingRequest pending = forget(id);
        return pending == null ? Collections.<Effect>emptyList() : leaveLine(pending, false, true);
    }

    /** Removes a request without its answer; undoes a watch that may have been granted. */
    @Nullable
    private PendingRequest forget(long id) {
        PendingRequest pending = requests.remove(id);
        if (pending == null) {
            return null;
        }
        sightRequests.remove(id);
        watchRequests.remove(id);
        Packet undo = pending.packet.is(Kind.WATCH) ? persistentState.requestAbandoned(id) : null;
        if (undo != null) {
            long undoId = ids.next();
            outgoing.add(Codec.encode(undo.withId(undoId), Codec.LIMIT_BYTES));
            persistentState.requestSent(undoId, undo);
        }
        return pending;
    }

    /** A message is over: sends those that have waited for it, and fails those it has overtaken. */
    private List<Effect> leaveLine(PendingRequest pending, boolean isAnswered, boolean mayHaveArrived) {
        if (!pending.packet.is(Kind.MESSAGE)) {
            return Collections.emptyList();
        }
        return follow(lines.left(pending.to(), pending.id, isAnswered, mayHaveArrived));
    }

    private List<Effect> follow(Moves moves) {
        List<Effect> effects = new ArrayList<>(0);
        for (long id : moves.overtaken) {
            PendingRequest failed = requests.remove(id);
            if (failed != null && failed.refusal != null) {
                effects.add(new RequestResult(id, null, failed.refusal));
            }
        }
        sendWaiting(moves.sent);
        return effects;
    }

    /** Sends messages that have waited, for the first time or again; after a logout they stay unsent. */
    private void sendWaiting(List<Long> waiting) {
        for (long id : waiting) {
            PendingRequest pending = isLeaving ? null : requests.get(id);
            if (pending != null) {
                pending.isHeld = false;
                pending.resendAt = PendingRequest.NEVER;
                pending.refusal = null;
                requests.put(pending);
                outgoing.add(pending.frame);
            }
        }
    }

    /** Fails all pending requests; the next connection repeats those of the client itself. */
    List<Effect> failRequests(PresenceError error) {
        persistentState.connectionLost();
        List<Effect> effects = new ArrayList<>();
        for (PendingRequest each : requests.clear()) {
            if (each.onAnswer == null) {
                effects.add(new RequestResult(each.id, null, failureOf(each, error)));
            }
        }
        lines.clear();
        return effects;
    }

    /** Returns the error of a request at the end of the connection: what was sent may have been carried out. */
    private PresenceError failureOf(PendingRequest pending, PresenceError error) {
        boolean isLost = error instanceof ConnectionLost;
        if (!pending.isHeld) {
            return pending.refusal != null ? pending.refusal : isLost ? error : new ConnectionLost(error.getMessage());
        }
        PresenceError refused = lines.refusal(pending.to());
        return refused != null ? refused : isLost ? new NotConnected(error.getMessage() + ": not sent") : error;
    }

    /** Handles any packet except a goodbye. Unknown kinds are ignored. */
    List<Effect> handlePacket(Packet packet, double now) {
        refusal = null;
        List<Effect> effects = new ArrayList<>(2);
        if (packet.is(Kind.OK) || packet.is(Kind.ERROR)) {
            handleAnswer(packet, now, effects);
            ownRequests.send(now);
        } else if (packet.is(Kind.DELIVER)) {
            if (packet.payload.containsKey("confirm")) {
                toConfirm.add(packet.payload.get("confirm"));
            }
            long atMs = Receipt.number(packet.payload, "at_ms");
            effects.add(new Delivered((String) packet.payload.get("from"), packet.payload.get("body"), atMs));
        } else if (packet.is(Kind.ROOMS)) {
            effects.addAll(persistentState.watchedRooms.pushed(States.list(packet.payload, "rooms")));
        } else {
            for (PresenceChanged each : States.changes(packet)) {
                if (persistentState.watches.applyChange(each)) {
                    effects.add(each);
                }
            }
        }
        return effects;
    }

    /** Handles an ok or error, to a request or a keepalive. */
    private void handleAnswer(Packet packet, double now, List<Effect> effects) {
        long id = packet.id();
        PendingRequest pending = requests.remove(id);
        Refusal refused = packet.is(Kind.ERROR) ? Refusal.of(packet.payload) : null;
        if (refused != null && endsConnection(refused, id, pending)) {
            refusal = refused;
        }
        if (id == Packet.NO_ID) {
            return;
        }
        if (id == keepalives.unansweredId) {
            keepalives.noteAnswered(now);
        }
        persistentState.watches.unwatchAnswered(id);
        if (pending == null) { // a keepalive, or an abandoned request
            Map<String, Object> answer = refused != null ? Packet.EMPTY : packet.payload;
            effects.addAll(persistentState.watchedRooms.answeredLate(id, answer));
            return;
        }
        sightRequests.remove(id);
        watchRequests.remove(id);
        refused = refused != null ? refused : ignored(pending.packet, packet.payload);
        if (refused == null) {
            granted(pending, packet.payload, now, effects);
        } else {
            refused(pending, refused, now, effects);
        }
    }

    /** Returns what a server means by an ok without a key that the request has: it is older, or has no such thing. */
    @Nullable
    private static Refusal ignored(Packet request, Map<String, Object> answer) {
        if (!request.is(Kind.WATCH) && !request.is(Kind.QUERY)) {
            return null;
        }
        if (Boolean.TRUE.equals(request.payload.get("roster")) && !answer.containsKey("roster")) {
            return new Refusal(Code.UNSUPPORTED, "this server keeps no rosters");
        }
        boolean asksForRooms = !States.list(request.payload, "rooms").isEmpty();
        return asksForRooms && !answer.containsKey("rooms")
                ? new Refusal(Code.UNSUPPORTED, "this server has no rooms") : null;
    }

    private void refused(PendingRequest pending, Refusal refused, double now, List<Effect> effects) {
        persistentState.requestRefused(pending.id);
        if (pending.packet.is(Kind.UPDATE) && pending.packet.payload.containsKey("idle_timeout")) {
            keepalives.restoreInterval(now);
        }
        if (persistentState.updateRefused(pending.id)) {
            completeLogin(); // what the login left out is to be sent after all
        }
        PresenceError error = refused.ofRequest();
        if (pending.retries && error instanceof RecipientDisconnected) {
            double pauseS = refused.retryAfter == null ? 0 : Math.min(MESSAGE_RETRY_S, refused.retryAfter);
            double resendAt = now + Math.max(MIN_MESSAGE_RETRY_S, pauseS);
            if (resendAt < pending.deadline && lines.refused(pending.to(), pending.id, error)) {
                pending.resendAt = resendAt;
                pending.refusal = error;
                requests.put(pending);
                return;
            }
        }
        List<Effect> followed = leaveLine(pending, true, error instanceof Uncertain);
        effects.addAll(pending.failed(error, now));
        effects.addAll(followed);
    }

    private void granted(PendingRequest pending, Map<String, Object> answer, double now, List<Effect> effects) {
        if (pending.packet.is(Kind.MESSAGE)) {
            List<Effect> followed = follow(lines.delivered(pending.to(), pending.id, now));
            effects.addAll(pending.granted(answer, now));
            effects.addAll(followed);
            return;
        }
        boolean isOwn = pending.onAnswer != null;
        Collection<? extends Push> changes =
                persistentState.requestGranted(pending.id, pending.packet, answer, isOwn);
        if (pending.packet.is(Kind.UPDATE) && answer.containsKey("keepalive")) {
            keepalives.setInterval(Times.seconds(answer.get("keepalive")), now);
        }
        if (pending.packet.payload.containsKey("token")) {
            loginToken.updateAccepted((String) pending.packet.payload.get("token"), now);
        }
        if (pending.mayChangeSight()) {
            ownRequests.sightChanged();
        }
        effects.addAll(pending.granted(answer, now));
        effects.addAll(changes);
    }

    /**
     * Returns whether the server closes after this error; not if a watch, query or update is too large. Without the
     * request, which was abandoned, only these can be too large: the client sends no larger frame.
     */
    private static boolean endsConnection(Refusal refused, long id, @Nullable PendingRequest pending) {
        if (refused.is(Code.TOO_LARGE) && id != Packet.NO_ID) {
            return pending != null && !pending.packet.is(Kind.WATCH) && !pending.packet.is(Kind.QUERY)
                    && !pending.packet.is(Kind.UPDATE);
        }
        return refused.is(Code.PROTOCOL_ERROR) || refused.is(Code.TOO_LARGE) || refused.is(Code.NOT_LOGGED_IN);
    }
}
