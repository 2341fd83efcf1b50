package presence.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.CancelledKeyException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.Iterator;
import java.util.PriorityQueue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.jetbrains.annotations.Nullable;

/**
 * The thread that runs all clients' connections: a selector and a heap of timers. It begins with the first client and
 * ends with the last one.
 *
 * <p>A timer runs only after what had been received by its time was read: its client would otherwise count an answer
 * that came in time as missing. A timer that moves to a later time is left in the heap, and set again when it runs;
 * that happens once an interval, while deadlines move with every packet. So the heap has about one entry a client.
 */
final class Loop implements Runnable {
    /** What a channel of the selector is for. */
    interface Channel {
        void ready(SelectionKey key) throws IOException;

        Link link();
    }

    /** When a client is to be called; replaced by another one if that time comes nearer. */
    static final class Timer implements Comparable<Timer> {
        final Link link;
        final long atNanos;
        long wantedNanos; // later, perhaps

        Timer(Link link, long atNanos) {
            this.link = link;
            this.atNanos = this.wantedNanos = atNanos;
        }

        @Override
        public int compareTo(Timer other) {
            return Long.compare(atNanos - other.atNanos, 0);
        }
    }

    private static final int BUFFER_BYTES = 64 * 1024; // shared by all connections: they hold none while idle
    private static final double LONGEST_WAIT_S = 86_400;
    @Nullable private static Loop shared;

    private final ConcurrentLinkedQueue<Runnable> tasks = new ConcurrentLinkedQueue<>();
    private final PriorityQueue<Timer> timers = new PriorityQueue<>();
    private int clients; // under the lock of the class
    private volatile boolean isOver;
    final Selector selector;
    final ByteBuffer in = ByteBuffer.allocate(BUFFER_BYTES); // used between a read and its end only
    final ByteBuffer out = ByteBuffer.allocate(BUFFER_BYTES);

    private Loop() {
        try {
            selector = Selector.open();
        } catch (IOException error) {
            throw new IllegalStateException("no selector: " + error.getMessage(), error);
        }
    }

    /** Returns the shared loop, for one more client. */
    static Loop acquire() {
        synchronized (Loop.class) {
            if (shared == null) {
                shared = new Loop();
                Thread thread = new Thread(shared, "presence loop");
                thread.setDaemon(true);
                thread.start();
            }
            shared.clients++;
            return shared;
        }
    }

    /** A client has ended; on the loop's thread. */
    void release(Link link) {
        timers.remove(link.timer);
        synchronized (Loop.class) {
            if (--clients == 0) {
                shared = null;
                isOver = true;
                selector.wakeup();
            }
        }
    }

    /** Runs a task on the loop's thread, soon; from any thread. */
    void execute(Runnable task) {
        tasks.add(task);
        selector.wakeup();
    }

    /** Calls {@link Link#tick} after so many seconds, and not at the time before; infinite: not at all. */
    void schedule(Link link, double seconds) {
        long atNanos = System.nanoTime() + (long) (Math.max(0, Math.min(seconds, LONGEST_WAIT_S)) * 1e9);
        if (link.timer != null && link.timer.atNanos - atNanos <= 0) {
            link.timer.wantedNanos = atNanos;
            return;
        }
        link.timer = new Timer(link, atNanos); // the one before is dropped when it comes up
        timers.add(link.timer);
    }

    @Override
    public void run() {
        try {
            while (!isOver || !tasks.isEmpty()) {
                long beforeNanos = System.nanoTime();
                select(beforeNanos);
                for (Iterator<SelectionKey> each = selector.selectedKeys().iterator(); each.hasNext();) {
                    SelectionKey key = each.next();
                    each.remove();
                    handle(key);
                }
                for (Runnable task = tasks.poll(); task != null; task = tasks.poll()) {
                    task.run();
                }
                runTimers(beforeNanos);
            }
        } catch (IOException error) {
            throw new IllegalStateException("the selector failed", error);
        } finally {
            try {
                selector.close();
            } catch (IOException error) {
                // It is gone all the same.
            }
        }
    }

    private void select(long nowNanos) throws IOException {
        long waitMs = timers.isEmpty() ? 0 : (timers.peek().atNanos - nowNanos + 999_999) / 1_000_000;
        if (isOver || !tasks.isEmpty() || (!timers.isEmpty() && waitMs <= 0)) {
            selector.selectNow();
        } else {
            selector.select(waitMs); // 0: without end
        }
    }

    private static void handle(SelectionKey key) {
        Channel channel = (Channel) key.attachment();
        try {
            channel.ready(key);
        } catch (CancelledKeyException closed) {
            // By an earlier key of this round.
        } catch (IOException | RuntimeException | Error bug) {
            channel.link().end(bug); // and no other client
        }
    }

    /** Runs the timers that were due before the last read. */
    private void runTimers(long beforeNanos) {
        while (!timers.isEmpty() && timers.peek().atNanos - beforeNanos <= 0) {
            Timer timer = timers.poll();
            if (timer.link.timer != timer) {
                continue; // replaced
            }
            timer.link.timer = null;
            if (timer.wantedNanos - beforeNanos > 0) {
                schedule(timer.link, (timer.wantedNanos - System.nanoTime()) / 1e9);
            } else {
                timer.link.tick();
            }
        }
    }
}
