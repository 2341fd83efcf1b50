package presence.client;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import presence.client.PresenceError.ConnectionLost;

/** Futures of requests. */
final class FutureTest {
    private final List<String> events = new ArrayList<>();
    private final PresenceFuture<Long> future = new PresenceFuture<>(Runnable::run, () -> events.add("cancelled"));

    void testAResultReachesAllWhoWait() throws Exception {
        future.whenDone((value, error) -> events.add("done " + value + " " + error));
        future.succeed(5L);
        future.fail(new ConnectionLost("late"));
        future.whenDone((value, error) -> events.add("again " + value));
        Check.equal(Arrays.asList("done 5 null", "again 5"), events);
        Check.equal(5, future.await());
        Check.equal(5, future.get(1, TimeUnit.MILLISECONDS));
        Check.that(!future.cancel(false), "it was done");
    }

    void testAnError() {
        ConnectionLost lost = new ConnectionLost("broken");
        future.fail(lost);
        Check.that(Check.fails(ConnectionLost.class, future::await) == lost, "the same");
        Check.that(Check.fails(ExecutionException.class, future::get).getCause() == lost, "the cause");
    }

    void testATimeOutLeavesTheRequestAlone() {
        Check.fails(TimeoutException.class, () -> future.get(1, TimeUnit.MILLISECONDS));
        Check.that(!future.isDone(), "it goes on");
    }

    void testACancelledRequestIsGivenUpOnce() {
        future.whenDone((value, error) -> events.add("done"));
        Check.that(future.cancel(true) && !future.cancel(true), "once");
        future.succeed(5L);
        Check.equal(Arrays.asList("cancelled"), events);
        Check.fails(CancellationException.class, future::await);
    }

    void testACompletableFutureFollowsTheRequestAndTheOtherWayRound() {
        CompletableFuture<Long> completed = CompletableFutures.of(future);
        future.fail(new ConnectionLost("broken"));
        CompletionException error = Check.fails(CompletionException.class, completed::join);
        Check.that(error.getCause() instanceof ConnectionLost, error.getCause());
        PresenceFuture<Long> other = new PresenceFuture<>(Runnable::run, () -> events.add("cancelled"));
        CompletableFutures.of(other).cancel(false);
        Check.equal(Arrays.asList("cancelled"), events);
        Check.that(other.isCancelled(), "cancelled");
    }
}
