"""The engine's guarantees one by one: deadlines, the poll before expiry, resync, stalls, a mass expiry."""

from collections.abc import Callable

import pytest
import trio

from presence import protocol
from presence.common.clock import Clock
from presence.core.changes import Op
from presence.core.expiry import MAX_EXPIRED_PER_TURN
from presence.core.sessions import MAX_REPORTED_SLOTS
from presence.protocol import Code, Kind
from presence.server.ticker import Ticker
from tests.auth.gates import WordAuthenticator
from tests.support.state_table import brief
from tests.support.worlds import GRACE, LOGIN, MAX_IDLE_TIMEOUT, START, TICK, T, World, ended

SLOT = TICK / 2


@pytest.fixture
def world() -> World:
    return World()


def test_a_lost_connection_leaves_no_bytes_behind(world: World) -> None:
    """Otherwise a client that reconnects would use memory that no limit of connections counts."""
    for end in (
        world.sockets.close,
        lambda _: world.engine.terminator.disconnect_all([world.session()], lambda: b""),
    ):
        handle = world.login()
        world.sockets.feed(handle, b"\0\0\x40\0" + bytes(16_000))
        assert world.session().unhandled
        end(handle)
        assert not world.session().unhandled


def test_a_keepalive_counts_for_the_session_that_sent_it_and_no_other(world: World) -> None:
    """Keepalives are counted after the whole batch was read, when their sender may have gone."""
    old, lost, ended_ = world.login(), world.login("bob"), world.login("eve")
    senders = [world.session(uid) for uid in ("ada", "bob", "eve")]
    world.pass_time(10)
    world.login(idle_timeout=MAX_IDLE_TIMEOUT)
    world.sockets.close(lost)
    world.sockets.feed(ended_, protocol.encode(protocol.logout()))
    assert world.is_disconnected(old)
    world.engine.keepalives_received(senders)
    assert world.engine.sessions.slot_sizes(2 * int(MAX_IDLE_TIMEOUT))[0] == 0
    world.pass_time(GRACE + SLOT)
    assert world.history()[-1] == ended(Code.CLOSED, "bob"), (
        "its grace is no longer than without the keepalive"
    )
    assert world.session().last_seen == START + 10
    world.pass_time(MAX_IDLE_TIMEOUT - GRACE - TICK)
    assert world.registry.has_user("ada"), "silent for less than its idle time-out"
    assert sum(world.engine.sessions.slot_sizes(2 * int(MAX_IDLE_TIMEOUT))) == 1, (
        "no deadline without a session"
    )


def test_an_end_has_the_time_of_the_last_packet_and_keepalives_are_counted(world: World) -> None:
    default, longer = world.login(), world.login("bob", idle_timeout=60)
    world.pass_time(7.25)
    world.beat(default, longer)
    world.pass_time(T + TICK)
    assert world.history()[2:] == [ended(Code.IDLE_TIMEOUT)]
    assert world.changes[-1].last_seen_ms == 1_700_000_007_250
    assert world.engine.statistics().keepalives == 2


def test_only_the_delay_of_idle_time_outs_is_measured(world: World) -> None:
    world.sockets.close(world.login("bob"))
    world.send(world.login("eve"), protocol.logout())
    world.now += 0.25
    world.login()
    world.now = START
    world.pass_time(T + TICK)
    assert len(world.registry) == 0
    assert world.delays.report()["counts"] == [0, 1, 0, 0]
    assert world.delays.report()["sum"] == pytest.approx(0.25)


def test_upcoming_expirations_are_by_slot_bounded_and_include_overdue_ones(
    world: World,
) -> None:
    world.login()
    world.pass_time(10.0)
    world.login("bob", idle_timeout=MAX_IDLE_TIMEOUT)
    world.login("eve")
    upcoming = world.engine.sessions.upcoming_expirations(world.now)
    due = {n: size for n, size in enumerate(upcoming["sizes"]) if size}
    assert due == {round((T - 10.0) / SLOT) - 1: 1, round(T / SLOT) - 1: 1}
    assert upcoming["later"] == 1
    assert 0 <= upcoming["next_s"] <= upcoming["slot_s"] == SLOT
    long = World(idle_timeout=10_000.0)
    long.login("bob")
    long.login(idle_timeout=MAX_IDLE_TIMEOUT)
    long.now += 3.0
    upcoming = long.engine.sessions.upcoming_expirations(long.now)
    assert (upcoming["next_s"], len(upcoming["sizes"])) == (0.0, MAX_REPORTED_SLOTS)
    assert (sum(upcoming["sizes"]), upcoming["later"]) == (1, 1)


# The poll before expiry


def until_due(world: World) -> None:
    """Let time pass until sessions from the start are due in the next slot."""
    world.pass_time(T - SLOT)
    world.now += SLOT


def test_an_unread_packet_rescues_its_session(world: World) -> None:
    world.sockets.arrive(world.login(), protocol.KEEPALIVE)
    until_due(world)
    world.pass_time(TICK)
    assert world.history() == [LOGIN]
    assert world.engine.statistics().saved_by_poll == 1


@pytest.mark.parametrize(
    ("action", "changes"),
    [
        (lambda world: world.sockets.feed(0, protocol.KEEPALIVE), [LOGIN]),
        (lambda world: world.login(), [LOGIN, LOGIN]),
        (lambda world: world.send(0, protocol.logout()), [LOGIN, ended(Code.LOGOUT)]),
        (lambda world: world.sockets.close(0), [LOGIN, ended(Code.CLOSED)]),
        (
            lambda world: world.engine.terminator.supersede("ada", world.changes[0].session),
            [LOGIN, ended(Code.REPLACED)],
        ),
    ],
    ids=["keepalive", "login", "logout", "close, with no grace beyond the deadline", "displacement"],
)
def test_a_packet_read_during_expiry_rescues_its_session(
    world: World, action: Callable[[World], object], changes: list[object]
) -> None:
    world.login()
    until_due(world)
    world.sockets.needs_a_turn = True

    def run_reader() -> None:
        assert world.needs_reader_turn
        action(world)

    world.run_slot(between=run_reader)
    assert world.history() == changes


def test_a_step_of_the_wall_clock_changes_no_time() -> None:
    walls = iter([1e9])  # it is read once
    clock = Clock(lambda: 5.0, lambda: next(walls))
    assert clock.seen_ms(6.0009) == clock.decided_ms(6.0) == 1_000_000_001_000


# Mass expiry


async def test_a_mass_expiry_lets_other_tasks_run() -> None:
    users, turns = 20 * MAX_EXPIRED_PER_TURN, 0
    world = World()
    for number in range(users):
        world.login(f"user-{number}")
    world.now += T + TICK
    engine = world.engine
    ticker = Ticker(engine.expiry, engine.slot_done, world.slot_clock, world.guard, world.clock, credit=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticker.run)
        before = users
        while len(world.registry):
            await trio.lowlevel.checkpoint()
            assert before - len(world.registry) <= 2 * MAX_EXPIRED_PER_TURN, "they expire in random order"
            before, turns = len(world.registry), turns + 1
        nursery.cancel_scope.cancel()
    assert [each.op for each in world.changes[users:]] == [Op.END] * users
    assert turns >= users / MAX_EXPIRED_PER_TURN / 2


# Returns and take-overs


def test_a_return_within_grace_is_one_login_and_no_end(world: World) -> None:
    world.sockets.close(world.login())
    world.pass_time(GRACE / 2)
    world.login()
    world.pass_time(T - 1)
    assert world.history() == [LOGIN, LOGIN]
    assert world.engine.statistics().returned_in_grace == 1
    assert world.engine.statistics().taken_over == 0


def test_without_a_grace_the_session_ends_immediately() -> None:
    world = World(grace=0.0)
    world.sockets.close(world.login())
    assert world.history() == [LOGIN, ended(Code.CLOSED)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_login_on_another_node_is_counted_like_a_local_one(world: World, is_lost: bool) -> None:
    handle = world.login()
    if is_lost:
        world.sockets.close(handle)
    session = world.session()
    assert not world.engine.terminator.supersede(session.key, "another")
    assert world.engine.terminator.supersede(session.key, world.registry.session_id(session))
    statistics = world.engine.statistics()
    assert (statistics.taken_over, statistics.returned_in_grace) == ((0, 1) if is_lost else (1, 0))


def test_a_login_while_stopping_is_refused_with_a_retry_time(world: World) -> None:
    handle = world.sockets.connect()
    world.engine.refuse_logins(lambda: 1.5)
    world.sockets.feed(handle, protocol.encode(protocol.login("ada", id=7)))
    (answer,) = world.sockets.answers(handle)
    assert (answer.kind, answer.id) == (Kind.ERROR, 7)
    assert (answer.payload["code"], answer.payload["retry_after"]) == (Code.SERVER_DRAIN, 1.5)
    assert world.is_disconnected(handle)


def test_an_ended_session_is_not_in_any_table() -> None:
    world = World(away_after=100.0, authenticator=WordAuthenticator())
    for device in (None, "phone", "tablet", "desk"):
        handle = world.sockets.connect()
        login = protocol.login(None, token="ada:60", device=device, meta={"a": 1})
        world.sockets.feed(handle, protocol.encode(login))
    left = world.registry.sessions_of("ada")
    assert [each.device for each in left] == ["", "phone", "tablet", "desk"]
    for session in (left[2], left[0], left[3], left[1]):
        world.sockets.feed(session.handle, protocol.encode(protocol.logout()))
        left.remove(session)
        assert world.registry.sessions_of("ada") == left
    assert (len(world.engine.sessions._auto_away), world.engine.statistics().expiring) == (0, 0)
    assert not world.registry.profiles._shown
    assert not world.registry._devices
    assert world.registry.end(session, Code.CLOSED, world.now) is None


# Registrations for a resync, and the goodbye of a stop


def test_registrations_that_are_read_later_have_the_same_time(world: World) -> None:
    handles = [world.login(uid) for uid in ("ada", "bob", "eve")]
    moment = int(world.changes[0].at_ms)
    registrations = world.engine.registration.registrations([*world.registry])
    first = next(registrations)
    world.now += 1.0
    world.login("new")
    world.login("eve")
    world.sockets.feed(handles[1], protocol.encode(protocol.logout()))
    after = list(registrations)
    assert [each.session for each in (first, *after)] == [each.session for each in world.changes[:3]]
    assert {each.at_ms for each in (first, *after)} == {moment}, "before the end that follows"


def silent_through_a_stall(world: World) -> int:
    """Log in and stay silent for longer than T, kept alive by a credit."""
    handle = world.login()
    world.pass_time(T - 5)
    world.now += 20.0
    world.run_slot()
    assert len(world.registry) == 1
    return handle


def test_a_stale_session_registers_with_its_next_packet(world: World) -> None:
    handle = silent_through_a_stall(world)
    assert [each.op for each in world.engine.registration.registrations([*world.registry])] == [Op.STALE]
    world.run_slot()
    assert world.history() == [LOGIN], "still silent"
    world.beat(handle)
    world.run_slot()
    world.run_slot()
    assert world.history() == [LOGIN, (Op.REGISTER, "ada", "", int(Code.RETURNED))], "one registration"


def test_a_session_with_an_unread_packet_is_not_stale(world: World) -> None:
    world.sockets.arrive(silent_through_a_stall(world), protocol.KEEPALIVE)
    other = World()
    other.login()
    other.now += T + TICK / 4  # not ended yet, and its packet may be within the batching window
    for each in (world, other):
        assert [change.op for change in each.engine.registration.registrations([*each.registry])] == [
            Op.REGISTER
        ]


def test_a_session_that_logs_out_while_its_connection_is_polled_ends(world: World) -> None:
    handle = silent_through_a_stall(world)
    world.sockets.arrive(handle, protocol.encode(protocol.logout()))
    list(world.engine.registration.registrations([*world.registry]))
    assert world.history() == [LOGIN, (Op.END, "ada", "", int(Code.LOGOUT))]


def test_a_superseded_stale_session_does_not_register(world: World) -> None:
    silent_through_a_stall(world)
    assert [each.op for each in world.engine.registration.registrations([*world.registry])] == [Op.STALE]
    world.login()
    world.pass_time(3.0)
    assert world.history() == [LOGIN, LOGIN]


def test_an_unread_logout_at_the_stop_counts(world: World) -> None:
    handle = world.login()
    world.sockets.answers(handle)
    world.sockets.arrive(handle, protocol.encode(protocol.logout(id=2)))
    world.engine.terminator.disconnect_all(
        list(world.registry), lambda: protocol.encode(protocol.goodbye(Code.SERVER_DRAIN))
    )
    assert [brief(each)[:2] for each in world.sockets.answers(handle)] == [(Kind.OK, 2)]
    assert world.history() == [LOGIN, (Op.END, "ada", "", int(Code.LOGOUT))]
