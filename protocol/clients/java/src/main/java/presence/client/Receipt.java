package presence.client;

import java.util.Map;

/** What became of a message whose recipients were asked to confirm it. */
public final class Receipt {
    /** Sessions to whose connections it was handed, at least 1. */
    public final long delivered;
    /** Of these, those that certainly have it. */
    public final long confirmed;
    /** Of the confirmed, those whose app has received it; of the others the kernel has, or a proxy's. */
    public final long byApp;
    /** The rest of the delivered; all, if the server is older. */
    public final long unconfirmed;

    Receipt(Map<String, Object> answer) {
        delivered = number(answer, "delivered");
        confirmed = number(answer, "confirmed");
        byApp = number(answer, "by_app");
        unconfirmed = Math.max(0, delivered - confirmed);
    }

    static long number(Map<String, Object> answer, String key) {
        Object value = answer.get(key);
        return value == null ? 0 : ((Number) value).longValue();
    }
}
