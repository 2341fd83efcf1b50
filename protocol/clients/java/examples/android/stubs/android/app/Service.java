package android.app;

import android.content.Context;
import android.content.Intent;
import android.os.IBinder;

public abstract class Service extends Context {
    public static final int START_STICKY = 1;

    public void onCreate() {}

    public abstract IBinder onBind(Intent intent);

    public int onStartCommand(Intent intent, int flags, int startId) {
        return 0;
    }

    public void onDestroy() {}

    public final void stopSelf() {}
}
