package presence.client;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import presence.client.Effect.RequestResult;

/**
 * A machine that another program drives, such as the model in tests/client/world.py: each line of the input is a call,
 * {@code [method, chance, now, arguments...]}, and each line of the output what came of it, and the state after it.
 */
final class MachineDriver {
    private ClientMachine machine;
    private ReconnectPolicy policy;
    private double chance;
    private final Map<String, Object> answer = new LinkedHashMap<>();

    private MachineDriver() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        MachineDriver driver = new MachineDriver();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(driver.answerTo((List<?>) Json.parse(line)));
            out.flush();
        }
    }

    private String answerTo(List<?> call) throws ProtocolError {
        answer.clear();
        chance = ((Number) call.get(1)).doubleValue();
        double now = ((Number) call.get(2)).doubleValue();
        try {
            List<Effect> effects = perform((String) call.get(0), now, call.subList(3, call.size()));
            List<Object> shown = new ArrayList<>();
            for (Effect each : effects) {
                shown.add(shown(each));
            }
            answer.put("effects", shown);
        } catch (PresenceError error) {
            answer.put("raised", error.getClass().getSimpleName());
        }
        answer.put("state", machine.state.toString());
        answer.put("connected", machine.isConnected());
        answer.put("wants_token", machine.wantsToken());
        answer.put("deadline", Double.isInfinite(machine.deadline()) ? null : (Object) machine.deadline());
        answer.put("has_outgoing", machine.hasOutgoing());
        answer.put("error", machine.error == null ? null : machine.error.toString());
        answer.put("logins", policy.logins);
        answer.put("joined", machine.persistentState.joined);
        Map<String, Object> watched = new LinkedHashMap<>();
        for (Map.Entry<String, UserState> each : machine.persistentState.watches.states().entrySet()) {
            watched.put(each.getKey(), each.getValue().status);
        }
        answer.put("watched", watched);
        return Json.text(answer);
    }

    @SuppressWarnings("unchecked") // uids are a list of strings, or null
    private List<Effect> perform(String method, double now, List<?> arguments) throws ProtocolError {
        Object first = arguments.isEmpty() ? null : arguments.get(0);
        Object second = arguments.size() > 1 ? arguments.get(1) : null;
        switch (method) {
            case "begin":
                Chance ours = () -> chance;
                policy = new ReconnectPolicy("server", (Boolean) first, ours);
                machine = new ClientMachine(Packet.of(Kind.LOGIN, "uid", "ann"), now, policy, (Boolean) second, 1, false, ours);
                break;
            case "established":
                machine.established(now);
                break;
            case "tick":
                return machine.tick(now);
            case "token_fetched":
                return machine.tokenFetched(first == null ? new java.io.IOException("no way there") : first, now);
            case "received":
                byte[] bytes = Vectors.bytes((String) first);
                return machine.received(bytes, 0, bytes.length, now);
            case "disconnected":
                return machine.disconnected((String) first, now);
            case "take_outgoing":
                answer.put("value", Vectors.hex(machine.takeOutgoing()));
                break;
            case "written":
                machine.written(now);
                break;
            case "request":
                byte[] frame = Vectors.bytes((String) first);
                Packet packet = Codec.decode(frame, Codec.HEADER_BYTES, frame.length);
                double timeoutS = ((Number) second).doubleValue();
                answer.put("value", machine.request(packet, timeoutS, now, (Boolean) arguments.get(2)));
                break;
            case "watch_nowait":
                machine.watchNowait((List<String>) first, now);
                break;
            case "watch_roster_nowait":
                machine.watchRosterNowait(now);
                break;
            case "unwatch":
                answer.put("value", machine.unwatch((List<String>) first, ((Number) second).doubleValue(), now));
                break;
            case "unwatch_roster":
                answer.put("value", machine.unwatchRoster(((Number) first).doubleValue(), now));
                break;
            case "abandon_request":
                return machine.abandonRequest((Long) first);
            case "log_out":
                answer.put("value", machine.logOut((String) first, now));
                break;
            case "close":
                return machine.close(null);
            default:
                throw new IllegalArgumentException(method);
        }
        return Collections.emptyList();
    }

    private static Map<String, Object> shown(Effect effect) {
        Map<String, Object> shown;
        if (effect instanceof RequestResult) {
            RequestResult result = (RequestResult) effect;
            shown = Packet.of(0, "id", result.id, "answer", result.answer).payload;
            shown.put("error", result.error == null ? null : result.error.getClass().getSimpleName());
        } else {
            shown = States.map(Plain.of(effect));
        }
        shown.put("type", effect.getClass().getSimpleName());
        return shown;
    }
}
