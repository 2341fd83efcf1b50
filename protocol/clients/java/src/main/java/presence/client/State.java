package presence.client;

import org.jetbrains.annotations.NotNull;

/** The state of a client. */
public enum State {
    FETCHING_TOKEN("fetching a token"),
    CONNECTING("connecting"),
    LOGGING_IN("logging in"),
    ONLINE("online"),
    LOGGING_OUT("logging out"),
    WAITING("waiting to return"),
    ENDED("ended");

    private final String text;

    State(String text) {
        this.text = text;
    }

    /** Returns whether a client in this state has a connection. */
    boolean isConnected() {
        return this == LOGGING_IN || this == ONLINE || this == LOGGING_OUT;
    }

    @Override
    @NotNull
    public String toString() {
        return text;
    }
}
