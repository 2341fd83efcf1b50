package presence.client;

import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/**
 * Gets the pushes of a client, one call after another in their order, on the executor of its options. While a call
 * lasts, further pushes wait in the client's queues, which are bounded: {@link Push.Dropped}. An exception out of a
 * call goes to the thread's handler of uncaught exceptions; the next push follows all the same.
 */
public abstract class Listener {
    /** Logged in, for the first time or again. */
    public void onConnected(@NotNull Client client, @NotNull Push.Connected push) {}

    /** The connection is lost, or an attempt failed; the client tries again by itself. */
    public void onDisconnected(@NotNull Client client, @NotNull Push.Disconnected push) {}

    /** The server has announced that it closes the connection. */
    public void onGoodbye(@NotNull Client client, @NotNull Push.Goodbye push) {}

    /** A message has come. */
    public void onDelivered(@NotNull Client client, @NotNull Push.Delivered push) {}

    /** A watched user has changed. */
    public void onPresenceChanged(@NotNull Client client, @NotNull Push.PresenceChanged push) {}

    /** The server has refused a watch that no call waits for. */
    public void onWatchEnded(@NotNull Client client, @NotNull Push.WatchEnded push) {}

    /** A watched room has changed. */
    public void onRoomChanged(@NotNull Client client, @NotNull Push.RoomChanged push) {}

    /** Pushes were dropped, because calls of this listener took too long. */
    public void onDropped(@NotNull Client client, @NotNull Push.Dropped push) {}

    /** The last call: the client has ended. {@code error}: why; null if the program has ended it. */
    public void onEnded(@NotNull Client client, @Nullable PresenceError error) {}

    final void dispatch(Client client, Push push) {
        if (push instanceof Push.Delivered) {
            onDelivered(client, (Push.Delivered) push);
        } else if (push instanceof Push.PresenceChanged) {
            onPresenceChanged(client, (Push.PresenceChanged) push);
        } else if (push instanceof Push.RoomChanged) {
            onRoomChanged(client, (Push.RoomChanged) push);
        } else if (push instanceof Push.Connected) {
            onConnected(client, (Push.Connected) push);
        } else if (push instanceof Push.Disconnected) {
            onDisconnected(client, (Push.Disconnected) push);
        } else if (push instanceof Push.Goodbye) {
            onGoodbye(client, (Push.Goodbye) push);
        } else if (push instanceof Push.WatchEnded) {
            onWatchEnded(client, (Push.WatchEnded) push);
        } else {
            onDropped(client, (Push.Dropped) push);
        }
    }
}
