package android.os;

public final class PowerManager {
    public static final int PARTIAL_WAKE_LOCK = 1;

    public WakeLock newWakeLock(int level, String tag) {
        return null;
    }

    public final class WakeLock {
        public void acquire(long timeoutMs) {}
    }
}
