package android.app;

public class AlarmManager {
    public static final int ELAPSED_REALTIME_WAKEUP = 2;

    public void set(int type, long at, PendingIntent operation) {}

    public void setAndAllowWhileIdle(int type, long at, PendingIntent operation) {}
}
