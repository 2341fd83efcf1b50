package presence.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import org.jetbrains.annotations.Nullable;

/** A TCP connection, with or without TLS; on the loop's thread. It holds no buffer while nothing is on its way. */
final class Connection implements Loop.Channel {
    private final Link link;
    private final SocketChannel channel;
    @Nullable private final TlsLayer tls;
    @Nullable private ByteBuffer unsent; // what the kernel has not taken yet
    @Nullable private SelectionKey key;
    private boolean isEstablished;
    private boolean isOpen = true;
    private boolean cannotWrite; // the server has closed its side; the reading side finds the reason

    Connection(Link link, SocketChannel channel, @Nullable TlsLayer tls) {
        this.link = link;
        this.channel = channel;
        this.tls = tls;
    }

    void start() throws IOException {
        key = channel.register(link.loop.selector, SelectionKey.OP_READ, this);
        if (tls == null) {
            isEstablished = true;
            link.established();
            return;
        }
        try {
            tls.begin(this);
        } catch (IOException error) {
            link.disconnected(Times.text(error));
        }
    }

    /** Returns whether everything was sent that was given to {@link #send}. */
    boolean isReadyToSend() {
        return isOpen && isEstablished && unsent == null;
    }

    /** Sends bytes of the program, or as many as the kernel takes now, and the rest later. */
    void send(byte[] bytes) {
        try {
            if (tls == null) {
                write(ByteBuffer.wrap(bytes));
            } else {
                tls.send(ByteBuffer.wrap(bytes), this);
            }
        } catch (IOException error) {
            cannotWrite = true;
        }
    }

    /** Writes bytes as they go over the wire; what is left is copied. */
    void write(ByteBuffer bytes) throws IOException {
        if (cannotWrite) {
            return;
        }
        if (unsent == null) {
            channel.write(bytes);
        }
        if (bytes.hasRemaining()) {
            int before = unsent == null ? 0 : unsent.remaining();
            ByteBuffer rest = ByteBuffer.allocate(before + bytes.remaining());
            if (unsent != null) {
                rest.put(unsent);
            }
            rest.put(bytes);
            rest.flip();
            unsent = rest;
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        }
    }

    @Override
    public void ready(SelectionKey ready) {
        if (isOpen && ready.isWritable()) {
            writeRest();
        }
        if (isOpen && ready.isReadable()) {
            read();
        }
    }

    @Override
    public Link link() {
        return link;
    }

    private void writeRest() {
        try {
            channel.write(unsent);
        } catch (IOException error) {
            cannotWrite = true;
        }
        if (cannotWrite || !unsent.hasRemaining()) {
            unsent = null;
            key.interestOps(SelectionKey.OP_READ);
            if (isEstablished) {
                link.noteWritten();
                link.flush();
            }
        }
    }

    private void read() {
        ByteBuffer in = link.loop.in;
        in.clear();
        try {
            if (tls != null) {
                tls.giveRest(in);
            }
            int count = channel.read(in);
            in.flip();
            if (tls == null && count > 0) {
                link.received(in.array(), 0, count);
            } else if (tls != null) {
                tls.received(in, this);
            }
            if (isOpen && (count < 0 || (tls != null && tls.isOver()))) {
                link.disconnected("the server closed it");
            }
        } catch (IOException error) {
            if (isOpen) {
                link.disconnected(Times.text(error));
            }
        }
    }

    /** The TLS layer has bytes for the machine. */
    void decrypted(ByteBuffer bytes) {
        if (isOpen) {
            link.received(bytes.array(), bytes.position(), bytes.remaining());
        }
    }

    /** The handshake is over, and the server is who it should be. */
    void handshakeDone() {
        isEstablished = true;
        link.established();
    }

    ByteBuffer plainBuffer() {
        return link.loop.out;
    }

    void close() {
        if (isOpen) {
            if (tls != null && isEstablished && unsent == null) {
                tls.close(this);
            }
            isOpen = false;
            Connector.close(channel);
        }
    }
}
