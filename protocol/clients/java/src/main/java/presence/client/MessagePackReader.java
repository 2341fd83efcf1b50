package presence.client;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jetbrains.annotations.Nullable;

/**
 * Reads the protocol's part of MessagePack, strictly.
 *
 * <p>A reader that trusts a container's header allocates what the header claims, and nested headers multiply. So
 * {@code owed}, the values still missing in all open containers together, never exceeds the bytes left, because a
 * value takes at least one: time and memory are linear in the frame.
 */
final class MessagePackReader {
    private final byte[] data;
    private final int end;
    private int at;
    private long owed = 1;

    MessagePackReader(byte[] data, int start, int end) {
        this.data = data;
        this.at = start;
        this.end = end;
    }

    boolean isAtEnd() {
        return at == end;
    }

    /** Another value is to be read, besides those of containers. */
    void expectAnother() {
        owed++;
    }

    /** Returns the count of the array that begins here, and moves to its first element; -1 if there is none. */
    int arrayHeader() throws ProtocolError {
        int tag = at < end ? data[at] & 0xff : 0xc0;
        if (tag >> 4 != 0x9 && tag != 0xdc && tag != 0xdd) {
            return -1;
        }
        at++;
        long count = tag >> 4 == 0x9 ? tag & 0x0f : unsigned(tag == 0xdc ? 2 : 4);
        return (int) Math.min(count, Integer.MAX_VALUE);
    }

    /**
     * Returns the next value.
     *
     * @param depth how deep containers may be nested; 0: none is allowed.
     */
    @Nullable
    Object value(int depth) throws ProtocolError {
        checkOwed();
        owed--;
        int tag = data[at++] & 0xff;
        if (tag < 0x80) {
            return (long) tag;
        } else if (tag < 0x90) {
            return map(tag & 0x0f, depth);
        } else if (tag < 0xa0) {
            return array(tag & 0x0f, depth);
        } else if (tag < 0xc0) {
            return string(tag & 0x1f);
        } else if (tag >= 0xe0) {
            return (long) (byte) tag;
        }
        switch (tag) {
            case 0xc0: return null;
            case 0xc2: return Boolean.FALSE;
            case 0xc3: return Boolean.TRUE;
            case 0xc4: case 0xc5: case 0xc6: return binary(unsigned(1 << (tag - 0xc4)));
            case 0xca: return finite(Float.intBitsToFloat((int) unsigned(4)));
            case 0xcb: return finite(Double.longBitsToDouble(unsigned(8)));
            case 0xcc: case 0xcd: case 0xce: return unsigned(1 << (tag - 0xcc));
            case 0xcf: return uint64();
            case 0xd0: return (long) (byte) unsigned(1);
            case 0xd1: return (long) (short) unsigned(2);
            case 0xd2: return (long) (int) unsigned(4);
            case 0xd3: return unsigned(8);
            case 0xd9: case 0xda: case 0xdb: return string(unsigned(1 << (tag - 0xd9)));
            case 0xdc: case 0xdd: return array(unsigned(tag == 0xdc ? 2 : 4), depth);
            case 0xde: case 0xdf: return map(unsigned(tag == 0xde ? 2 : 4), depth);
            default: throw ProtocolError.wrong(
                    tag == 0xc1 ? "a byte that MessagePack never uses" : "an extension type");
        }
    }

    private List<Object> array(long count, int depth) throws ProtocolError {
        open(count, depth);
        List<Object> values = new ArrayList<>((int) count);
        for (long left = count; left > 0; left--) {
            values.add(value(depth - 1));
        }
        return values;
    }

    private Map<String, Object> map(long count, int depth) throws ProtocolError {
        open(2 * count, depth);
        Map<String, Object> values = new LinkedHashMap<>();
        for (long left = count; left > 0; left--) {
            checkOwed();
            int tag = data[at] & 0xff;
            if ((tag < 0xa0 || tag > 0xbf) && (tag < 0xd9 || tag > 0xdb)) {
                throw ProtocolError.wrong("a map key is not a string");
            }
            String key = (String) value(0);
            values.put(key, value(depth - 1));
        }
        return values;
    }

    private void open(long values, int depth) throws ProtocolError {
        if (depth == 0) {
            throw ProtocolError.wrong("containers nest too deep");
        }
        owed += values;
        checkOwed(); // before anything is allocated
    }

    private void checkOwed() throws ProtocolError {
        if (owed > end - at) {
            throw ProtocolError.wrong("the frame ends before its values do");
        }
    }

    private String string(long size) throws ProtocolError {
        int start = take(size);
        for (int i = start; i < at; i++) {
            if (data[i] < 0) {
                return utf8(start);
            }
        }
        return new String(data, start, at - start, StandardCharsets.US_ASCII);
    }

    private String utf8(int start) throws ProtocolError {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data, start, at - start)).toString();
        } catch (CharacterCodingException error) {
            throw ProtocolError.wrong("a string is not UTF-8");
        }
    }

    private byte[] binary(long size) throws ProtocolError {
        int start = take(size);
        byte[] copy = new byte[at - start];
        System.arraycopy(data, start, copy, 0, copy.length);
        return copy;
    }

    private Number uint64() throws ProtocolError {
        long bits = unsigned(8);
        return bits >= 0 ? (Number) bits : BigInteger.valueOf(bits).add(BigInteger.ONE.shiftLeft(64));
    }

    private static Double finite(double value) throws ProtocolError {
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            throw ProtocolError.wrong("a number is NaN or infinite");
        }
        return value;
    }

    /** Returns a big-endian number of 1 to 8 bytes; of 8 bytes its bits. */
    private long unsigned(int size) throws ProtocolError {
        long value = 0;
        for (int i = take(size); i < at; i++) {
            value = value << 8 | (data[i] & 0xff);
        }
        return value;
    }

    private int take(long size) throws ProtocolError {
        if (size > end - at) {
            throw ProtocolError.wrong("the frame ends before its values do");
        }
        int start = at;
        at += (int) size;
        return start;
    }
}
