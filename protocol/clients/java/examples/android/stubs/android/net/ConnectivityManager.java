package android.net;

public class ConnectivityManager {
    public void registerDefaultNetworkCallback(NetworkCallback callback) {}

    public void registerNetworkCallback(NetworkRequest request, NetworkCallback callback) {}

    public void unregisterNetworkCallback(NetworkCallback callback) {}

    public static class NetworkCallback {
        public void onAvailable(Network network) {}
    }
}
