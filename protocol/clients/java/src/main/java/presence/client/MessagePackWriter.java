package presence.client;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.Map;
import org.jetbrains.annotations.Nullable;
import presence.client.PresenceError.EncodeError;

/** Writes MessagePack in its shortest encodings, floats as float64. */
final class MessagePackWriter {
    private static final int MAX_DEPTH = 64; // a container that holds itself ends here; the protocol allows fewer

    private byte[] data = new byte[64];
    private int size;

    int size() {
        return size;
    }

    byte[] toBytes() {
        return Arrays.copyOf(data, size);
    }

    /** Writes a number of bytes, most significant first. */
    MessagePackWriter fixed(long value, int bytes) {
        reserve(bytes);
        for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
            data[size++] = (byte) (value >> shift);
        }
        return this;
    }

    /** Sets the four bytes at the beginning. */
    void setHeader(int value) {
        ByteBuffer.wrap(data).putInt(0, value);
    }

    MessagePackWriter array(int count) {
        return header(count, 0x90, 16, 0, 0xdc, 0xdd);
    }

    /** @throws EncodeError MessagePack, or the protocol, has no such value. */
    MessagePackWriter value(@Nullable Object value) {
        write(value, MAX_DEPTH);
        return this;
    }

    private void write(@Nullable Object value, int depth) {
        if (depth == 0) {
            throw new EncodeError("containers nest too deep");
        } else if (value == null) {
            fixed(0xc0, 1);
        } else if (value instanceof String) {
            string((String) value);
        } else if (value instanceof Boolean) {
            fixed((Boolean) value ? 0xc3 : 0xc2, 1);
        } else if (value instanceof Double || value instanceof Float) {
            fixed(0xcb, 1).fixed(Double.doubleToLongBits(((Number) value).doubleValue()), 8);
        } else if (value instanceof BigInteger) {
            big((BigInteger) value);
        } else if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte) {
            integer(((Number) value).longValue());
        } else if (value instanceof byte[]) {
            byte[] bytes = (byte[]) value;
            header(bytes.length, 0, 0, 0xc4, 0xc5, 0xc6).bytes(bytes, bytes.length);
        } else if (value instanceof Map) {
            Map<?, ?> map = (Map<?, ?>) value;
            header(map.size(), 0x80, 16, 0, 0xde, 0xdf);
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                if (!(entry.getKey() instanceof String)) {
                    throw new EncodeError("a map key is not a string");
                }
                string((String) entry.getKey());
                write(entry.getValue(), depth - 1);
            }
        } else if (value instanceof Collection) {
            Collection<?> values = (Collection<?>) value;
            array(values.size());
            for (Object each : values) {
                write(each, depth - 1);
            }
        } else {
            throw new EncodeError("a " + value.getClass().getName() + " cannot be packed");
        }
    }

    private void string(String value) {
        int length = value.length();
        for (int at = 0; at < length; at++) {
            if (value.charAt(at) >= 0x80) {
                encoded(value);
                return;
            }
        }
        header(length, 0xa0, 32, 0xd9, 0xda, 0xdb);
        reserve(length);
        for (int at = 0; at < length; at++) {
            data[size++] = (byte) value.charAt(at);
        }
    }

    private void encoded(String value) {
        try {
            ByteBuffer utf8 = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(value));
            header(utf8.remaining(), 0xa0, 32, 0xd9, 0xda, 0xdb).bytes(utf8.array(), utf8.remaining());
        } catch (CharacterCodingException error) {
            throw new EncodeError("a string has half of a surrogate pair");
        }
    }

    private void big(BigInteger value) {
        if (value.bitLength() < 64) {
            integer(value.longValue());
        } else if (value.signum() > 0 && value.bitLength() == 64) {
            fixed(0xcf, 1).fixed(value.longValue(), 8);
        } else {
            throw new EncodeError("an integer has more than 64 bits");
        }
    }

    private void integer(long value) {
        if (value >= -32 && value < 0x80) {
            fixed(value, 1);
        } else if (value >= 0) {
            int power = value < 0x100 ? 0 : value < 0x10000 ? 1 : value < 0x100000000L ? 2 : 3;
            fixed(0xcc + power, 1).fixed(value, 1 << power);
        } else {
            int power = value >= -0x80 ? 0 : value >= -0x8000 ? 1 : value >= -0x80000000L ? 2 : 3;
            fixed(0xd0 + power, 1).fixed(value, 1 << power);
        }
    }

    /** Writes a length: in the tag if it is below {@code small}, else after {@code tag8} (0: none) and so on. */
    private MessagePackWriter header(int length, int tag, int small, int tag8, int tag16, int tag32) {
        if (length < small) {
            return fixed(tag | length, 1);
        } else if (tag8 != 0 && length < 0x100) {
            return fixed(tag8, 1).fixed(length, 1);
        } else if (length < 0x10000) {
            return fixed(tag16, 1).fixed(length, 2);
        }
        return fixed(tag32, 1).fixed(length, 4);
    }

    private void bytes(byte[] source, int length) {
        reserve(length);
        System.arraycopy(source, 0, data, size, length);
        size += length;
    }

    private void reserve(int bytes) {
        if (size + bytes > data.length) {
            data = Arrays.copyOf(data, Math.max(2 * data.length, size + bytes));
        }
    }
}
