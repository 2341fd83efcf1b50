"""An idle time-out that a client changes on its live connection."""

from typing import Any

import pytest

from presence import protocol
from presence.core.changes import Op
from presence.protocol import Code, Packet
from tests.support.worlds import GRACE, MAX_IDLE_TIMEOUT, MIN_IDLE_TIMEOUT, TICK, T, World

SLACK_S = 2 * TICK


def ask(world: World, handle: int, **parts: Any) -> Packet:
    world.sockets.answers(handle)
    world.sockets.feed(handle, protocol.encode(protocol.update(id=7, **parts)))
    (answer,) = world.sockets.answers(handle)
    return answer


def codes(world: World) -> list[int]:
    return [each.code for each in world.changes]


@pytest.mark.parametrize(
    ("wish", "granted"),
    [(2 * T, 2 * T), (T / 2, T / 2), (1e6, MAX_IDLE_TIMEOUT), (1e-3, MIN_IDLE_TIMEOUT)],
)
def test_it_is_granted_within_bounds_and_counts_from_then_on(wish: float, granted: float) -> None:
    world = World()
    handle = world.login()
    world.pass_time(T / 2)
    answer = ask(world, handle, idle_timeout=wish)
    assert answer.payload == {"idle_timeout": granted, "keepalive": round(0.4 * granted, 3)}
    world.pass_time(granted - TICK)
    assert not world.is_disconnected(handle)
    world.pass_time(SLACK_S)
    assert world.is_disconnected(handle)
    assert codes(world) == [Code.LOGIN, Code.UPDATED, Code.IDLE_TIMEOUT]


def test_it_counts_when_it_comes_in_the_same_bytes_as_the_login() -> None:
    world = World()
    handle = world.sockets.connect()
    packets = protocol.login("ada"), protocol.update(idle_timeout=2 * T)
    world.sockets.feed(handle, b"".join(map(protocol.encode, packets)))
    world.pass_time(2 * T - TICK)
    assert not world.is_disconnected(handle)
    world.pass_time(SLACK_S)
    assert world.is_disconnected(handle)


def test_each_later_keepalive_extends_by_the_new_one() -> None:
    world = World()
    handle = world.login()
    ask(world, handle, idle_timeout=2 * T)
    world.keep_alive(handle, 10 * T, beat_s=1.5 * T)
    assert not world.is_disconnected(handle)
    ask(world, handle, idle_timeout=T)  # as usual again
    world.pass_time(T + SLACK_S)
    assert world.is_disconnected(handle)


def test_redis_gets_it_with_the_update_and_with_a_registration_and_no_change_is_no_update() -> None:
    world = World()
    handle = world.login()
    ask(world, handle, idle_timeout=2 * T)
    ask(world, handle, idle_timeout=2 * T)
    (registration,) = world.engine.registration.registrations([*world.registry])
    changes = [(each.op, each.idle_timeout_ms) for each in (*world.changes, registration)]
    assert changes == [(Op.LOGIN, T * 1000), (Op.UPDATE, 2 * T * 1000), (Op.REGISTER, 2 * T * 1000)]


def test_with_other_keys_all_are_applied_in_one_change() -> None:
    world = World()
    handle = world.login()
    answer = ask(world, handle, idle_timeout=2 * T, status="away", meta={"a": 1})
    assert answer.payload["idle_timeout"] == 2 * T
    (change,) = world.changes[1:]
    assert (change.code, change.profile.status, change.idle_timeout_ms) == (Code.AWAY, "away", 2 * T * 1000)


def test_a_lost_connection_has_its_grace_and_the_next_login_its_own() -> None:
    world = World()
    handle = world.login()
    ask(world, handle, idle_timeout=2 * T)
    world.sockets.close(handle)
    world.pass_time(GRACE / 2)
    again = world.login()
    assert world.session().idle_timeout == T
    world.pass_time(T + SLACK_S)
    assert world.is_disconnected(again)


def test_one_more_update_than_allowed_leaves_it() -> None:
    world = World()
    handle = world.login()
    answers = [ask(world, handle, idle_timeout=T + number) for number in range(12)]
    assert answers[-1].payload["code"] == Code.RATE_LIMITED
    granted = max(answer.payload.get("idle_timeout", 0) for answer in answers)
    assert world.session().idle_timeout == granted < T + 11
