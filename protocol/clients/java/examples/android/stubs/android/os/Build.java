package android.os;

public class Build {
    public static class VERSION {
        public static final int SDK_INT = Integer.parseInt("21"); // no constant that javac would copy
    }
}
