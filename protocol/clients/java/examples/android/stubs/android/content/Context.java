package android.content;

public abstract class Context {
    public static final String ALARM_SERVICE = "alarm";
    public static final String CONNECTIVITY_SERVICE = "connectivity";
    public static final String POWER_SERVICE = "power";
    public static final int MODE_PRIVATE = 0;
    public static final int RECEIVER_NOT_EXPORTED = 4;

    public String getPackageName() {
        return null;
    }

    public Intent registerReceiver(BroadcastReceiver receiver, IntentFilter filter) {
        return null;
    }

    public Intent registerReceiver(BroadcastReceiver receiver, IntentFilter filter, int flags) {
        return null;
    }

    public void unregisterReceiver(BroadcastReceiver receiver) {}

    public Object getSystemService(String name) {
        return null;
    }

    public SharedPreferences getSharedPreferences(String name, int mode) {
        return null;
    }
}
