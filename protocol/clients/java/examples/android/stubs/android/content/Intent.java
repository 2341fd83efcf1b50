package android.content;

public class Intent {
    public Intent(Context context, Class<?> component) {}

    public String getAction() {
        return null;
    }

    public Intent setAction(String action) {
        return this;
    }
}
