package android.content;

public class Intent {
    public Intent(String action) {}

    public Intent setPackage(String name) {
        return this;
    }

    public String getAction() {
        return null;
    }

}
