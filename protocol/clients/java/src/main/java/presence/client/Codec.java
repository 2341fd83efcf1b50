package presence.client;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.EncodeError;

/** Frames to packets and back. A frame is a 4-byte big-endian length and that many bytes of MessagePack. */
final class Codec {
    static final int HEADER_BYTES = 4;
    static final int LOGIN_LIMIT_BYTES = 1024;
    static final int LIMIT_BYTES = 16 * 1024;
    static final int SERVER_LIMIT_BYTES = 256 * 1024;
    static final byte[] KEEPALIVE = {0, 0, 0, 2, (byte) 0x91, 3};
    private static final int MAX_DEPTH = 13; // the payload, at most 12 deep, and the array around it

    private Codec() {}

    /**
     * Returns the packet as a frame, with its length.
     *
     * @throws EncodeError the packet breaks a rule of the protocol, or its body is longer than the limit.
     */
    static byte[] encode(Packet packet, int limitBytes) {
        boolean hasPayload = !packet.payload.isEmpty();
        MessagePackWriter writer = new MessagePackWriter().fixed(0, HEADER_BYTES);
        writer.array(hasPayload ? 3 : packet.id != null ? 2 : 1).value(packet.kind);
        if (hasPayload || packet.id != null) {
            writer.value(packet.id);
        }
        if (hasPayload) {
            writer.value(packet.payload);
        }
        int bodyBytes = writer.size() - HEADER_BYTES;
        if (bodyBytes > limitBytes) {
            throw new EncodeError(bodyBytes + " bytes are over the limit of " + limitBytes);
        }
        writer.setHeader(bodyBytes);
        byte[] frame = writer.toBytes();
        try {
            decode(frame, HEADER_BYTES, frame.length); // what a server would refuse is a mistake of this side
        } catch (ProtocolError error) {
            throw new EncodeError("kind " + packet.kind + ": " + error.getMessage());
        }
        return frame;
    }

    /** Returns the packet of a frame's body; a refusal has its kind and id as far as they are readable. */
    static Packet decode(byte[] data, int start, int end) throws ProtocolError {
        try {
            return decodeBody(data, start, end);
        } catch (ProtocolError error) {
            peek(new MessagePackReader(data, start, end), error);
            throw error;
        }
    }

    private static Packet decodeBody(byte[] data, int start, int end) throws ProtocolError {
        MessagePackReader reader = new MessagePackReader(data, start, end);
        Object value = reader.value(MAX_DEPTH);
        if (!reader.isAtEnd()) {
            throw ProtocolError.wrong("bytes follow the array");
        }
        List<?> elements = value instanceof List ? (List<?>) value : Arrays.asList();
        if (elements.isEmpty() || elements.size() > 3) {
            throw ProtocolError.wrong("a frame must hold an array of 1 to 3 elements");
        }
        Object kind = elements.get(0);
        Object id = elements.size() > 1 ? elements.get(1) : null;
        Object payload = elements.size() > 2 ? elements.get(2) : Packet.EMPTY;
        if (!Schema.isUint(kind) || !(id == null || Schema.isUint(id)) || !(payload instanceof Map)) {
            throw ProtocolError.wrong("kind and id must be unsigned integers, and the payload a map");
        }
        @SuppressWarnings("unchecked") // the keys of every map that was read are strings
        Map<String, Object> map = (Map<String, Object>) payload;
        Schema.check(((Number) kind).doubleValue(), map);
        return new Packet((Number) kind, (Number) id, map);
    }

    private static void peek(MessagePackReader reader, ProtocolError error) {
        try {
            int count = reader.arrayHeader();
            if (count >= 1 && count <= 3) {
                error.kind = peekUint(reader);
                error.id = error.kind != null && count > 1 ? peekUint(reader) : null;
            }
        } catch (ProtocolError unreadable) {
            // The rest is not readable.
        }
    }

    @Nullable
    private static Number peekUint(MessagePackReader reader) throws ProtocolError {
        Object value = reader.value(0);
        reader.expectAnother();
        return Schema.isUint(value) ? (Number) value : null;
    }

    /** Cuts a stream of bytes into packets; the pieces may be cut anywhere. After an error it stays failed. */
    static final class Decoder {
        private final int limitBytes;
        private byte[] data = new byte[0];
        private int at;
        private int end;
        private boolean isOwn = true; // else the array is the caller's, which changes after the last call of next
        @Nullable private ProtocolError failure;

        Decoder(int limitBytes) {
            this.limitBytes = limitBytes;
        }

        /** Adds bytes, which must not change until {@link #next} has returned null. */
        void feed(byte[] bytes, int start, int length) {
            if (at == end) {
                data = bytes;
                at = start;
                end = start + length;
                isOwn = false;
                return;
            }
            keep(end - at + length);
            System.arraycopy(bytes, start, data, end, length);
            end += length;
        }

        /** Returns the next packet, or null until more bytes are fed. */
        @Nullable
        Packet next() throws ProtocolError {
            if (failure != null) {
                throw failure;
            }
            try {
                return nextPacket();
            } catch (ProtocolError error) {
                failure = error;
                data = new byte[0];
                at = end = 0;
                throw error;
            }
        }

        @Nullable
        private Packet nextPacket() throws ProtocolError {
            if (end - at >= HEADER_BYTES) {
                long length = 0;
                for (int i = at; i < at + HEADER_BYTES; i++) {
                    length = length << 8 | (data[i] & 0xff);
                }
                if (length > limitBytes) {
                    throw ProtocolError.tooLarge("a frame of " + length + " bytes is over the limit of " + limitBytes);
                } else if (length == 0) {
                    throw ProtocolError.wrong("a frame is empty");
                }
                int start = at + HEADER_BYTES;
                if (length <= end - start) {
                    at = start + (int) length;
                    return decode(data, start, at);
                }
            }
            if (at == end) {
                data = new byte[0]; // an idle client holds no buffer
                at = end = 0;
                isOwn = true;
            } else if (!isOwn) {
                keep(end - at);
            }
            return null;
        }

        /** Moves what is left to the beginning of an array of its own, with room for so many bytes. */
        private void keep(int bytes) {
            byte[] target = data;
            if (!isOwn || data.length < bytes) {
                target = new byte[isOwn ? Math.max(bytes, 2 * data.length) : bytes];
            }
            System.arraycopy(data, at, target, 0, end - at);
            end -= at;
            at = 0;
            data = target;
            isOwn = true;
        }
    }
}
