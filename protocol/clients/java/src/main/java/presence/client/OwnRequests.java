package presence.client;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.RequestFailed;
import presence.client.ReconnectPolicy.Backoff;

/**
 * Requests of the client itself, repeated until each is granted or refused for good. A server that is busy, fails or
 * does not answer is asked again with growing pauses, which begin anew after a success.
 *
 * <p>Passes come first, and a watch waits for the answers to passes and tokens: its own answer then shows all that the
 * client may see, and the users who were hidden are asked for once, after the last of these, and after watches that were
 * sent before them. A pass that has failed for now is tried again after everything else, so that it delays no watch for
 * long.
 */
final class OwnRequests {
    static final double ANSWER_TIMEOUT_S = 10;
    private static final int MAX_IN_FLIGHT = 2; // a server allows few pending requests per client

    private final Session session;
    private final PersistentState state;
    private final Chance chance;
    private Backoff backoff = new Backoff();
    private final ArrayDeque<OwnRequest> passes = new ArrayDeque<>(2); // not tried yet on this connection
    private final ArrayDeque<OwnRequest> queue = new ArrayDeque<>(2);
    private final List<OwnRequest> postponed = new ArrayList<>(2); // until dueAt
    private final List<OwnRequest> inFlight = new ArrayList<>(2);
    private boolean sightChanged; // since the users who were hidden have last been asked for
    double dueAt = PendingRequest.NEVER; // when the next request is due

    OwnRequests(Session session, Chance chance) {
        this.session = session;
        this.state = session.persistentState;
        this.chance = chance;
    }

    /** Makes another request, immediately unless the server has asked for a pause. */
    void add(OwnRequest request, double now) {
        enqueue(request);
        send(now);
    }

    /** Adds a request to those that the next call of {@link #send} makes. */
    void enqueue(OwnRequest request) {
        (request instanceof OwnRequest.Pass ? passes : queue).add(request);
    }

    /** The server has taken a token or a pass: the users who were hidden are asked for again. */
    void sightChanged() {
        sightChanged = true;
    }

    /** Sends due requests. */
    void tick(double now) {
        if (now >= dueAt) {
            dueAt = PendingRequest.NEVER;
            for (int at = postponed.size() - 1; at >= 0; at--) {
                if (!(postponed.get(at) instanceof OwnRequest.Pass)) {
                    queue.addFirst(postponed.get(at));
                }
            }
            for (OwnRequest each : postponed) {
                if (each instanceof OwnRequest.Pass) {
                    queue.add(each);
                }
            }
            postponed.clear();
        }
        send(now);
    }

    /** Sends what need not wait: for a pause, for the answers to others, to passes and tokens. */
    void send(double now) {
        while (!session.isLeaving && dueAt == PendingRequest.NEVER && inFlight.size() < MAX_IN_FLIGHT) {
            if (!passes.isEmpty()) {
                send(passes.poll(), now);
            } else if (!session.sightRequests.isEmpty()) {
                return;
            } else if (sightChanged && session.watchRequests.isEmpty()) {
                sightChanged = false;
                queueHidden();
            } else if (!queue.isEmpty()) {
                send(queue.poll(), now);
            } else {
                return;
            }
        }
    }

    /** Asks for the users who were hidden, unless a request that waits to be sent does so. */
    private void queueHidden() {
        for (List<String> uids : state.watches.hiddenBatches(OwnRequest.uidsOf(queue))) {
            queue.add(new OwnRequest.Users(state, uids, false));
        }
        boolean asksForRoster = false;
        for (OwnRequest each : queue) {
            asksForRoster |= each instanceof OwnRequest.Roster;
        }
        if (state.watches.hidesListed() && !asksForRoster) {
            queue.add(new OwnRequest.Roster(state));
        }
    }

    private void send(OwnRequest request, double now) {
        OwnRequest current = request.current();
        if (current != null) {
            inFlight.add(current);
            session.request(current.packet(), ANSWER_TIMEOUT_S, now, false,
                    (answer, error, at) -> answered(current, error, at));
        }
    }

    private List<Effect> answered(OwnRequest request, @Nullable PresenceError error, double now) {
        inFlight.remove(request);
        List<Effect> effects = new ArrayList<>(2);
        if (error == null) {
            backoff = new Backoff();
            return effects;
        }
        Code code = error instanceof RequestFailed ? Code.of(error.code) : null;
        if (code != null && !code.reconnect) {
            Collection<OwnRequest> others = new ArrayList<>(inFlight);
            others.addAll(queue);
            others.addAll(postponed);
            List<OwnRequest> instead = request.refused((RequestFailed) error, others, effects);
            for (int at = instead.size() - 1; at >= 0; at--) {
                queue.addFirst(instead.get(at));
            }
            return effects;
        }
        postponed.add(request);
        Double retryAfterS = error.retryAfterMs == null ? null : (Double) (error.retryAfterMs / 1000.0);
        dueAt = Math.min(dueAt, now + backoff.next(chance, 0, retryAfterS));
        return effects;
    }
}
