package presence.client;

/** Kinds of packets: below 64 from the client, from 64 on from the server. */
final class Kind {
    static final int LOGIN = 1;
    static final int MESSAGE = 2;
    static final int KEEPALIVE = 3;
    static final int LOGOUT = 4;
    static final int QUERY = 5;
    static final int WATCH = 6;
    static final int UNWATCH = 7;
    static final int UPDATE = 8;
    static final int OK = 64;
    static final int ERROR = 65;
    static final int PRESENCE = 66;
    static final int DELIVER = 67;
    static final int GOODBYE = 68;
    static final int CHANGES = 69;
    static final int ROOMS = 70;

    private Kind() {}
}
