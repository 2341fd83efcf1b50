package presence.client;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of JSON as the tests read and write. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Returns null, Boolean, Long, BigInteger, Double, String, List or Map. */
    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value();
        json.skipSpace();
        Check.that(json.at == text.length(), "more follows the value");
        return value;
    }

    private Object value() {
        skipSpace();
        char first = text.charAt(at);
        switch (first) {
            case '{': return object();
            case '[': return array();
            case '"': return string();
            case 't': return literal("true", true);
            case 'f': return literal("false", false);
            case 'n': return literal("null", null);
            default: return number();
        }
    }

    private Object literal(String word, Object value) {
        Check.that(text.startsWith(word, at), "at " + at);
        at += word.length();
        return value;
    }

    private Number number() {
        int start = at;
        while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String digits = text.substring(start, at);
        if (digits.matches("-?[0-9]+")) {
            BigInteger value = new BigInteger(digits);
            return value.bitLength() < 64 ? (Number) value.longValue() : value;
        }
        return Double.parseDouble(digits);
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            if (text.charAt(at) != '\\') {
                found.append(text.charAt(at));
                continue;
            }
            char escaped = text.charAt(++at);
            if (escaped == 'u') {
                found.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                at += 4;
            } else {
                int which = "bfnrt".indexOf(escaped);
                found.append(which < 0 ? escaped : "\b\f\n\r\t".charAt(which));
            }
        }
        at++;
        return found.toString();
    }

    private List<Object> array() {
        List<Object> list = new ArrayList<>();
        at++;
        for (skipSpace(); text.charAt(at) != ']'; skipComma()) {
            list.add(value());
        }
        at++;
        return list;
    }

    private Map<String, Object> object() {
        Map<String, Object> map = new LinkedHashMap<>();
        at++;
        for (skipSpace(); text.charAt(at) != '}'; skipComma()) {
            String key = string();
            skipSpace();
            Check.that(text.charAt(at++) == ':', "at " + at);
            map.put(key, value());
        }
        at++;
        return map;
    }

    private void skipComma() {
        skipSpace();
        if (text.charAt(at) == ',') {
            at++;
            skipSpace();
        }
    }

    private void skipSpace() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    /** Returns a value on one line; bytes as hexadecimal digits. */
    static String text(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value == null || value instanceof Boolean || value instanceof Number) {
            out.append(value);
        } else if (value instanceof Map) {
            String mark = "{";
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                out.append(mark);
                write(String.valueOf(each.getKey()), out);
                out.append(':');
                write(each.getValue(), out);
                mark = ",";
            }
            out.append(mark.equals("{") ? "{}" : "}");
        } else if (value instanceof Collection) {
            String mark = "[";
            for (Object each : (Collection<?>) value) {
                out.append(mark);
                write(each, out);
                mark = ",";
            }
            out.append(mark.equals("[") ? "[]" : "]");
        } else if (value instanceof byte[]) {
            write(Vectors.hex((byte[]) value), out);
        } else {
            out.append('"');
            String string = value.toString();
            for (int at = 0; at < string.length(); at++) {
                char each = string.charAt(at);
                if (each == '"' || each == '\\') {
                    out.append('\\').append(each);
                } else if (each < ' ' || each > '~') {
                    out.append(String.format("\\u%04x", (int) each));
                } else {
                    out.append(each);
                }
            }
            out.append('"');
        }
    }
}
