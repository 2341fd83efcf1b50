"""When a client sends keepalives, and when a server counts as dead; the test controls the time."""

import math
import random

import pytest

from presence import protocol
from presence.client import (
    Disconnected,
    State,
    Unsupported,
)
from presence.client.session import (
    ASK_EVERY,
    KEEPALIVE_JITTER,
    WRITE_GRACE_S,
    Keepalives,
)
from presence.protocol import Code, Kind
from tests.client.machine_driver import KEEPALIVE, Driven, keepalives, most


def test_keepalives_continue_as_long_as_the_server_answers(online: Driven) -> None:
    online.chance = 0.5
    online.run(3600, answering=True)
    gaps = [after - before for before, after in zip(online.sent_at[2:], online.sent_at[3:], strict=False)]
    assert online.machine.state is State.ONLINE
    assert 300 <= len(keepalives(online)) <= 330
    assert max(gaps) <= KEEPALIVE


@pytest.mark.parametrize(("ask_every", "bound"), [(1, 2), (3, 4)])
@pytest.mark.parametrize("quarters", range(48))
def test_a_dead_server_is_detected(ask_every: int, bound: int, quarters: int) -> None:
    driven = Driven(ask_every=ask_every)
    driven.log_in()
    driven.run(KEEPALIVE + quarters * KEEPALIVE / 4, answering=True)
    stopped_at = driven.now
    while driven.machine.state is State.ONLINE:
        driven.run(driven.machine.deadline - driven.now)
    assert driven.now - stopped_at <= bound * KEEPALIVE
    sent = zip(driven.sent_at, driven.sent, strict=True)
    asked_at = next(at for at, packet in sent if at > stopped_at and packet.id is not None)
    assert driven.now == pytest.approx(asked_at + KEEPALIVE)
    lost = driven.pushes[-1]
    assert isinstance(lost, Disconnected)
    assert lost.reason == "dead_server"


def test_a_refused_keepalive_is_a_sign_of_life(online: Driven) -> None:
    online.run(KEEPALIVE)
    (asking,) = keepalives(online)
    online.receive(protocol.error(asking.id, Code.RATE_LIMITED, "slower"))
    online.run(KEEPALIVE * 2)
    assert online.machine.state is State.ONLINE


def test_missed_keepalives_are_not_made_up_for_after_a_pause(online: Driven) -> None:
    online.now += KEEPALIVE * 2.5
    before = len(online.sent)
    online.note(online.machine.tick(online.now))
    online.note(online.machine.tick(online.now))
    assert len(online.sent) - before == 1


# Times


def test_the_first_keepalive_is_spread_and_later_ones_are_early_and_never_late() -> None:
    chance = random.Random(1).random
    firsts = [Keepalives(12.0, ASK_EVERY, 100.0, chance).next_at - 100.0 for _ in range(1000)]
    assert 0 <= min(firsts) < 0.1
    assert 11.9 < max(firsts) <= 12
    keepalives = Keepalives(12.0, ASK_EVERY, 0.0, chance)
    gaps = []
    for _ in range(1000):
        now = keepalives.next_at
        keepalives.count_sent(now, chance)
        gaps.append(keepalives.next_at - now)
    assert min(gaps) >= 12 * (1 - KEEPALIVE_JITTER)
    assert max(gaps) <= 12
    assert max(gaps) - min(gaps) > 1


def test_any_received_packet_is_a_sign_of_life_and_an_answer_gives_the_round_trip() -> None:
    keepalives = Keepalives(12.0, 3, 0.0, most)
    keepalives.note_received(5.0)
    assert keepalives.dead_at == math.inf
    keepalives.expect_answer(5, 10.0)
    keepalives.note_received(20.0)
    assert keepalives.dead_at == 32.0
    keepalives.note_answered(20.25)
    assert (keepalives.round_trip_s, keepalives.dead_at) == (10.25, math.inf)


def test_the_time_for_an_answer_begins_when_the_keepalive_is_written() -> None:
    keepalives = Keepalives(12.0, 1, 0.0, most)
    keepalives.expect_answer(5, 10.0)
    assert not keepalives.is_dead(40.0), "the program was busy all the time"
    keepalives.note_written(40.01)
    assert not keepalives.is_dead(52.0)
    assert keepalives.is_dead(52.02)
    keepalives.note_answered(52.03)
    assert keepalives.round_trip_s == pytest.approx(12.02)


def test_a_keepalive_that_cannot_be_written_has_only_a_moment_more() -> None:
    keepalives = Keepalives(12.0, 1, 0.0, most)
    keepalives.expect_answer(5, 10.0)
    assert not keepalives.is_dead(22.0)
    assert not keepalives.is_dead(22.0 + WRITE_GRACE_S - 0.001)
    assert keepalives.is_dead(22.0 + WRITE_GRACE_S)


def test_a_server_cannot_make_its_client_flood() -> None:
    keepalives = Keepalives(1e-9, 3, 0.0, most)
    keepalives.count_sent(1.0, most)
    assert keepalives.next_at >= 1.0 + 0.02 * (1 - KEEPALIVE_JITTER)


# Another idle time-out


def test_a_refused_idle_timeout_changes_no_keepalives(online: Driven) -> None:
    id = online.ask(protocol.update(idle_timeout=0.1))
    online.receive(protocol.error(id, Code.UNSUPPORTED, "no"))
    online.run(KEEPALIVE, answering=True)
    before = online.machine.keepalives_sent
    online.run(2 * KEEPALIVE, answering=True)
    assert online.machine.state is State.ONLINE
    assert online.machine.keepalives_sent - before <= 3


def test_a_shorter_idle_timeout_shortens_keepalives_when_asked_and_a_longer_one_when_granted(
    online: Driven,
) -> None:
    online.run(KEEPALIVE * 4, answering=True)
    for wish, before, after in ((60.0, KEEPALIVE, 24.0), (5.0, 2.0, 2.0), (1.0, 0.4, 2.0)):
        id = online.ask(protocol.update(idle_timeout=wish))
        assert online.machine.deadline - online.now <= before + 1e-6
        online.receive(protocol.ok(id, idle_timeout=after / 0.4, keepalive=after))
        assert online.answers[id] == {"idle_timeout": after / 0.4, "keepalive": after}
        sent = len(keepalives(online))
        online.run(10 * after, answering=True)
        assert 9 <= len(keepalives(online)) - sent <= 12, wish
    online.reconnect()
    logins = [packet for packet in online.sent if packet.kind == Kind.LOGIN]
    assert logins[-1].payload["idle_timeout"] == 1.0


def test_an_older_server_leaves_the_idle_timeout(online: Driven) -> None:
    id = online.ask(protocol.update(idle_timeout=60.0))
    online.receive(protocol.error(id, Code.UNSUPPORTED, "it holds from the login on"))
    assert isinstance(online.answers[id], Unsupported)
    online.reconnect()
    assert "idle_timeout" not in [p for p in online.sent if p.kind == Kind.LOGIN][-1].payload
