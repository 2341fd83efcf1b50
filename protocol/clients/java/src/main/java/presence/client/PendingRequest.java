package presence.client;

import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.jetbrains.annotations.Nullable;
import presence.client.Effect.RequestResult;

/** A request of one connection that has no answer yet. */
final class PendingRequest {
    static final double NEVER = Double.POSITIVE_INFINITY;

    /** What follows from the answer to a request that the client makes by itself. */
    interface OnAnswer {
        /** Exactly one of {@code answer} and {@code error} is null. */
        List<Effect> answered(@Nullable Map<String, Object> answer, @Nullable PresenceError error, double now);
    }

    final long id;
    final Packet packet;
    final double deadline; // when it times out
    final boolean retries; // whether a message is sent again to a recipient that has lost its connection
    @Nullable final OnAnswer onAnswer; // null: a request of the program
    final byte[] frame;
    double resendAt = NEVER; // when to send it again; never: it awaits its answer, or its turn
    @Nullable PresenceError refusal; // why it is to be sent again
    boolean isHeld; // whether it has not been sent, because it waits for other messages

    PendingRequest(long id, Packet packet, double deadline, boolean retries, @Nullable OnAnswer onAnswer,
            byte[] frame) {
        this.id = id;
        this.packet = packet;
        this.deadline = deadline;
        this.retries = retries;
        this.onAnswer = onAnswer;
        this.frame = frame;
    }

    /** Returns the recipient; null: it is no message. */
    @Nullable
    String to() {
        return (String) packet.payload.get("to");
    }

    /** Returns whether the client may see other users than before, once it is granted. */
    boolean mayChangeSight() {
        return packet.payload.containsKey("token") || packet.payload.containsKey("pass");
    }

    double nextActionAt() {
        return Math.min(resendAt, deadline);
    }

    List<Effect> granted(Map<String, Object> answer, double now) {
        return onAnswer != null ? onAnswer.answered(answer, null, now)
                : Collections.<Effect>singletonList(new RequestResult(id, answer, null));
    }

    List<Effect> failed(PresenceError error, double now) {
        return onAnswer != null ? onAnswer.answered(null, error, now)
                : Collections.<Effect>singletonList(new RequestResult(id, null, error));
    }
}
