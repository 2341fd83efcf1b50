package presence.client;

import org.jetbrains.annotations.Nullable;

/** The peer has violated the protocol: the only exception that received bytes can cause. */
final class ProtocolError extends Exception {
    private static final long serialVersionUID = 1L;

    final Code code; // PROTOCOL_ERROR or TOO_LARGE
    @Nullable transient Number kind; // if it was readable
    @Nullable transient Number id; // if kind and id were readable, and there was one

    private ProtocolError(Code code, String message) {
        super(message, null, false, false); // without a stack trace: it describes input
        this.code = code;
    }

    static ProtocolError wrong(String message) {
        return new ProtocolError(Code.PROTOCOL_ERROR, message);
    }

    static ProtocolError tooLarge(String message) {
        return new ProtocolError(Code.TOO_LARGE, message);
    }
}
