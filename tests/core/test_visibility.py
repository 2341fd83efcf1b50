"""Whom a client may see: by its token, by passes, and until when."""

import pytest

from presence import protocol
from presence.core import visibility as module
from presence.core.authenticator import NamePatterns, Refusal
from presence.core.registry import Session
from presence.core.visibility import MAX_PASSES, PASS_CHECKS_BURST, Visibility
from presence.protocol import Code, Kind, Packet
from tests.auth.gates import WordAuthenticator
from tests.support.desks import NotingDesk
from tests.support.worlds import World
from tests.watching.fakes import session

NOW = 1000.0


class ClockHand:
    """A clock that a test sets."""

    now = NOW

    def read(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ClockHand:
    return ClockHand()


@pytest.fixture
def visibility(clock: ClockHand) -> Visibility:
    return Visibility(WordAuthenticator(), clock.read)


@pytest.fixture
def ann() -> Session:
    return session("ann")[0]


@pytest.mark.parametrize(
    ("sight", "seen", "hidden"),
    [
        (NamePatterns(), ["ann"], ["bob", "an", "annie", ""]),
        (NamePatterns(frozenset({"bob"})), ["ann", "bob"], ["bo", "bobby", "Bob"]),
        (NamePatterns(prefixes=("team-",)), ["ann", "team-", "team-1"], ["team", "a-team-1"]),
        (NamePatterns(prefixes=("",)), ["ann", "bob"], []),
    ],
)
def test_a_user_sees_itself_and_whom_the_token_names(
    visibility: Visibility, ann: Session, sight: NamePatterns, seen: list[str], hidden: list[str]
) -> None:
    visibility.set_sight(ann, sight)
    assert visibility.hidden(ann, [*seen, *hidden]) == hidden


def test_a_pass_adds_users_until_it_expires_or_the_connection_ends(
    visibility: Visibility, clock: ClockHand, ann: Session
) -> None:
    assert visibility.take_pass(ann, "ann:60:bob", NOW) is None
    assert visibility.take_pass(ann, "ann:90:eve", NOW) is None
    assert visibility.hidden(ann, ["bob", "eve", "ted"]) == ["ted"]
    visibility.set_sight(ann, NamePatterns(frozenset({"ted"})))  # a renewed token leaves passes
    assert visibility.hidden(ann, ["bob", "eve", "ted"]) == []
    clock.now = NOW + 59.9
    assert visibility.pop_expired(10) is None
    clock.now = NOW + 60.5
    assert visibility.pop_expired(10) == [ann]
    assert visibility.hidden(ann, ["bob", "eve", "ted"]) == ["bob"]
    visibility.discard(ann)
    assert visibility.hidden(ann, ["bob", "eve", "ted"]) == ["bob", "eve", "ted"]
    assert visibility.passes == 0
    clock.now = NOW + 100
    assert visibility.pop_expired(10) is None


def test_a_bad_pass_and_one_too_many_are_refused(visibility: Visibility, ann: Session) -> None:
    refusal = visibility.take_pass(ann, "bob:60:eve", NOW)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.AUTH_FAILED
    for number in range(MAX_PASSES):
        assert visibility.take_pass(ann, f"ann:60:user-{number}", NOW) is None
    assert visibility.take_pass(ann, "ann:60:user-0", NOW) is None  # the same again is not another one
    refusal = visibility.take_pass(ann, "ann:60:eve", NOW)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.TOO_LARGE


def test_the_memory_of_all_passes_is_bounded(
    visibility: Visibility, ann: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PASS_BYTES", 1)
    bob = session("bob")[0]
    assert visibility.take_pass(ann, "ann:60:eve", NOW) is None
    refusal = visibility.take_pass(bob, "bob:60:eve", NOW)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.BUSY
    visibility.discard(ann)
    assert visibility.take_pass(bob, "bob:60:eve", NOW) is None


def test_passes_that_have_expired_give_their_memory_back(
    visibility: Visibility, clock: ClockHand, ann: Session
) -> None:
    visibility.take_pass(ann, "ann:60:bob", NOW)
    clock.now = NOW + 61
    visibility.pop_expired(10)
    assert visibility.pass_bytes == 0


def test_a_user_gets_so_many_passes_checked_whatever_the_connection(clock: ClockHand) -> None:
    authenticator = WordAuthenticator()
    visibility = Visibility(authenticator, clock.read)
    refusals = [
        visibility.take_pass(session("ann")[0], f"nonsense {number}", NOW)
        for number in range(2 * PASS_CHECKS_BURST)
    ]
    refusal = refusals[-1]
    assert refusal is not None
    assert authenticator.passes == PASS_CHECKS_BURST
    assert refusal.code is Code.RATE_LIMITED
    assert refusal.retry_after is not None
    assert visibility.take_pass(session("bob")[0], "bob:60:eve", NOW) is None
    assert visibility.take_pass(session("ann")[0], "ann:60:eve", NOW + refusal.retry_after) is None


# In the engine


@pytest.fixture
def desk() -> NotingDesk:
    return NotingDesk()


@pytest.fixture
def world(desk: NotingDesk) -> World:
    world = World(authenticator=WordAuthenticator(), restricts_sight=True)
    world.engine.request_handler = desk
    return world


def log_in(world: World, token: str) -> int:
    handle = world.sockets.connect()
    world.sockets.feed(handle, protocol.encode(protocol.login(None, token=token)))
    world.sockets.answers(handle)
    return handle


def ask(world: World, handle: int, *packets: Packet) -> list[Packet]:
    world.sockets.feed(handle, b"".join(map(protocol.encode, packets)))
    return world.sockets.answers(handle)


def test_a_message_to_a_hidden_user_is_refused_and_goes_nowhere(world: World, desk: NotingDesk) -> None:
    handle = log_in(world, "ann:60:bob")
    (answer,) = ask(world, handle, protocol.message("eve", 1, id=7), protocol.message("bob", 2, id=8))
    assert (answer.kind, answer.id, answer.payload["code"]) == (Kind.ERROR, 7, Code.NOT_ALLOWED)
    assert [request.id for request in desk.requests] == [8]


def test_in_the_same_bytes_each_request_is_judged_by_what_came_before(world: World, desk: NotingDesk) -> None:
    handle = log_in(world, "ann:60:bob")
    answers = ask(
        world,
        handle,
        protocol.message("bob", 1, id=1),
        protocol.update(token="ann:60:eve", id=2),
        protocol.message("bob", 2, id=3),
        protocol.watch([], id=4, visibility_pass="ann:60:bob"),
        protocol.message("bob", 3, id=5),
        protocol.logout(id=6),
    )
    assert [(answer.kind, answer.id) for answer in answers] == [(64, 2), (65, 3), (64, 6)]
    assert [request.id for request in desk.requests] == [1, 5]  # of the watch nobody is left to be told
    assert desk.sights == []


def test_the_handler_hears_of_another_sight_after_the_reply(world: World, desk: NotingDesk) -> None:
    handle = log_in(world, "ann:60:bob")
    session = world.session("ann")
    outcome = world.engine.received(session, protocol.encode(protocol.update(token="ann:60:eve", id=2)))
    assert (bool(outcome.reply), desk.sights) == (True, []), "what it sends might close the connection"
    world.engine.dispatch_requests(outcome)
    assert desk.sights == [session]
    assert not world.is_disconnected(handle)


def test_a_watch_with_a_bad_pass_is_refused_and_the_connection_stays(world: World, desk: NotingDesk) -> None:
    handle = log_in(world, "ann:60")
    (answer,) = ask(world, handle, protocol.watch(["ann"], id=7, visibility_pass="bob:60:eve"))
    assert (answer.id, answer.payload["code"]) == (7, Code.AUTH_FAILED)
    assert desk.requests == []
    assert [each.kind for each in ask(world, handle, protocol.keepalive(8))] == [Kind.OK]


def test_where_all_are_visible_a_pass_is_ignored() -> None:
    desk, world = NotingDesk(), World(authenticator=WordAuthenticator())
    world.engine.request_handler = desk
    handle = log_in(world, "ann:60")
    packets = protocol.message("eve", 1, id=7), protocol.watch(["eve"], id=8, visibility_pass="nonsense")
    assert ask(world, handle, *packets) == []
    assert [request.id for request in desk.requests] == [7, 8]


@pytest.mark.parametrize("restricts", [False, True])
def test_the_roster_of_the_newest_token_counts_until_the_connection_ends(
    desk: NotingDesk, *, restricts: bool
) -> None:
    world = World(authenticator=WordAuthenticator(), restricts_sight=restricts)
    world.engine.request_handler = desk
    handle = log_in(world, "ann:60::bob,eve")
    session, claimed = world.session("ann"), world.engine.claimed_rosters
    assert claimed == {session: "bob eve"}
    ask(world, handle, protocol.update(token="ann:60::ted", id=2))
    assert (claimed, desk.sights) == ({session: "ted"}, [session])
    ask(world, handle, protocol.update(token="ann:60::ted", id=3))
    assert len(desk.sights) == (2 if restricts else 1), "the roster is the same"
    ask(world, handle, protocol.update(token="ann:60", id=4))
    assert claimed == {}
    ask(world, handle, protocol.update(token="ann:60::bob", id=5))
    world.sockets.close(handle)
    assert claimed == {}
