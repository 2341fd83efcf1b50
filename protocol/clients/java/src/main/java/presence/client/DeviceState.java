package presence.client;

import java.util.Map;
import org.jetbrains.annotations.NotNull;
import org.jetbrains.annotations.Nullable;

/** A device of a user who is online. */
public final class DeviceState {
    /** Its name; empty: the default device. */
    @NotNull public final String device;
    /** As of {@link UserState}. */
    @NotNull public final String status;
    /** When it logged in, Unix milliseconds. */
    public final long sinceMs;
    /** What it is, as it says: {@code phone}, {@code web}; null if it does not. */
    @Nullable public final String deviceClass;
    /** What it shows. */
    @NotNull public final Map<String, Object> meta;

    DeviceState(String device, String status, long sinceMs, @Nullable String deviceClass, Map<String, Object> meta) {
        this.device = device;
        this.status = status;
        this.sinceMs = sinceMs;
        this.deviceClass = deviceClass;
        this.meta = meta;
    }
}
