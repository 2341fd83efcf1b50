package presence.client;

import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;

/** The test vectors of the protocol, whole, in pieces of any size, and back. */
final class VectorsTest {
    private static final int SHORT_BYTES = 100;

    static List<Packet> decoded(byte[] bytes, int limitBytes, int pieceBytes) throws ProtocolError {
        Codec.Decoder decoder = new Codec.Decoder(limitBytes);
        List<Packet> packets = new ArrayList<>();
        byte[] buffer = new byte[pieceBytes]; // used again, as that of a shell
        for (int at = 0; at < bytes.length; at += pieceBytes) {
            int length = Math.min(pieceBytes, bytes.length - at);
            System.arraycopy(bytes, at, buffer, 0, length);
            decoder.feed(buffer, 0, length);
            for (Packet packet = decoder.next(); packet != null; packet = decoder.next()) {
                packets.add(packet);
            }
        }
        return packets;
    }

    private static List<Packet> one(Packet packet) {
        List<Packet> packets = new ArrayList<>();
        packets.add(packet);
        return packets;
    }

    void testGood() throws ProtocolError {
        for (Vectors.Good each : Vectors.good) {
            Check.equal(one(each.packet), decoded(each.frame, each.limitBytes, each.frame.length), each.name);
        }
    }

    void testGoodInPieces() throws ProtocolError {
        for (Vectors.Good each : Vectors.good) {
            for (int bytes : each.frame.length <= SHORT_BYTES ? new int[] {1, 2, 3, 5, 7} : new int[] {1, 4093}) {
                Check.equal(one(each.packet), decoded(each.frame, each.limitBytes, bytes), each.name);
            }
        }
    }

    void testGoodEncodedByThisClient() throws ProtocolError {
        for (Vectors.Good each : Vectors.good) {
            byte[] frame = Codec.encode(each.packet, each.limitBytes);
            Check.equal(one(each.packet), decoded(frame, each.limitBytes, frame.length), each.name);
        }
    }

    void testBad() {
        for (Vectors.Bad each : Vectors.bad) {
            for (int bytes : new int[] {each.frame.length, 1}) {
                ProtocolError error =
                        Check.fails(ProtocolError.class, () -> decoded(each.frame, each.limitBytes, bytes));
                Check.equal(each.code, error.code.number, each.name);
                Check.equal(each.reason, error.code.reason, each.name);
                Check.equal(each.kind, error.kind, each.name);
                Check.equal(each.id, error.id, each.name);
            }
        }
    }

    void testADecoderThatHasFailedStaysFailed() throws ProtocolError {
        Codec.Decoder decoder = new Codec.Decoder(Codec.LIMIT_BYTES);
        byte[] empty = new byte[Codec.HEADER_BYTES];
        decoder.feed(empty, 0, empty.length);
        Check.fails(ProtocolError.class, decoder::next);
        decoder.feed(Codec.KEEPALIVE, 0, Codec.KEEPALIVE.length);
        Check.fails(ProtocolError.class, decoder::next);
    }

    void testAllGoodOfALimitAsOneStream() throws ProtocolError {
        for (int limit : new int[] {Codec.LOGIN_LIMIT_BYTES, Codec.LIMIT_BYTES, Codec.SERVER_LIMIT_BYTES}) {
            List<Packet> packets = new ArrayList<>();
            ByteArrayOutputStream stream = new ByteArrayOutputStream();
            for (Vectors.Good each : Vectors.good) {
                if (each.limitBytes == limit) {
                    packets.add(each.packet);
                    stream.write(each.frame, 0, each.frame.length);
                }
            }
            for (int bytes : new int[] {1, 7, 1000, 65_536, stream.size()}) {
                Check.equal(packets, decoded(stream.toByteArray(), limit, bytes));
            }
        }
    }

    void testTheVectorsAreComplete() {
        Check.that(Vectors.good.size() >= 60 && Vectors.bad.size() >= 60 && Vectors.rows.size() >= 5, "too few");
    }
}
