package presence.client;

import java.io.IOException;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import org.jetbrains.annotations.Nullable;

/**
 * Connects to the first address of a host that answers (RFC 8305, happy eyeballs): addresses of both families by turns,
 * the next one 250 ms after the last, or as soon as that has failed. Everything but the lookup is on the loop's thread.
 */
final class Connector implements Loop.Channel {
    private static final double ATTEMPT_DELAY_S = 0.25;

    private final Link link;
    private final String host;
    private final int port;
    private final ArrayDeque<InetAddress> addresses = new ArrayDeque<>(2); // not tried yet
    private final List<SocketChannel> attempts = new ArrayList<>(1);
    @Nullable private String failure; // of the first address that failed
    private long nextNanos;
    private boolean isOver;

    Connector(Link link, String host, int port) {
        this.link = link;
        this.host = host;
        this.port = port;
    }

    void start() {
        Threads.BLOCKING.execute(() -> {
            try {
                InetAddress[] found = InetAddress.getAllByName(host);
                link.execute(() -> resolved(found));
            } catch (IOException | SecurityException error) {
                link.execute(() -> fail("unknown host: " + host));
            }
        });
    }

    /** Returns the seconds until the next address is to be tried; infinite if there is none. */
    double nextAttemptIn() {
        return addresses.isEmpty() ? Double.POSITIVE_INFINITY : (nextNanos - System.nanoTime()) / 1e9;
    }

    void tick() throws IOException {
        if (!addresses.isEmpty() && nextNanos - System.nanoTime() <= 0) {
            tryNext();
        }
    }

    void cancel() {
        isOver = true;
        addresses.clear();
        for (SocketChannel attempt : attempts) {
            close(attempt);
        }
        attempts.clear();
    }

    private void resolved(InetAddress[] found) throws IOException {
        if (isOver) {
            return;
        }
        List<InetAddress> first = new ArrayList<>(); // of the family that the system prefers
        List<InetAddress> second = new ArrayList<>();
        for (InetAddress address : found) {
            boolean isFirst = address instanceof Inet6Address == found[0] instanceof Inet6Address;
            (isFirst ? first : second).add(address);
        }
        for (int at = 0; at < found.length; at++) {
            for (List<InetAddress> family : java.util.Arrays.asList(first, second)) {
                if (at < family.size()) {
                    addresses.add(family.get(at));
                }
            }
        }
        tryNext();
    }

    private void tryNext() throws IOException {
        while (!addresses.isEmpty()) {
            SocketChannel channel = null;
            boolean isConnected = false;
            try {
                channel = SocketChannel.open();
                channel.configureBlocking(false);
                channel.socket().setTcpNoDelay(true);
                isConnected = channel.connect(new InetSocketAddress(addresses.poll(), port));
                channel.register(link.loop.selector, isConnected ? 0 : SelectionKey.OP_CONNECT, this);
            } catch (IOException | RuntimeException error) { // of an address that this device cannot use
                note(error);
                close(channel);
                continue;
            }
            attempts.add(channel);
            if (isConnected) {
                won(channel);
            } else if (!addresses.isEmpty()) {
                nextNanos = System.nanoTime() + (long) (ATTEMPT_DELAY_S * 1e9);
                link.loop.schedule(link, ATTEMPT_DELAY_S);
            }
            return;
        }
        if (attempts.isEmpty()) {
            fail(failure == null ? "no address" : failure);
        }
    }

    @Override
    public void ready(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        try {
            channel.finishConnect();
        } catch (IOException error) {
            note(error);
            attempts.remove(channel);
            close(channel);
            tryNext();
            return;
        }
        won(channel);
    }

    @Override
    public Link link() {
        return link;
    }

    private void won(SocketChannel channel) throws IOException {
        attempts.remove(channel);
        cancel();
        link.tcpEstablished(channel);
    }

    private void fail(String why) {
        if (!isOver) {
            isOver = true;
            link.disconnected(why);
        }
    }

    private void note(Exception error) {
        failure = failure != null ? failure : Times.text(error);
    }

    static void close(@Nullable SocketChannel channel) {
        try {
            if (channel != null) {
                channel.close();
            }
        } catch (IOException error) {
            // It is closed all the same.
        }
    }
}
