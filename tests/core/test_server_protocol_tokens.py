"""Tokens: the user of a login, renewals, and expiry."""

from typing import Any

import pytest

from presence import protocol
from presence.core.changes import Op
from presence.core.expiry import MAX_EXPIRED_PER_TURN
from presence.core.slots import SLOTS_PER_TICK
from presence.protocol import Code, Kind, Packet
from tests.auth.gates import WordAuthenticator
from tests.support.state_table import brief
from tests.support.worlds import GRACE, LOGIN, TICK, T, World, ended

SLOT_S = TICK / SLOTS_PER_TICK
GRANTED = (Kind.OK, 7, None)


@pytest.fixture
def authenticator() -> WordAuthenticator:
    return WordAuthenticator()


@pytest.fixture
def world(authenticator: WordAuthenticator) -> World:
    return World(authenticator=authenticator)


def login(world: World, token: str | None = "ada:60", uid: str | None = None, **parts: Any) -> int:
    """Connect and log in by a token; return the connection."""
    handle = world.sockets.connect()
    world.sockets.feed(handle, protocol.encode(protocol.login(uid, token=token, **parts)))
    return handle


def update(world: World, handle: int, **parts: Any) -> Packet:
    world.sockets.answers(handle)
    world.sockets.feed(handle, protocol.encode(protocol.update(id=7, **parts)))
    (answer,) = world.sockets.answers(handle)
    return answer


# Logins


@pytest.mark.parametrize("uid", ["ada", None])
def test_the_user_is_the_one_of_the_token(
    world: World, authenticator: WordAuthenticator, uid: str | None
) -> None:
    assert world.received(login(world, uid=uid))[0][0] == Kind.OK
    assert world.history() == [LOGIN]
    assert authenticator.addresses == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("token", "uid"), [("bob:60", "ada"), ("nonsense", "ada"), ("nonsense", None), (None, "ada")]
)
def test_all_invalid_tokens_are_refused_with_the_same_bytes(
    world: World, token: str | None, uid: str | None
) -> None:
    handle = login(world, token, uid, id=3)
    assert bytes(world.sockets.sent[handle]) == protocol.encode(protocol.error(3, Code.AUTH_FAILED, "no"))
    assert world.is_disconnected(handle)
    assert world.history() == []
    assert world.engine.statistics().refused == {"auth_failed": 1}


def test_a_busy_authenticator_refuses_with_a_retry_time(
    world: World, authenticator: WordAuthenticator
) -> None:
    handle = login(world)
    authenticator.busy = True
    strangers = login(world, "bob:60")
    (answer,) = world.sockets.answers(strangers)
    assert brief(answer) == (Kind.ERROR, None, Code.BUSY)
    assert answer.payload["retry_after"] == 2.5
    assert world.is_disconnected(strangers)
    answer = update(world, handle, token="ada:100")
    assert brief(answer) == (Kind.ERROR, 7, Code.BUSY)
    assert answer.payload["retry_after"] == 2.5
    assert not world.is_disconnected(handle)


def test_a_login_refused_by_admission_costs_no_token_check(
    world: World, authenticator: WordAuthenticator
) -> None:
    world.engine.refuse_logins(lambda: 1.0)
    login(world)
    world.engine.login_policy.return_after = None
    world.sockets.lain_s = 6.0
    login(world)
    assert authenticator.addresses == []


def test_without_an_authenticator_tokens_are_ignored_and_renewals_not_supported() -> None:
    world = World()
    handle = login(world, "nonsense", "ada")
    world.keep_alive(handle, 3 * T)
    assert world.history() == [LOGIN]
    assert world.engine.statistics().expiring == 0
    assert brief(update(world, handle, token="ada:100")) == (Kind.ERROR, 7, Code.UNSUPPORTED)
    assert not world.is_disconnected(handle)


# Expiry


@pytest.mark.parametrize("seconds", [1, 7, 60, 4000, 10_000])
def test_an_expired_token_closes_its_connection_with_a_grace(world: World, seconds: int) -> None:
    handle = login(world, f"ada:{seconds}")
    world.sockets.answers(handle)
    world.keep_alive(handle, seconds - SLOT_S)
    assert not world.is_disconnected(handle)
    world.keep_alive(handle, 3 * SLOT_S)
    assert world.is_disconnected(handle)
    (goodbye,) = world.sockets.answers(handle)
    assert brief(goodbye) == (Kind.GOODBYE, None, Code.AUTH_EXPIRED)
    assert goodbye.payload["reconnect"]
    assert world.history() == [LOGIN], "it has the grace of a lost connection"
    assert world.engine.statistics().tokens_expired == 1
    world.pass_time(GRACE + SLOT_S)
    assert world.history() == [LOGIN, ended(Code.AUTH_EXPIRED)]


def test_without_a_grace_the_session_ends_with_its_token(authenticator: WordAuthenticator) -> None:
    world = World(authenticator=authenticator, grace=0.0)
    login(world, "ada:1")
    world.pass_time(1 + SLOT_S)
    assert world.history() == [LOGIN, ended(Code.AUTH_EXPIRED)]


def test_a_stall_does_not_extend_a_token(world: World) -> None:
    handle = login(world, "ada:20")
    world.now += 25.0
    assert world.begin_slot() > 0, "idle deadlines are extended"
    world.run_slot()
    assert world.is_disconnected(handle)
    assert world.history() == [LOGIN]


def test_a_lost_connection_keeps_its_own_grace(world: World) -> None:
    world.sockets.close(login(world, "ada:3"))
    world.pass_time(GRACE - SLOT_S)
    assert world.history() == [LOGIN]
    world.pass_time(2 * SLOT_S)
    assert world.history() == [LOGIN, ended(Code.CLOSED)]
    assert world.engine.statistics().tokens_expired == 0


def test_many_tokens_that_expire_together_are_handled_in_batches(world: World) -> None:
    handles = [login(world, f"user-{number}:5") for number in range(2 * MAX_EXPIRED_PER_TURN + 10)]
    world.now += 5 + SLOT_S
    world.begin_slot()
    gone = []
    while (due := world.engine.expiry.collect(world.slot)) is not None:
        world.engine.expiry.poll(due)
        world.engine.expiry.handle(due)
        gone.append(sum(map(world.is_disconnected, handles)))
    assert gone == [MAX_EXPIRED_PER_TURN, 2 * MAX_EXPIRED_PER_TURN, len(handles)]


# Renewal


def test_a_new_token_extends_the_session(world: World) -> None:
    handle = login(world, "ada:20")
    world.keep_alive(handle, 10)
    assert brief(update(world, handle, token="ada:20", status="away")) == GRANTED
    assert [each.op for each in world.changes] == [Op.LOGIN, Op.UPDATE]
    world.keep_alive(handle, 15)
    assert not world.is_disconnected(handle)
    world.keep_alive(handle, 6)
    assert world.is_disconnected(handle)


@pytest.mark.parametrize(
    ("packet", "helps"), [(protocol.update(token="ada:100"), True), (protocol.keepalive(), False)]
)
def test_an_unread_new_token_is_read_when_the_old_one_expires(
    world: World, packet: Packet, helps: bool
) -> None:
    handle = login(world, "ada:5")
    world.sockets.arrive(handle, protocol.encode(packet))
    world.pass_time(20)
    assert world.is_disconnected(handle) is not helps


@pytest.mark.parametrize("token", ["nonsense", "bob:100"])
def test_an_invalid_new_token_changes_nothing(world: World, token: str) -> None:
    handle = login(world, "ada:20")
    answer = update(world, handle, token=token, status="away", meta={"a": 1})
    assert brief(answer) == (Kind.ERROR, 7, Code.AUTH_FAILED)
    assert world.history() == [LOGIN]
    world.keep_alive(handle, 19)
    assert not world.is_disconnected(handle)
    world.keep_alive(handle, 2)
    assert world.is_disconnected(handle)


def test_new_tokens_are_limited_like_other_updates(world: World) -> None:
    handle = login(world)
    codes = [brief(update(world, handle, token="ada:100"))[2] for _ in range(20)]
    assert codes[:10] == [None] * 10
    assert set(codes[10:]) == {Code.RATE_LIMITED}


def test_a_new_token_does_not_end_auto_away(authenticator: WordAuthenticator) -> None:
    world = World(authenticator=authenticator, away_after=40.0)
    handle = login(world, "ada:1000")
    for _ in range(5):
        world.keep_alive(handle, 10)
        update(world, handle, token="ada:1000")
    assert world.engine.statistics().away == 1
    update(world, handle, token="ada:1000", meta={"a": 1})
    assert world.engine.statistics().away == 0
