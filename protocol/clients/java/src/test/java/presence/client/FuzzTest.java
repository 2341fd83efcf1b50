package presence.client;

import java.util.Random;

/** Good frames with flipped bits, cut and joined: nothing but {@link ProtocolError} may come of them. */
final class FuzzTest {
    private static final int ROUNDS = 200; // of each vector
    private static final int MOST_BYTES = 4000; // of a vector

    void testDamagedFrames() throws ProtocolError {
        Random random = new Random(49);
        int taken = 0;
        int refused = 0;
        for (Vectors.Good each : Vectors.good) {
            for (int round = 0; each.frame.length < MOST_BYTES && round < ROUNDS; round++) {
                byte[] frame = each.frame.clone();
                for (int flips = 1 + random.nextInt(3); flips > 0; flips--) {
                    int at = random.nextInt(8) == 0 ? random.nextInt(frame.length)
                            : Codec.HEADER_BYTES + random.nextInt(frame.length - Codec.HEADER_BYTES);
                    frame[at] ^= (byte) (1 << random.nextInt(8));
                }
                try {
                    for (Packet packet : VectorsTest.decoded(frame, each.limitBytes, frame.length)) {
                        byte[] again = Codec.encode(packet, Codec.SERVER_LIMIT_BYTES);
                        Check.equal(packet, Codec.decode(again, Codec.HEADER_BYTES, again.length), each.name);
                        taken++;
                    }
                } catch (ProtocolError error) {
                    Check.that(error.code == Code.PROTOCOL_ERROR || error.code == Code.TOO_LARGE, error.code);
                    refused++;
                }
            }
        }
        Check.that(taken > 1000 && refused > 1000, taken + " were taken, " + refused + " refused");
    }

    /** Whatever a server sends, the machine takes it or loses the connection. */
    void testDamagedFramesToTheMachine() {
        Random random = new Random(94);
        for (Vectors.Good each : Vectors.good) {
            for (int round = 0; each.frame.length < MOST_BYTES && round < 40; round++) {
                byte[] frame = each.frame.clone();
                int at = Codec.HEADER_BYTES + random.nextInt(frame.length - Codec.HEADER_BYTES);
                frame[at] ^= (byte) (1 << random.nextInt(8));
                Driven driven = new Driven();
                driven.logIn();
                driven.machine.watchNowait(java.util.Collections.singletonList("bob"), driven.now);
                driven.receive(round == 0 ? each.frame : frame);
                Check.that(driven.machine.state != State.LOGGING_IN, driven.machine.state);
            }
        }
    }
}
