package presence.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLPeerUnverifiedException;
import org.jetbrains.annotations.Nullable;

/**
 * TLS on one connection. The engine knows host and port, so the context resumes the last session with the server, as
 * long as it is young enough: a day in the JDK, 8 hours on Android, counted from the last full handshake.
 */
final class TlsLayer {
    private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

    private final SSLEngine engine;
    private final String host;
    private final boolean engineChecksHost;
    @Nullable private byte[] rest; // the beginning of a record
    private boolean isDone; // the handshake
    private boolean isOver; // the server has said that nothing follows

    TlsLayer(SSLContext context, String host, int port) {
        this.host = host;
        this.engine = context.createSSLEngine(host, port);
        engine.setUseClientMode(true);
        this.engineChecksHost = checkHostByEngine();
    }

    /** Has the engine check the host name; returns false on Android below API 24, which cannot. */
    private boolean checkHostByEngine() {
        try {
            SSLParameters parameters = engine.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            engine.setSSLParameters(parameters);
            return true;
        } catch (NoSuchMethodError old) {
            return false;
        }
    }

    boolean isOver() {
        return isOver;
    }

    void begin(Connection connection) throws IOException {
        engine.beginHandshake();
        send(NOTHING, connection);
    }

    /** Puts what is left of the last read before what comes. */
    void giveRest(ByteBuffer in) {
        if (rest != null) {
            in.put(rest);
            rest = null;
        }
    }

    /** Bytes have come from the wire; calls the connection with what is in them, and answers as TLS needs it. */
    void received(ByteBuffer in, Connection connection) throws IOException {
        while (!isOver) {
            ByteBuffer plain = connection.plainBuffer();
            plain.clear();
            SSLEngineResult result = engine.unwrap(in, plain);
            plain.flip();
            if (plain.hasRemaining()) {
                connection.decrypted(plain);
            }
            isOver = result.getStatus() == SSLEngineResult.Status.CLOSED;
            boolean wantsMore = advance(result, connection);
            boolean isStuck = result.getStatus() == SSLEngineResult.Status.BUFFER_UNDERFLOW
                    || (result.bytesConsumed() == 0 && result.bytesProduced() == 0 && !wantsMore);
            if (isStuck) {
                break;
            }
        }
        if (in.hasRemaining() && !isOver) {
            rest = new byte[in.remaining()];
            in.get(rest);
        }
    }

    /** Encrypts bytes and writes them; of an empty buffer, only what the handshake has to send. */
    void send(ByteBuffer bytes, Connection connection) throws IOException {
        boolean wantsMore;
        do {
            ByteBuffer wire = ByteBuffer.allocate(engine.getSession().getPacketBufferSize());
            SSLEngineResult result = engine.wrap(bytes, wire);
            wire.flip();
            connection.write(wire);
            if (result.getStatus() == SSLEngineResult.Status.CLOSED) {
                return;
            }
            wantsMore = bytes.hasRemaining() || engine.getHandshakeStatus() == HandshakeStatus.NEED_WRAP;
            finish(result, connection);
        } while (wantsMore);
    }

    /** Runs what the handshake needs after an unwrap; returns whether another unwrap may have an effect. */
    private boolean advance(SSLEngineResult result, Connection connection) throws IOException {
        finish(result, connection);
        boolean ran = false;
        if (engine.getHandshakeStatus() == HandshakeStatus.NEED_TASK) {
            for (Runnable task = engine.getDelegatedTask(); task != null; task = engine.getDelegatedTask()) {
                task.run(); // some milliseconds of arithmetic
            }
            ran = true;
        }
        if (engine.getHandshakeStatus() == HandshakeStatus.NEED_WRAP) {
            send(NOTHING, connection);
            ran = true;
        }
        return ran;
    }

    private void finish(SSLEngineResult result, Connection connection) throws SSLException {
        if (!isDone && result.getHandshakeStatus() == HandshakeStatus.FINISHED) {
            isDone = true;
            if (!engineChecksHost && !HttpsURLConnection.getDefaultHostnameVerifier().verify(host, engine.getSession())) {
                throw new SSLPeerUnverifiedException("the certificate does not name " + host);
            }
            connection.handshakeDone();
        }
    }

    /** Says that nothing follows; the session stays resumable. */
    void close(Connection connection) {
        try {
            engine.closeOutbound();
            send(NOTHING, connection);
        } catch (IOException error) {
            // The connection is gone.
        }
    }
}
