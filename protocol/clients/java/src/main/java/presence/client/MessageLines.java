package presence.client;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.jetbrains.annotations.Nullable;

/**
 * The order of messages to one recipient, which the client keeps although it may send one of them again.
 *
 * <p>The server refuses a message to a user who has lost the connection and may return (317), and the client sends it
 * again. It must not arrive after a later one that has found the user back. So there is a line for each recipient with
 * messages in flight:
 *
 * <ul>
 *   <li>The first message goes alone, and the later ones wait for its answer: they are <i>held</i>. Any answer but that
 *       refusal releases them, all together. For {@link #STEADY_S} after a delivery no message goes alone. Nor does one
 *       that is not to be sent again: the answer to a confirmed message may take half a minute.
 *   <li>A refused message waits for its next try, and with it all later ones. It is tried again, alone, when no message
 *       of the line is in flight any more; its delivery releases all others.
 *   <li>A refused message is <i>overtaken</i> if a later one, which was in flight with it, is delivered, or may be. It
 *       is not sent again: it has failed, and the program knows.
 * </ul>
 *
 * <p>So the messages that arrive do so in the order of the calls, and a burst to one user costs one round trip more.
 */
final class MessageLines {
    private static final double STEADY_S = 1;
    private static final long NONE = Packet.NO_ID;

    /** The messages to be sent now, in order, and those that a later one has overtaken. */
    static final class Moves {
        static final Moves NONE = new Moves(Collections.<Long>emptyList(), Collections.<Long>emptyList());
        final List<Long> sent;
        final List<Long> overtaken;

        Moves(List<Long> sent, List<Long> overtaken) {
            this.sent = sent;
            this.overtaken = overtaken;
        }
    }

    /** Messages to one recipient, by their ids, which rise in the order of the calls. */
    private static final class Line {
        final Set<Long> inFlight = new HashSet<>(2);
        long alone = MessageLines.NONE; // of those in flight, the one whose answer the others wait for
        final TreeSet<Long> refused = new TreeSet<>(); // to be sent again
        final TreeMap<Long, Boolean> held = new TreeMap<>(); // not sent yet, later than all others; may go alone
        final Set<Long> paused = new HashSet<>(2); // of the refused, whose pause before the next try is not over
        long lastArrived; // the last one that the recipient has, or may have
        @Nullable PresenceError refusal; // why those that wait do so, if the server has said it

        /** Returns the first refused message to send it again, if its time has come. */
        List<Long> firstAgain() {
            if (!inFlight.isEmpty() || refused.isEmpty() || paused.contains(refused.first())) {
                return Collections.emptyList();
            }
            alone = refused.pollFirst();
            inFlight.add(alone);
            return Collections.singletonList(alone);
        }

        /** Returns messages that were not sent yet: all, or the first ones up to one that goes alone. */
        List<Long> takeHeld(boolean all) {
            List<Long> found = new ArrayList<>();
            while (!held.isEmpty() && (all || alone == MessageLines.NONE)) {
                Map.Entry<Long, Boolean> first = held.pollFirstEntry();
                found.add(first.getKey());
                if (!all && first.getValue()) {
                    alone = first.getKey();
                }
            }
            inFlight.addAll(found);
            return found;
        }

        void noLongerAlone(long id) {
            alone = alone == id ? MessageLines.NONE : alone;
        }
    }

    private final Map<String, Line> lines = new HashMap<>(2);
    private final LinkedHashMap<String, Double> deliveredAt = new LinkedHashMap<>(2); // the oldest first

    /** Adds a message, perhaps one to be sent again when it is refused; returns whether it is to be sent now. */
    boolean join(String to, long id, double now, boolean retries) {
        Line line = lines.get(to);
        if (line == null) {
            line = new Line();
            lines.put(to, line);
        }
        if (line.alone != NONE || !line.refused.isEmpty() || !line.held.isEmpty()) {
            line.held.put(id, retries);
            return false;
        }
        line.inFlight.add(id);
        Double last = deliveredAt.get(to);
        if (retries && (last == null || now >= last + STEADY_S)) {
            line.alone = id;
        }
        return true;
    }

    Moves delivered(String to, long id, double now) {
        noteDelivery(to, now);
        Line line = lines.get(to);
        if (line == null) {
            return Moves.NONE;
        }
        if (line.alone == id) { // later ones that were refused were so before this one was sent
            for (Long later : new ArrayList<>(line.refused.tailSet(id, false))) {
                line.refused.remove(later);
                line.paused.remove(later);
                line.held.put(later, true);
            }
        }
        line.refusal = null;
        return left(to, id, true, true);
    }

    /** A recipient may return; returns false if a later message may have arrived. */
    boolean refused(String to, long id, PresenceError refusal) {
        deliveredAt.remove(to);
        Line line = lines.get(to);
        if (id < line.lastArrived) {
            return false;
        }
        line.inFlight.remove(id);
        line.noLongerAlone(id);
        line.refused.add(id);
        line.paused.add(id);
        line.refusal = refusal;
        return true;
    }

    /** Sends a refused message again, as soon as it is the first, and no other is in flight. */
    List<Long> pauseIsOver(String to, long id) {
        Line line = lines.get(to);
        line.paused.remove(id);
        return line.firstAgain();
    }

    /**
     * A message is over: answered, timed out or abandoned.
     *
     * @param mayHaveArrived whether the recipient has it, or may yet get it, if it was in flight.
     */
    Moves left(String to, long id, boolean isAnswered, boolean mayHaveArrived) {
        Line line = lines.get(to);
        if (line == null) {
            return Moves.NONE;
        }
        List<Long> overtaken = new ArrayList<>();
        if (mayHaveArrived && line.inFlight.contains(id)) {
            line.lastArrived = Math.max(line.lastArrived, id);
            overtaken.addAll(line.refused.headSet(id));
            line.refused.removeAll(overtaken);
            line.paused.removeAll(overtaken);
        }
        line.inFlight.remove(id);
        line.held.remove(id);
        line.noLongerAlone(id);
        line.refused.remove(id);
        line.paused.remove(id);
        if (!line.refused.isEmpty()) {
            return new Moves(line.firstAgain(), overtaken);
        }
        List<Long> sent = line.alone == NONE ? line.takeHeld(isAnswered) : Collections.<Long>emptyList();
        if (line.inFlight.isEmpty() && line.held.isEmpty()) {
            lines.remove(to);
        }
        return new Moves(sent, overtaken);
    }

    /** Returns why the messages that wait have not been sent, if the server has said so. */
    @Nullable
    PresenceError refusal(String to) {
        Line line = lines.get(to);
        return line == null ? null : line.refusal;
    }

    /** Forgets everything: the connection is lost. */
    void clear() {
        lines.clear();
        deliveredAt.clear();
    }

    private void noteDelivery(String to, double now) {
        deliveredAt.remove(to); // and it becomes the last one
        deliveredAt.put(to, now);
        Iterator<Double> oldest = deliveredAt.values().iterator();
        while (oldest.next() <= now - STEADY_S) {
            oldest.remove();
        }
    }
}
