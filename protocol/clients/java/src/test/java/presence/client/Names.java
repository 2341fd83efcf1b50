package presence.client;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

/** Prints the names of this client as JSON, for the test that compares those of all clients. */
final class Names {
    private static final int FIRST_CODE = 100; // of an error or a goodbye

    private Names() {}

    public static void main(String[] arguments) {
        Map<String, Object> names = new LinkedHashMap<>();
        names.put("parents", parents());
        names.put("codes", codes());
        Map<String, Object> pushes = new LinkedHashMap<>();
        for (Class<?> each : Push.class.getDeclaredClasses()) {
            pushes.put(each.getSimpleName(), fields(each));
        }
        names.put("pushes", pushes);
        Map<String, Object> results = new LinkedHashMap<>();
        for (Class<?> each : new Class<?>[] {Receipt.class, RoomState.class, UserState.class, DeviceState.class}) {
            results.put(each.getSimpleName(), fields(each));
        }
        names.put("results", results);
        names.put("options", methods(ClientOptions.Builder.class));
        names.put("methods", methods(Client.class));
        System.out.println(Json.text(names));
    }

    private static Map<String, Object> parents() {
        Map<String, Object> parents = new LinkedHashMap<>();
        parents.put("PresenceError", null);
        for (Class<?> each : PresenceError.class.getDeclaredClasses()) {
            if (Modifier.isPublic(each.getModifiers())) {
                parents.put(each.getSimpleName(), each.getSuperclass().getSimpleName());
            }
        }
        return parents;
    }

    /** Returns the errors by their codes, except those that only a code without an error of its own leads to. */
    private static Map<String, Object> codes() {
        Map<String, Object> codes = new LinkedHashMap<>();
        for (Code code : Code.values()) {
            if (code.number >= FIRST_CODE) {
                Refusal refusal = new Refusal(code, "no");
                boolean isOfConnection = code.number >= 300 && code.number < 310;
                PresenceError error = isOfConnection ? refusal.ofConnection() : refusal.ofRequest();
                Class<?> general = isOfConnection ? PresenceError.Ended.class : PresenceError.RequestFailed.class;
                if (error.getClass() != general) {
                    codes.put(String.valueOf(code.number), error.getClass().getSimpleName());
                }
            }
        }
        return codes;
    }

    private static List<String> fields(Class<?> each) {
        List<String> names = new ArrayList<>();
        for (Field field : Plain.fields(each)) {
            names.add(field.getName());
        }
        return names;
    }

    private static TreeSet<String> methods(Class<?> each) {
        TreeSet<String> names = new TreeSet<>();
        for (Method method : each.getDeclaredMethods()) {
            if (Modifier.isPublic(method.getModifiers()) && !method.isSynthetic()) {
                names.add(method.getName());
            }
        }
        return names;
    }
}
