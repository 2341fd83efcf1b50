package presence.client;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** A server on loopback that answers with ok, or as a test wants it. */
class ScriptedServer implements AutoCloseable {
    static final int WAIT_S = 20;

    private final ServerSocket listener;
    private final List<Socket> connections = new CopyOnWriteArrayList<>();
    /** What clients have sent, without keepalives that ask for nothing. */
    final BlockingQueue<Packet> received = new LinkedBlockingQueue<>();

    ScriptedServer() throws IOException {
        listener = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        run(this::accept);
    }

    private static void run(Check.Action action) {
        Thread thread = new Thread(() -> {
            try {
                action.run();
            } catch (Exception closed) {
                // The test is over, or the client has gone.
            }
        }, "scripted server");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() throws IOException {
        while (true) {
            Socket socket = listener.accept();
            socket.setTcpNoDelay(true);
            connections.add(socket);
            run(() -> serve(socket));
        }
    }

    private void serve(Socket socket) throws IOException, ProtocolError {
        Codec.Decoder decoder = new Codec.Decoder(Codec.SERVER_LIMIT_BYTES);
        InputStream in = socket.getInputStream();
        byte[] buffer = new byte[4096];
        for (int count = in.read(buffer); count >= 0; count = in.read(buffer)) {
            decoder.feed(buffer, 0, count);
            for (Packet packet = decoder.next(); packet != null; packet = decoder.next()) {
                if (!packet.is(Kind.KEEPALIVE) || packet.id != null) {
                    received.add(packet);
                    Packet answer = answer(packet);
                    if (answer != null) {
                        socket.getOutputStream().write(Codec.encode(answer, Codec.SERVER_LIMIT_BYTES));
                    }
                }
            }
        }
        socket.close();
    }

    /** Returns the answer to a packet; null: none. */
    Packet answer(Packet packet) {
        if (packet.is(Kind.LOGIN)) {
            return ok(packet, "session", "s-1", "idle_timeout", 30, "keepalive", 12, "time_ms", Driven.SERVER_TIME_MS);
        } else if (packet.is(Kind.MESSAGE)) {
            return ok(packet, "delivered", 1);
        }
        return ok(packet);
    }

    static Packet ok(Packet request, Object... keysAndValues) {
        return Packet.of(Kind.OK, keysAndValues).withId(request.id());
    }

    static Packet refusal(Packet request, Code code) {
        return Packet.of(Kind.ERROR, "code", code.number, "reason", code.reason, "message", "no").withId(request.id());
    }

    int port() {
        return listener.getLocalPort();
    }

    ClientOptions.Builder options() {
        return ClientOptions.builder("127.0.0.1", port()).uid("ann");
    }

    /** Sends packets to all clients. */
    void push(Packet... packets) throws IOException {
        for (Socket socket : connections) {
            for (Packet packet : packets) {
                socket.getOutputStream().write(Codec.encode(packet, Codec.SERVER_LIMIT_BYTES));
            }
        }
    }

    static Packet message(int body) {
        return Packet.of(Kind.DELIVER, "from", "bob", "body", body, "at_ms", Driven.SERVER_TIME_MS);
    }

    /** Returns the next packet of a kind that a client has sent. */
    Packet next(int kind) throws InterruptedException {
        while (true) {
            Packet packet = received.poll(WAIT_S, TimeUnit.SECONDS);
            Check.that(packet != null, "no packet of kind " + kind);
            if (packet.is(kind)) {
                return packet;
            }
        }
    }

    /** Closes all connections. */
    void drop() throws IOException {
        for (Socket socket : connections) {
            socket.close();
        }
        connections.clear();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        drop();
    }
}
