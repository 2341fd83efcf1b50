package presence.client;

import java.io.File;
import java.io.IOException;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The test vectors of the protocol, from vectors.json. */
final class Vectors {
    static final class Good {
        final String name;
        final byte[] frame;
        final int limitBytes;
        final Packet packet;

        Good(Map<String, Object> entry) {
            name = (String) entry.get("name");
            frame = bytes((String) entry.get("hex"));
            limitBytes = limit(entry);
            Map<String, Object> fields = States.map(decoded(entry.get("packet")));
            packet = new Packet((Number) fields.get("kind"), (Number) fields.get("id"), States.map(fields.get("payload")));
        }
    }

    static final class Bad {
        final String name;
        final byte[] frame;
        final int limitBytes;
        final Object code;
        final Object reason;
        final Object kind;
        final Object id;

        Bad(Map<String, Object> entry) {
            name = (String) entry.get("name");
            frame = bytes((String) entry.get("hex"));
            limitBytes = limit(entry);
            code = entry.get("code");
            reason = entry.get("reason");
            kind = decoded(entry.get("kind"));
            id = decoded(entry.get("id"));
        }
    }

    /** A row, and the state that it stands for. */
    static final class Row {
        final String name;
        final Object row;
        final String uid;
        final Map<String, Object> state;

        Row(Map<String, Object> entry) {
            name = (String) entry.get("name");
            row = decoded(entry.get("row"));
            uid = (String) entry.get("uid");
            state = States.map(decoded(entry.get("state")));
        }
    }

    static final List<Good> good = new ArrayList<>();
    static final List<Bad> bad = new ArrayList<>();
    static final List<Row> rows = new ArrayList<>();

    private Vectors() {}

    static void load(File file) throws IOException {
        Map<String, Object> all =
                States.map(Json.parse(new String(Files.readAllBytes(file.toPath()), StandardCharsets.UTF_8)));
        for (Object each : States.list(all, "good")) {
            good.add(new Good(States.map(each)));
        }
        for (Object each : States.list(all, "bad")) {
            bad.add(new Bad(States.map(each)));
        }
        for (Object each : States.list(all, "rows")) {
            rows.add(new Row(States.map(each)));
        }
    }

    private static int limit(Map<String, Object> entry) {
        Object limit = entry.get("limit");
        if (limit == null) {
            return Codec.LIMIT_BYTES;
        }
        return limit.equals("server") ? Codec.SERVER_LIMIT_BYTES : Codec.LOGIN_LIMIT_BYTES;
    }

    /** Returns a value with those that JSON lacks, which are objects with one key. */
    private static Object decoded(Object value) {
        if (value instanceof List) {
            List<Object> list = new ArrayList<>();
            for (Object each : (List<?>) value) {
                list.add(decoded(each));
            }
            return list;
        } else if (!(value instanceof Map)) {
            return value;
        }
        Map<String, Object> map = States.map(value);
        if (map.size() == 1 && map.containsKey("$bin")) {
            return bytes((String) map.get("$bin"));
        } else if (map.size() == 1 && map.containsKey("$int")) {
            BigInteger number = new BigInteger((String) map.get("$int"));
            return number.bitLength() < 64 ? (Number) number.longValue() : number;
        }
        Map<String, Object> copy = new LinkedHashMap<>();
        for (Map.Entry<String, Object> each : map.entrySet()) {
            copy.put(each.getKey(), decoded(each.getValue()));
        }
        return copy;
    }

    static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = (byte) Integer.parseInt(hex.substring(2 * at, 2 * at + 2), 16);
        }
        return bytes;
    }

    static String hex(byte[] bytes) {
        StringBuilder digits = new StringBuilder();
        for (byte each : bytes) {
            digits.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        }
        return digits.toString();
    }
}
