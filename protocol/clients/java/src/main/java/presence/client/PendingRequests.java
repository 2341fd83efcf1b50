package presence.client;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Set;
import org.jetbrains.annotations.Nullable;

/** Requests by id, and when the next one has to be resent or timed out. Each step costs O(log n). */
final class PendingRequests {
    private static final int SPARE_TIMES = 64; // of requests that are over, kept before all such are removed

    private static final class Time implements Comparable<Time> {
        final double at;
        final long id;

        Time(PendingRequest pending) {
            this.at = pending.nextActionAt();
            this.id = pending.id;
        }

        @Override
        public int compareTo(Time other) {
            int order = Double.compare(at, other.at);
            return order != 0 ? order : id < other.id ? -1 : id > other.id ? 1 : 0;
        }
    }

    private final Map<Long, PendingRequest> byId = new LinkedHashMap<>(4);
    private PriorityQueue<Time> times = new PriorityQueue<>(2); // those of requests that are over or changed, too

    /** Returns when to resend or time out the first request; infinite if there is none. */
    double nextActionAt() {
        while (!times.isEmpty() && !isDueThen(times.peek())) {
            times.poll();
        }
        return times.isEmpty() ? PendingRequest.NEVER : times.peek().at;
    }

    private boolean isDueThen(Time time) {
        PendingRequest pending = byId.get(time.id);
        return pending != null && pending.nextActionAt() == time.at;
    }

    @Nullable
    PendingRequest get(long id) {
        return byId.get(id);
    }

    /** Adds a request, or notes that the time of its next action has changed. */
    void put(PendingRequest pending) {
        byId.put(pending.id, pending);
        times.add(new Time(pending));
        if (times.size() > 2 * byId.size() + SPARE_TIMES) {
            times = new PriorityQueue<>(byId.size());
            for (PendingRequest each : byId.values()) {
                times.add(new Time(each));
            }
        }
    }

    @Nullable
    PendingRequest remove(long id) {
        return byId.remove(id);
    }

    /** Returns the requests that have to be resent or timed out by now, the earliest first. */
    List<PendingRequest> due(double now) {
        Set<PendingRequest> found = new LinkedHashSet<>();
        while (nextActionAt() <= now) {
            found.add(byId.get(times.poll().id));
        }
        return new ArrayList<>(found);
    }

    /** Removes all requests and returns them, the oldest first. */
    Collection<PendingRequest> clear() {
        List<PendingRequest> all = new ArrayList<>(byId.values());
        byId.clear();
        times.clear();
        return all;
    }
}
