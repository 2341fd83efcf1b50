package presence.client;

import org.jetbrains.annotations.NotNull;

/** Where the tokens of a user come from, usually the application's backend. */
public interface TokenSource {
    /**
     * Returns a token; called before each login and before a token expires, on a background thread, one call at a
     * time for each client. It may block; after 30 seconds the attempt has failed, and the call is interrupted.
     *
     * @throws Exception there is none: the attempt has failed, and is repeated later.
     */
    @NotNull
    String token() throws Exception;
}
