package presence.client;

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.jetbrains.annotations.Nullable;
import presence.client.Push.Dropped;
import presence.client.Push.PresenceChanged;

/**
 * What was received and the program has not read yet: a bounded queue for each kind of push, so that a burst of one
 * kind takes no place from another. Each keeps the order of arrival, and so does a reader of all kinds. O(1) a push.
 *
 * <p>A full queue drops its oldest push, and in the place of those dropped is a {@link Dropped} with their number. A
 * full queue of changes first drops, silently, a change for which a later one of the same user is queued.
 */
final class Inbox {
    // Two for each lost connection, and while the server is away one a minute: more are no news.
    private static final int MAX_CONNECTION_CHANGES = 100;

    /** Pushes of one kind by their numbers in the order of arrival. */
    private static class Queue {
        final LinkedHashMap<Long, Push> pushes = new LinkedHashMap<>(4);
        final PushKind kind;
        final int capacity;
        long lost; // dropped since the reader has last been told
        long lostAt; // the number of the first of these

        Queue(PushKind kind, int capacity) {
            this.kind = kind;
            this.capacity = capacity;
        }

        boolean isEmpty() {
            return pushes.isEmpty() && lost == 0;
        }

        long firstNumber() {
            return lost > 0 ? lostAt : pushes.keySet().iterator().next();
        }

        void put(long number, Push push) {
            if (pushes.size() >= capacity) {
                makeRoom();
            }
            pushes.put(number, push);
        }

        void makeRoom() {
            long number = pushes.keySet().iterator().next();
            takeOldest();
            lostAt = lost == 0 ? number : lostAt;
            lost++;
        }

        Push takeOldest() {
            Iterator<Push> oldest = pushes.values().iterator();
            Push push = oldest.next();
            oldest.remove();
            return push;
        }
    }

    /** Changes of presence, of which a later one supersedes the earlier ones of its user. */
    private static final class Changes extends Queue {
        private final Map<String, Long> latest = new HashMap<>(4); // uid to its newest queued change
        private final ArrayDeque<Long> stale = new ArrayDeque<>(2); // superseded; some may be gone by now
        long superseded;

        Changes(int capacity) {
            super(PushKind.PRESENCE, capacity);
        }

        @Override
        void put(long number, Push push) {
            if (push instanceof PresenceChanged) {
                Long before = latest.put(((PresenceChanged) push).uid, number);
                if (before != null) {
                    stale.add(before);
                    forgetTaken();
                }
            }
            super.put(number, push);
        }

        private void forgetTaken() {
            if (stale.size() > 2 * capacity) {
                for (Iterator<Long> each = stale.iterator(); each.hasNext();) {
                    if (!pushes.containsKey(each.next())) {
                        each.remove();
                    }
                }
            }
        }

        @Override
        Push takeOldest() {
            long number = pushes.keySet().iterator().next();
            Push push = super.takeOldest();
            if (push instanceof PresenceChanged) {
                String uid = ((PresenceChanged) push).uid;
                Long newest = latest.get(uid);
                if (newest != null && newest == number) {
                    latest.remove(uid);
                }
            }
            return push;
        }

        @Override
        void makeRoom() {
            while (!stale.isEmpty()) {
                if (pushes.remove(stale.poll()) != null) {
                    superseded++;
                    return;
                }
            }
            super.makeRoom();
        }
    }

    private final Changes changes;
    private final Queue[] queues = new Queue[PushKind.values().length]; // by ordinal
    private long next;
    private long droppedAndTold;

    Inbox(int maxMessages, int maxChanges) {
        changes = new Changes(maxChanges);
        add(new Queue(PushKind.MESSAGES, maxMessages));
        add(changes);
        add(new Queue(PushKind.ROOMS, maxChanges));
        add(new Queue(PushKind.CONNECTION, MAX_CONNECTION_CHANGES));
    }

    private void add(Queue queue) {
        queues[queue.kind.ordinal()] = queue;
    }

    void put(Push push) {
        queues[push.queue.ordinal()].put(next++, push);
    }

    /** Removes and returns the oldest push, of a kind or, for null, of all; null if there is none. */
    @Nullable
    Push pop(@Nullable PushKind kind) {
        Queue queue = kind == null ? withTheOldest() : queues[kind.ordinal()];
        if (queue == null || queue.isEmpty()) {
            return null;
        }
        if (queue.lost == 0) {
            return queue.takeOldest();
        }
        Dropped dropped = new Dropped(queue.kind, queue.lost);
        droppedAndTold += queue.lost;
        queue.lost = 0;
        return dropped;
    }

    @Nullable
    private Queue withTheOldest() {
        Queue found = null;
        for (Queue queue : queues) {
            if (!queue.isEmpty() && (found == null || queue.firstNumber() < found.firstNumber())) {
                found = queue;
            }
        }
        return found;
    }

    int size() {
        int size = 0;
        for (Queue queue : queues) {
            size += queue.pushes.size() + (queue.lost > 0 ? 1 : 0);
        }
        return size;
    }

    /** Returns how many changes were dropped because a later one of the same user was queued. */
    long superseded() {
        return changes.superseded;
    }

    /** Returns how many pushes were dropped, without superseded changes. */
    long dropped() {
        long dropped = droppedAndTold;
        for (Queue queue : queues) {
            dropped += queue.lost;
        }
        return dropped;
    }
}
