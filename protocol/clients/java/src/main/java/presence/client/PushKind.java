package presence.client;

/** Kinds of pushes; each has a queue of its own. */
public enum PushKind {
    /** {@link Push.Delivered}. */
    MESSAGES,
    /** {@link Push.PresenceChanged} and {@link Push.WatchEnded}. */
    PRESENCE,
    /** {@link Push.RoomChanged}. */
    ROOMS,
    /** {@link Push.Connected}, {@link Push.Disconnected} and {@link Push.Goodbye}. */
    CONNECTION
}
