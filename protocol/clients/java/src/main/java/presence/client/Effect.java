package presence.client;

import org.jetbrains.annotations.Nullable;
import java.util.Map;

/** What an input to the machine leads to, besides bytes to send: a push, or the result of a request. */
interface Effect {
    /** The result of a request: the payload of its ok, or an error. */
    final class RequestResult implements Effect {
        final long id;
        @Nullable final Map<String, Object> answer; // null: an error
        @Nullable final PresenceError error;

        RequestResult(long id, @Nullable Map<String, Object> answer, @Nullable PresenceError error) {
            this.id = id;
            this.answer = answer;
            this.error = error;
        }
    }
}
