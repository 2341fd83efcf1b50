package presence.client;

import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import presence.client.Effect.RequestResult;

/** Drives a client's machine: a clock that tests move, chosen random numbers, a scripted server. */
final class Driven {
    static final double KEEPALIVE_S = 12;
    static final double IDLE_TIMEOUT_S = 30;
    static final long SERVER_TIME_MS = 1_700_000_000_000L;

    double now = 1000;
    double chance = 1;
    final ClientMachine machine;
    final List<Packet> sent = new ArrayList<>();
    final List<Push> pushes = new ArrayList<>();
    final Map<Long, RequestResult> results = new HashMap<>();
    private Codec.Decoder decoder = new Codec.Decoder(Codec.SERVER_LIMIT_BYTES);

    Driven() {
        this(true, false);
    }

    Driven(boolean isPersistent, boolean fetches) {
        Chance ours = () -> chance;
        machine = new ClientMachine(Packet.of(Kind.LOGIN, "uid", "ann", "device", "phone"), now,
                new ReconnectPolicy("server", isPersistent, ours), fetches, 3, false, ours);
    }

    void note(List<Effect> effects) {
        for (Effect each : effects) {
            if (each instanceof RequestResult) {
                RequestResult result = (RequestResult) each;
                Check.that(results.put(result.id, result) == null, "one answer each");
            } else {
                pushes.add((Push) each);
            }
        }
        byte[] bytes = machine.takeOutgoing();
        machine.written(now);
        decoder.feed(bytes, 0, bytes.length);
        try {
            for (Packet packet = decoder.next(); packet != null; packet = decoder.next()) {
                sent.add(packet);
            }
        } catch (ProtocolError error) {
            throw new AssertionError(error);
        }
    }

    private void note() {
        note(Collections.<Effect>emptyList());
    }

    void establish() {
        decoder = new Codec.Decoder(Codec.SERVER_LIMIT_BYTES);
        machine.established(now);
        note();
    }

    void logIn() {
        establish();
        answer(1, "session", "s-1", "idle_timeout", IDLE_TIMEOUT_S, "keepalive", KEEPALIVE_S, "time_ms", SERVER_TIME_MS,
                "v", 1);
        Check.equal(State.ONLINE, machine.state);
    }

    /** Logs in again after the pause; returns what the client has then sent by itself. */
    List<Packet> returnOnline() {
        run(machine.deadline() - now);
        int before = sent.size();
        logIn();
        return sent.subList(before + 1, sent.size());
    }

    void answer(long id, Object... keysAndValues) {
        receive(Packet.of(Kind.OK, keysAndValues).withId(id));
    }

    void refuse(long id, Code code, Object... more) {
        Packet packet = Packet.of(Kind.ERROR, more).withId(id);
        packet.payload.put("code", code.number);
        packet.payload.put("reason", code.reason);
        packet.payload.put("message", "no");
        receive(packet);
    }

    void goodbye(Code code) {
        receive(Packet.of(Kind.GOODBYE, "code", code.number, "reason", code.reason, "reconnect", code.reconnect));
    }

    void receive(Packet... packets) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        for (Packet packet : packets) {
            byte[] frame = Codec.encode(packet, Codec.SERVER_LIMIT_BYTES);
            bytes.write(frame, 0, frame.length);
        }
        receive(bytes.toByteArray());
    }

    void receive(byte[] bytes) {
        note(machine.received(bytes, 0, bytes.length, now));
    }

    void lose() {
        note(machine.disconnected("broken", now));
    }

    void run(double seconds) {
        double end = now + seconds;
        while (machine.deadline() <= end) {
            now = Math.max(now, machine.deadline());
            note(machine.tick(now));
        }
        now = end;
    }

    long request(Packet packet) {
        return request(packet, false);
    }

    long request(Packet packet, boolean retries) {
        long id = machine.request(packet, 10, now, retries);
        note();
        return id;
    }

    long message(String to, int body) {
        return request(Packet.of(Kind.MESSAGE, "to", to, "body", body), true);
    }

    void networkChanged() {
        note(machine.networkChanged(now));
    }

    void wake() {
        machine.wake(now);
        note();
    }

    Packet lastSent() {
        return sent.get(sent.size() - 1);
    }

    @SuppressWarnings("unchecked")
    <T extends Push> List<T> pushes(Class<T> kind) {
        List<T> found = new ArrayList<>();
        for (Push each : pushes) {
            if (kind.isInstance(each)) {
                found.add((T) each);
            }
        }
        return found;
    }
}
