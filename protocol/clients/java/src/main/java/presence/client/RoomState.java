package presence.client;

import java.util.Collections;
import java.util.Set;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/** A room: how many members it has, and who they are, if this client is shown that. */
public final class RoomState {
    /** Members who are not invisible. */
    public final long count;
    /** Those whom this client may see; null: they are not shown, or are too many. */
    @Nullable public final Set<String> members;

    RoomState(long count, @Nullable Set<String> members) {
        this.count = count;
        this.members = members == null ? null : Collections.unmodifiableSet(members);
    }

    @Override
    public boolean equals(Object other) {
        if (!(other instanceof RoomState)) {
            return false;
        }
        RoomState room = (RoomState) other;
        return count == room.count && (members == null ? room.members == null : members.equals(room.members));
    }

    @Override
    public int hashCode() {
        return (int) count;
    }

    @Override
    @NotNull
    public String toString() {
        return "RoomState(" + count + (members == null ? "" : ", " + members) + ")";
    }
}
