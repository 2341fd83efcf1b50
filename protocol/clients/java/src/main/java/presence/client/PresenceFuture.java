package presence.client;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/**
 * The result of a request: wait for it with {@link #await}, or be called with {@link #whenDone}. All methods may be
 * called from any thread. {@code CompletableFuture} is in Android from API 24 only: see {@link CompletableFutures}.
 */
public final class PresenceFuture<T> implements Future<T> {
    /** Called once with a result: either an error, or a value, which is null where there is nothing to say. */
    public interface Callback<T> {
        void done(@Nullable T value, @Nullable PresenceError error);
    }

    private final Executor executor;
    private final Runnable onCancel;
    private final List<Callback<? super T>> callbacks = new ArrayList<>(1);
    private boolean isDone;
    private boolean isCancelled;
    @Nullable private T value;
    @Nullable private PresenceError error;

    PresenceFuture(Executor executor, Runnable onCancel) {
        this.executor = executor;
        this.onCancel = onCancel;
    }

    /**
     * Waits for the result. In a callback or listener it holds up all others of the same executor.
     *
     * @throws PresenceError the request failed; its kind says how. The stack trace is that of the client's thread.
     * @throws InterruptedException the thread was interrupted; the request goes on.
     * @throws CancellationException it was cancelled.
     */
    public synchronized T await() throws InterruptedException {
        while (!isDone) {
            wait();
        }
        if (isCancelled) {
            throw new CancellationException();
        } else if (error != null) {
            throw error;
        }
        return value;
    }

    /** Calls back on the executor of the client's options, also if the result is there already. */
    @NotNull
    public PresenceFuture<T> whenDone(@NotNull Callback<? super T> callback) {
        synchronized (this) {
            if (!isDone) {
                callbacks.add(callback);
                return this;
            } else if (isCancelled) {
                return this;
            }
        }
        Threads.run(executor, () -> callback.done(value, error));
        return this;
    }

    /** As {@link #await}, but wraps the error. */
    @Override
    public T get() throws InterruptedException, ExecutionException {
        try {
            return await();
        } catch (PresenceError failed) {
            throw new ExecutionException(failed);
        }
    }

    /** As {@link #get}, for at most this long. */
    @Override
    public T get(long timeout, @NotNull TimeUnit unit) throws InterruptedException, ExecutionException, TimeoutException {
        long end = System.nanoTime() + unit.toNanos(timeout);
        synchronized (this) {
            while (!isDone) {
                long leftMs = (end - System.nanoTime() + 999_999) / 1_000_000;
                if (leftMs <= 0) {
                    throw new TimeoutException();
                }
                wait(leftMs);
            }
        }
        return get();
    }

    /** Gives the request up, unless it is done: a watch is undone, a message may arrive all the same. */
    @Override
    public boolean cancel(boolean mayInterruptIfRunning) {
        synchronized (this) {
            if (isDone) {
                return false;
            }
            isDone = isCancelled = true;
            callbacks.clear();
            notifyAll();
        }
        onCancel.run();
        return true;
    }

    @Override
    public synchronized boolean isCancelled() {
        return isCancelled;
    }

    @Override
    public synchronized boolean isDone() {
        return isDone;
    }

    void succeed(@Nullable T result) {
        complete(result, null);
    }

    void fail(PresenceError why) {
        complete(null, why);
    }

    private void complete(@Nullable T result, @Nullable PresenceError why) {
        List<Callback<? super T>> waiting;
        synchronized (this) {
            if (isDone) {
                return;
            }
            isDone = true;
            value = result;
            error = why;
            waiting = new ArrayList<>(callbacks);
            callbacks.clear();
            notifyAll();
        }
        for (Callback<? super T> callback : waiting) {
            Threads.run(executor, () -> callback.done(result, why));
        }
    }
}
