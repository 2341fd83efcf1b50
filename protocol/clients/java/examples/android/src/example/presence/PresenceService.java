package example.presence;

import android.app.AlarmManager;
import android.app.PendingIntent;
import android.app.Service;
import android.content.BroadcastReceiver;
import android.content.Context;
import android.content.Intent;
import android.content.IntentFilter;
import android.content.SharedPreferences;
import android.net.ConnectivityManager;
import android.net.Network;
import android.net.NetworkCapabilities;
import android.net.NetworkRequest;
import android.os.Build;
import android.os.Handler;
import android.os.IBinder;
import android.os.Looper;
import android.os.PowerManager;
import android.os.SystemClock;
import java.util.UUID;
import presence.client.Client;
import presence.client.ClientOptions;
import presence.client.Listener;
import presence.client.PresenceError;
import presence.client.Push;
import presence.client.Update;

/**
 * Keeps an app's user online while the app is in the foreground, and in the background for as long as Android lets its
 * process live.
 *
 * <p>Three things differ from a program on a computer:
 *
 * <ul>
 *   <li><b>Sleep.</b> A device in Doze stops the processor, and with it every timer. In the background the service asks
 *       for the longest idle time-out, 1,350 s, so keepalives are due every 540 s: the nine minutes after which Doze
 *       allows an app another alarm. Each alarm wakes the client, which sends what is due.
 *   <li><b>Networks.</b> A connection does not survive the change from Wi-Fi to mobile data, and nothing says so. The
 *       client is told, and returns within the server's grace: other users see nothing.
 *   <li><b>Process death.</b> Android may kill the process at any moment and start the service again. The name of the
 *       device is stored, so the new login takes the place of the old session.
 * </ul>
 *
 * <p>From Android 8 on, an app in the background may not start a service, so the alarms come as broadcasts; and its
 * service lives for some minutes only, unless it calls {@code startForeground} with a notification. An app that need not be online then logs out instead:
 * {@code client.logout("background")}.
 *
 * <p>The manifest needs {@code <service android:name="example.presence.PresenceService"/>} and the permissions
 * {@code INTERNET}, {@code ACCESS_NETWORK_STATE} and {@code WAKE_LOCK}. The tests only compile this class, against stubs
 * with the signatures that it uses of the Android SDK, which is no part of this project: it has not run on a device.
 */
public final class PresenceService extends Service {
    /** Sent by the app's activities in {@code onStart}. */
    public static final String FOREGROUND = "example.presence.FOREGROUND";
    /** Sent by the app's activities in {@code onStop}. */
    public static final String BACKGROUND = "example.presence.BACKGROUND";
    private static final String ALARM = "example.presence.ALARM";

    private static final long FOREGROUND_IDLE_MS = 30_000;
    private static final long BACKGROUND_IDLE_MS = 1_350_000; // the server's default limit
    private static final long ALARM_MS = 540_000;
    private static final long AWAKE_MS = 10_000; // for a keepalive and its answer; Doze grants some ten seconds

    private Client client;
    private Network network;
    private boolean isInBackground;

    private final ConnectivityManager.NetworkCallback networks = new ConnectivityManager.NetworkCallback() {
        @Override
        public void onAvailable(Network available) {
            if (Build.VERSION.SDK_INT >= 24 && network != null && !network.equals(available)) {
                client.networkChanged(); // reconnects without waiting
            } else {
                client.wake(); // below 24 any network is reported, so a connection that still answers is kept
            }
            network = available;
        }
    };

    private final BroadcastReceiver alarms = new BroadcastReceiver() {
        @Override
        public void onReceive(Context context, Intent intent) {
            onAlarm();
        }
    };

    @Override
    public void onCreate() {
        Handler main = new Handler(Looper.getMainLooper());
        client = Client.start(ClientOptions.builder("presence.example.org", 7443)
                .tls()
                .device(deviceName())
                .deviceClass("phone")
                .token(() -> Backend.fetchToken()) // on a background thread, which may block
                .executor(main::post) // listeners run on the main thread
                .clock(SystemClock::elapsedRealtimeNanos) // counts while the device sleeps
                .quiet(true) // as in the background, where Android restarts the process
                .idleTimeoutMs(BACKGROUND_IDLE_MS)
                .listener(new Pushes())
                .build());
        if (Build.VERSION.SDK_INT >= 33) {
            registerReceiver(alarms, new IntentFilter(ALARM), RECEIVER_NOT_EXPORTED);
        } else {
            registerReceiver(alarms, new IntentFilter(ALARM));
        }
        client.watchRosterNowait(); // of the roster that the backend keeps; without one, watchNowait(uids)
        ConnectivityManager connectivity = (ConnectivityManager) getSystemService(Context.CONNECTIVITY_SERVICE);
        if (Build.VERSION.SDK_INT >= 24) {
            connectivity.registerDefaultNetworkCallback(networks);
        } else {
            connectivity.registerNetworkCallback(new NetworkRequest.Builder()
                    .addCapability(NetworkCapabilities.NET_CAPABILITY_INTERNET).build(), networks);
        }
    }

    @Override
    public int onStartCommand(Intent intent, int flags, int startId) {
        String action = intent == null ? BACKGROUND : intent.getAction(); // null: started again after process death
        setBackground(!FOREGROUND.equals(action));
        return START_STICKY;
    }

    private void setBackground(boolean background) {
        isInBackground = background;
        client.logInWith(new Update().quiet(background));
        applyMode();
        if (background) {
            setAlarm();
        } else {
            client.wake();
        }
    }

    /** Tells the server what the app does; while the client is offline that fails, and {@code onConnected} repeats it. */
    private void applyMode() {
        client.update(new Update().quiet(isInBackground)).whenDone((done, error) -> report("quiet", error));
        client.setIdleTimeout(isInBackground ? BACKGROUND_IDLE_MS : FOREGROUND_IDLE_MS)
                .whenDone((granted, error) -> report("idle time-out", error));
    }

    /** Logs what the server did not accept, except while offline. */
    private static void report(String what, PresenceError error) {
        if (error != null && !(error instanceof PresenceError.NotConnected)) {
            System.err.println("presence: " + what + " not set: " + error.getMessage());
        }
    }

    private void onAlarm() {
        if (isInBackground) {
            PowerManager power = (PowerManager) getSystemService(Context.POWER_SERVICE);
            power.newWakeLock(PowerManager.PARTIAL_WAKE_LOCK, "presence:keepalive").acquire(AWAKE_MS);
            client.wake();
            setAlarm();
        }
    }

    private void setAlarm() {
        AlarmManager manager = (AlarmManager) getSystemService(Context.ALARM_SERVICE);
        int flags = PendingIntent.FLAG_UPDATE_CURRENT | (Build.VERSION.SDK_INT >= 23 ? PendingIntent.FLAG_IMMUTABLE : 0);
        Intent intent = new Intent(ALARM).setPackage(getPackageName());
        PendingIntent alarm = PendingIntent.getBroadcast(this, 0, intent, flags);
        long at = SystemClock.elapsedRealtime() + ALARM_MS;
        if (Build.VERSION.SDK_INT >= 23) {
            manager.setAndAllowWhileIdle(AlarmManager.ELAPSED_REALTIME_WAKEUP, at, alarm);
        } else {
            manager.set(AlarmManager.ELAPSED_REALTIME_WAKEUP, at, alarm);
        }
    }

    /** Returns the name of this device, the same after each start of the process. */
    private String deviceName() {
        SharedPreferences stored = getSharedPreferences("presence", Context.MODE_PRIVATE);
        String name = stored.getString("device", null);
        if (name == null) {
            name = UUID.randomUUID().toString();
            stored.edit().putString("device", name).commit(); // before the first login with it
        }
        return name;
    }

    @Override
    public void onDestroy() {
        unregisterReceiver(alarms);
        ((ConnectivityManager) getSystemService(Context.CONNECTIVITY_SERVICE)).unregisterNetworkCallback(networks);
        client.disconnect(); // the user stays online for the server's grace; `logout` to be offline immediately
    }

    @Override
    public IBinder onBind(Intent intent) {
        return null;
    }

    /** What the app does with pushes, on the main thread. */
    private final class Pushes extends Listener {
        @Override
        public void onConnected(Client from, Push.Connected push) {
            applyMode();
        }

        @Override
        public void onDelivered(Client from, Push.Delivered push) {
            // Show push.body, a message of push.sender.
        }

        @Override
        public void onPresenceChanged(Client from, Push.PresenceChanged push) {
            // Show push.state.status of push.uid.
        }

        @Override
        public void onEnded(Client from, PresenceError error) {
            if (error instanceof PresenceError.Replaced || error instanceof PresenceError.LoginRefused) {
                stopSelf(); // Android would only start it again
            }
        }
    }

    /** The app's own backend, which knows its user and signs tokens. */
    private static final class Backend {
        static String fetchToken() {
            throw new UnsupportedOperationException("an HTTPS request to the backend of the app");
        }
    }
}
