package presence.client;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import presence.client.PresenceError.ConnectionLost;
import presence.client.PresenceError.Ended;
import presence.client.PresenceError.LoginRefused;
import presence.client.PresenceError.NotConnected;
import presence.client.PresenceError.RecipientDisconnected;
import presence.client.PresenceError.RequestTimeout;
import presence.client.PresenceError.Unreachable;

/** What a client sends and when, and what an answer means; tests/client has a model that drives the same machine. */
final class MachineTest {
    private final Driven driven = new Driven();

    private static List<Long> bodies(List<Packet> packets) {
        List<Long> bodies = new ArrayList<>();
        for (Packet each : packets) {
            if (each.is(Kind.MESSAGE)) {
                bodies.add((Long) each.payload.get("body"));
            }
        }
        return bodies;
    }

    private void watch(String uid, Map<String, Object> state) {
        long id = driven.request(Requests.watch(Collections.singletonList(uid), false));
        driven.answer(id, "presence", Collections.singletonMap(uid, state));
    }

    private static Map<String, Object> online(String id) {
        return Packet.of(0, "status", "online", "id", id).payload;
    }

    void testTheFirstPacketIsTheLogin() {
        driven.logIn();
        Packet login = driven.sent.get(0);
        Check.equal(Packet.of(Kind.LOGIN, "uid", "ann", "device", "phone", "confirms", true, "batch", true).withId(1), login);
        Push.Connected connected = driven.pushes(Push.Connected.class).get(0);
        Check.equal(Arrays.asList("s-1", 30_000L, 12_000L, Driven.SERVER_TIME_MS, false), Arrays.asList(connected.session,
                connected.idleTimeoutMs, connected.keepaliveMs, connected.timeMs, connected.again));
    }

    void testAStepThatTakesTooLongIsAFailedAttempt() {
        driven.run(9.99);
        Check.equal(State.CONNECTING, driven.machine.state);
        driven.run(0.01);
        driven.run(1);
        driven.establish();
        driven.run(6);
        List<Object> reasons = new ArrayList<>();
        for (Push.Disconnected each : driven.pushes(Push.Disconnected.class)) {
            reasons.add(each.reason);
        }
        Check.equal(Arrays.asList("unreachable", "login_timeout"), reasons);
    }

    void testTheFirstAttemptDecidesUnlessItIsRepeated() {
        Driven once = new Driven(false, false);
        once.lose();
        Check.equal(State.ENDED, once.machine.state);
        Check.that(once.machine.error instanceof Unreachable, once.machine.error);
        driven.lose();
        Check.equal(State.WAITING, driven.machine.state);
    }

    void testARetryableRefusalIsRepeatedAfterTheServersTime() {
        driven.establish();
        driven.refuse(1, Code.BUSY, "retry_after", 7.0);
        Push.Disconnected lost = driven.pushes(Push.Disconnected.class).get(0);
        Check.equal(Arrays.asList("busy", 8000L, 404), Arrays.asList(lost.reason, lost.retryInMs, lost.code));
        driven.run(8);
        Check.equal(State.CONNECTING, driven.machine.state);
    }

    void testAFinalRefusalEndsTheClient() {
        driven.establish();
        driven.refuse(1, Code.BANNED);
        Check.that(driven.machine.error instanceof LoginRefused && driven.machine.error.code == 305, driven.machine.error);
        Check.that(Double.isInfinite(driven.machine.deadline()), driven.machine.deadline());
        Check.fails(LoginRefused.class, () -> driven.message("bob", 1));
    }

    void testGoodbyes() {
        driven.logIn();
        driven.goodbye(Code.SERVER_RESTART);
        Check.equal(State.WAITING, driven.machine.state);
        driven.returnOnline();
        driven.goodbye(Code.REPLACED);
        Check.that(driven.machine.error instanceof PresenceError.Replaced, driven.machine.error);
    }

    void testKeepalivesAreSentInTimeAndADeadServerIsNoticed() {
        driven.logIn();
        driven.run(Driven.KEEPALIVE_S);
        Check.that(driven.lastSent().is(Kind.KEEPALIVE), driven.lastSent());
        driven.run(6 * Driven.KEEPALIVE_S);
        Check.equal("dead_server", driven.pushes(Push.Disconnected.class).get(0).reason);
    }

    void testRequestsFailByTimeAndWithTheConnection() {
        driven.logIn();
        long late = driven.request(Packet.of(Kind.QUERY, "uids", Collections.singletonList("bob")));
        driven.run(10);
        Check.that(driven.results.get(late).error instanceof RequestTimeout, driven.results.get(late).error);
        long lost = driven.request(Packet.of(Kind.QUERY, "uids", Collections.singletonList("bob")));
        driven.lose();
        Check.that(driven.results.get(lost).error instanceof ConnectionLost, driven.results.get(lost).error);
        Check.fails(NotConnected.class, () -> driven.message("bob", 1));
    }

    void testMessagesToOneUserKeepTheirOrder() {
        driven.logIn();
        long first = driven.message("bob", 1);
        driven.message("bob", 2);
        driven.message("eve", 3);
        Check.equal(Arrays.asList(1L, 3L), bodies(driven.sent));
        driven.answer(first, "delivered", 1);
        Check.equal(Arrays.asList(1L, 3L, 2L), bodies(driven.sent));
    }

    void testAMessageIsRepeatedWhileItsRecipientMayReturn() {
        driven.logIn();
        long id = driven.message("bob", 1);
        for (int tries = 1; tries < 20 && !driven.results.containsKey(id); tries++) {
            Check.equal(Collections.nCopies(tries, 1L), bodies(driven.sent));
            driven.refuse(driven.lastSent().id(), Code.RECIPIENT_DISCONNECTED, "retry_after", 4.0);
            driven.run(1);
        }
        PresenceError error = driven.results.get(id).error;
        Check.that(error instanceof RecipientDisconnected && Long.valueOf(4000).equals(error.retryAfterMs), error);
    }

    void testAMessageThatALaterOneHasOvertakenFailsAndIsNotSentAgain() {
        driven.logIn();
        driven.answer(driven.message("bob", 1), "delivered", 1L);
        long second = driven.message("bob", 2);
        long third = driven.message("bob", 3);
        driven.refuse(second, Code.RECIPIENT_DISCONNECTED);
        Check.that(!driven.results.containsKey(second), "the answer to the third is open");
        driven.answer(third, "delivered", 1L);
        Check.that(driven.results.get(second).error instanceof RecipientDisconnected, driven.results.get(second).error);
        driven.run(5);
        Check.equal(Arrays.asList(1L, 2L, 3L), bodies(driven.sent));
    }

    void testWhatALoginLeftOutDoesNotOvertakeAnUpdate() {
        driven.logIn();
        String[] names = {"token", "meta", "private"};
        Object[] values = {repeated(760), Collections.singletonMap("m", repeated(200)),
                Collections.singletonMap("p", repeated(200))};
        for (int i = 0; i < names.length; i++) {
            driven.answer(driven.request(Packet.of(Kind.UPDATE, names[i], values[i])));
        }
        driven.lose();
        List<Packet> rest = new ArrayList<>(driven.returnOnline());
        Check.equal(1, rest.size());
        Check.that(rest.get(0).payload.containsKey("private"), rest);
        driven.refuse(rest.get(0).id(), Code.BUSY, "retry_after", 1.0);
        Map<String, Object> wanted = Collections.<String, Object>singletonMap("p", "new");
        driven.request(Packet.of(Kind.UPDATE, "private", wanted));
        driven.run(5);
        Check.that(driven.lastSent().is(Kind.UPDATE), driven.lastSent());
        Check.equal(wanted, driven.lastSent().payload.get("private"));
    }

    private static String repeated(int times) {
        return new String(new char[times]).replace('\0', 't');
    }

    void testWatchesAreRestoredAndDifferencesReported() {
        driven.logIn();
        watch("bob", online("1-0"));
        driven.lose();
        List<Packet> own = driven.returnOnline();
        Check.equal(1, own.size());
        Check.equal(Collections.singletonList("bob"), own.get(0).payload.get("uids"));
        driven.answer(own.get(0).id(), "states", Collections.singletonList("bob"));
        Push.PresenceChanged change = driven.pushes(Push.PresenceChanged.class).get(0);
        Check.equal(Arrays.asList("bob", "offline", "meanwhile"), Arrays.asList(change.uid, change.state.status, change.reason));
    }

    void testAStateThatIsNotNewerIsIgnored() {
        driven.logIn();
        watch("bob", online("5-0"));
        Map<String, Object> older = online("4-0");
        older.put("uid", "bob");
        older.put("reason", "login");
        driven.receive(new Packet((long) Kind.PRESENCE, null, older));
        Check.equal(0, driven.pushes(Push.PresenceChanged.class).size());
    }

    void testRoomsAreRestoredAndDifferencesReported() {
        driven.logIn();
        long id = driven.request(Requests.watchRooms(Collections.singletonList("lobby")));
        driven.answer(id, "rooms", Collections.singletonList(Arrays.asList("lobby", 1, Collections.singletonList("bob"))));
        driven.lose();
        Packet own = driven.returnOnline().get(0);
        Check.equal(Collections.singletonList("lobby"), own.payload.get("rooms"));
        driven.answer(own.id(), "rooms", Collections.singletonList(Arrays.asList("lobby", 1, Collections.singletonList("eve"))));
        Push.RoomChanged change = driven.pushes(Push.RoomChanged.class).get(0);
        Check.equal("[eve] [bob]", change.joined + " " + change.left);
    }

    void testAnotherNetworkReconnectsImmediately() {
        driven.logIn();
        driven.chance = 0;
        driven.networkChanged();
        Check.equal("closed", driven.pushes(Push.Disconnected.class).get(0).reason);
        driven.run(0);
        Check.equal(State.CONNECTING, driven.machine.state);
        driven.logIn();
    }

    void testAnotherNetworkEndsAWaitButNotThatOfTheServer() {
        driven.logIn();
        for (int losses = 0; losses < 6; losses++) {
            driven.lose();
            driven.run(driven.machine.deadline() - driven.now);
        }
        driven.lose();
        Check.that(driven.machine.deadline() - driven.now > 10, driven.machine.deadline());
        driven.networkChanged();
        Check.that(driven.machine.deadline() - driven.now <= 0.25, driven.machine.deadline());
        driven.run(1);
        driven.establish();
        driven.refuse(1, Code.BUSY, "retry_after", 20.0);
        driven.networkChanged();
        Check.that(driven.machine.deadline() - driven.now >= 20, "the server has named a time");
    }

    void testAnotherNetworkBeginsAnAttemptAnew() {
        driven.establish();
        driven.networkChanged();
        Check.equal(State.CONNECTING, driven.machine.state);
        Check.equal(0, driven.pushes.size());
        driven.logIn();
    }

    void testAfterSleepTheServerHasToGiveASignOfLife() {
        driven.logIn();
        driven.wake();
        driven.run(0);
        Check.that(driven.lastSent().is(Kind.KEEPALIVE) && driven.lastSent().id != null, driven.lastSent());
        driven.run(6);
        Check.equal("dead_server", driven.pushes(Push.Disconnected.class).get(0).reason);
    }

    void testALogoutEndsWithItsAnswer() {
        driven.logIn();
        long id = driven.machine.logOut("background", driven.now);
        driven.note(Collections.<Effect>emptyList());
        Check.equal("background", driven.lastSent().payload.get("reason"));
        driven.answer(id);
        Check.equal(State.ENDED, driven.machine.state);
        Check.that(driven.machine.error == null && driven.results.get(id).error == null, driven.machine.error);
    }

    void testATokenIsFetchedBeforeALoginAndARefusedOneIsNotSentAgain() {
        Driven fetching = new Driven(true, true);
        Check.that(fetching.machine.wantsToken() && fetching.machine.state == State.FETCHING_TOKEN, fetching.machine.state);
        fetching.note(fetching.machine.tokenFetched("first", fetching.now));
        fetching.establish();
        Check.equal("first", fetching.lastSent().payload.get("token"));
        fetching.refuse(1, Code.AUTH_FAILED);
        fetching.run(fetching.machine.deadline() - fetching.now);
        fetching.note(fetching.machine.tokenFetched("first", fetching.now));
        Check.equal("no_token", fetching.pushes(Push.Disconnected.class).get(1).reason);
        fetching.run(fetching.machine.deadline() - fetching.now);
        fetching.note(fetching.machine.tokenFetched("second", fetching.now));
        fetching.establish();
        fetching.refuse(1, Code.AUTH_FAILED);
        Check.that(fetching.machine.error instanceof LoginRefused, fetching.machine.error);
    }

    void testInvalidBytesCostTheConnectionOnly() {
        driven.logIn();
        driven.receive(new byte[] {0, 0, 0, 1, (byte) 0xc1});
        Check.equal("bad_server", driven.pushes(Push.Disconnected.class).get(0).reason);
        driven.returnOnline();
    }

    void testCloseEndsWithoutAWord() {
        driven.logIn();
        int before = driven.sent.size();
        driven.note(driven.machine.close(null));
        Check.equal(before, driven.sent.size());
        Check.fails(Ended.class, () -> driven.message("bob", 1));
    }
}
