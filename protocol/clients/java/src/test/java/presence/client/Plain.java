package presence.client;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What a program sees of a value, as {@link Json} writes it. */
final class Plain {
    private Plain() {}

    /** Returns the public fields of an object of the client as a map, and of an exception its name and message. */
    static Object of(Object value) {
        if (value instanceof Throwable) {
            Map<String, Object> map = new LinkedHashMap<>();
            map.put("error", value.getClass().getSimpleName());
            map.put("message", ((Throwable) value).getMessage());
            return map;
        } else if (value instanceof Map) {
            Map<String, Object> map = new LinkedHashMap<>();
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                map.put((String) each.getKey(), of(each.getValue()));
            }
            return map;
        } else if (value instanceof Collection) {
            List<Object> list = new ArrayList<>();
            for (Object each : (Collection<?>) value) {
                list.add(of(each));
            }
            return list;
        } else if (value == null || value instanceof Enum || !Client.class.getPackage().equals(value.getClass().getPackage())) {
            return value;
        }
        Map<String, Object> map = new LinkedHashMap<>();
        for (Field field : fields(value.getClass())) {
            try {
                map.put(field.getName(), of(field.get(value)));
            } catch (IllegalAccessException error) {
                throw new AssertionError(error);
            }
        }
        return map;
    }

    /** Returns the public fields of a class of the client, without those of its parents. */
    static List<Field> fields(Class<?> each) {
        List<Field> fields = new ArrayList<>();
        for (Field field : each.getDeclaredFields()) {
            if (Modifier.isPublic(field.getModifiers()) && !Modifier.isStatic(field.getModifiers())) {
                fields.add(field);
            }
        }
        return fields;
    }
}
