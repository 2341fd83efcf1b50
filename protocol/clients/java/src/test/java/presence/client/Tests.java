package presence.client;

import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/**
 * Runs all tests: each method of these classes whose name begins with {@code test}, on an object of its own. Prints a
 * line a test, and exits with 1 if one has failed. The argument is the folder of vectors.json.
 */
final class Tests {
    private static final Class<?>[] CLASSES = {
        VectorsTest.class, FuzzTest.class, StatesTest.class, MachineTest.class, InboxTest.class, OptionsTest.class,
        FutureTest.class, ClientTest.class,
    };

    private Tests() {}

    public static void main(String[] arguments) throws Exception {
        Vectors.load(new File(arguments[0], "vectors.json"));
        int passed = 0;
        int failed = 0;
        for (Class<?> each : CLASSES) {
            for (Method method : each.getDeclaredMethods()) {
                if (method.getName().startsWith("test")) {
                    boolean isGood = passes(each, method);
                    passed += isGood ? 1 : 0;
                    failed += isGood ? 0 : 1;
                }
            }
        }
        System.out.println("vectors: " + Vectors.good.size() + " good and " + Vectors.bad.size() + " bad");
        System.out.println("passed: " + passed + ", failed: " + failed);
        System.exit(failed == 0 ? 0 : 1);
    }

    private static boolean passes(Class<?> tests, Method method) throws Exception {
        String name = tests.getSimpleName() + "." + method.getName();
        try {
            method.invoke(tests.getDeclaredConstructor().newInstance());
            System.out.println("ok " + name);
            return true;
        } catch (InvocationTargetException failure) {
            System.out.println("not ok " + name);
            failure.getCause().printStackTrace(System.out);
            return false;
        }
    }
}
