package presence.client;

import java.util.concurrent.CompletableFuture;
import org.jetbrains.annotations.NotNull;

/**
 * For the JVM, and Android from API 24 on: requests as {@link CompletableFuture}. Below that level the class does not
 * exist, and core library desugaring does not bring it; this class is loaded only where a program uses it.
 */
public final class CompletableFutures {
    private CompletableFutures() {}

    /** Returns a future that completes with the request, with its {@link PresenceError}, and cancels it. */
    @NotNull
    public static <T> CompletableFuture<T> of(@NotNull PresenceFuture<T> request) {
        CompletableFuture<T> future = new CompletableFuture<>();
        request.whenDone((value, error) -> {
            if (error != null) {
                future.completeExceptionally(error);
            } else {
                future.complete(value);
            }
        });
        future.whenComplete((value, error) -> {
            if (future.isCancelled()) {
                request.cancel(false);
            }
        });
        return future;
    }
}
