package presence.client;

import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The threads beside the loop's, which all clients share; each ends after some seconds without work. */
final class Threads {
    private static final int MAX_BLOCKING = 4; // name lookups and token sources: few at a time but after an outage
    private static final int KEEP_ALIVE_S = 5;

    /** Runs what may block; each client has at most a lookup and a token source here. */
    static final ThreadPoolExecutor BLOCKING = pool("presence blocking", MAX_BLOCKING);
    /** Runs listeners and callbacks whose options name no executor. */
    static final ThreadPoolExecutor CALLBACKS = pool("presence callbacks", 1);

    private Threads() {}

    /** Has an executor of the program run a task; returns false if it takes none any more, as after its shutdown. */
    static boolean run(Executor executor, Runnable task) {
        try {
            executor.execute(task);
            return true;
        } catch (RejectedExecutionException closed) {
            return false;
        }
    }

    private static ThreadPoolExecutor pool(String name, int threads) {
        ThreadPoolExecutor pool = new ThreadPoolExecutor(
                threads, threads, KEEP_ALIVE_S, TimeUnit.SECONDS, new LinkedBlockingQueue<Runnable>(), task -> {
                    Thread thread = new Thread(task, name);
                    thread.setDaemon(true);
                    return thread;
                });
        pool.allowCoreThreadTimeOut(true);
        return pool;
    }
}
