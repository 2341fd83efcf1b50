"""When a client beats and when it comes back."""

import random
import statistics

import pytest

from presence.client.reconnect import Backoff
from presence.client.session import ASK_EVERY, BEAT_JITTER, Beats


def most(_: object = None) -> float:
    return 1.0


def test_the_bound_of_the_wait_doubles_from_one_second_to_sixty() -> None:
    backoff = Backoff()
    assert [backoff.next_s(most) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_wait_is_uniform_between_nothing_and_its_bound() -> None:
    chance = random.Random(1).random
    waits = []
    for _ in range(2000):
        backoff = Backoff()
        backoff.next_s(chance)
        waits.append(backoff.next_s(chance))
    assert 0 <= min(waits) < 0.01
    assert 1.99 < max(waits) <= 2
    assert statistics.fmean(waits) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("online_s", "bound"), [(59.9, 16), (60.0, 1)])
def test_a_stable_minute_makes_the_next_return_quick(online_s: float, bound: float) -> None:
    backoff = Backoff()
    for _ in range(4):
        backoff.next_s(most)
    assert backoff.next_s(most, online_s) == bound


def test_a_wish_of_the_server_is_a_floor_and_the_jitter_comes_on_top() -> None:
    assert Backoff().next_s(lambda: 0.0, retry_after_s=7.0) == 7.0
    assert Backoff().next_s(most, retry_after_s=7.0) == 8.0


def test_the_first_beat_is_spread_over_the_interval() -> None:
    chance = random.Random(1).random
    firsts = [Beats(12.0, ASK_EVERY, 100.0, chance).next_at - 100.0 for _ in range(1000)]
    assert 0 <= min(firsts) < 0.1
    assert 11.9 < max(firsts) <= 12


def test_later_beats_come_a_little_early_and_never_late() -> None:
    chance = random.Random(1).random
    beats = Beats(12.0, ASK_EVERY, 0.0, chance)
    gaps = []
    for _ in range(1000):
        now = beats.next_at
        beats.beat(now, chance)
        gaps.append(beats.next_at - now)
    assert min(gaps) >= 12 * (1 - BEAT_JITTER)
    assert max(gaps) <= 12
    assert max(gaps) - min(gaps) > 1


@pytest.mark.parametrize(
    ("ask_every", "asks"),
    [(1, [True] * 7), (3, [True, False, False] * 2 + [True])],
)
def test_the_first_of_so_many_beats_asks(ask_every: int, asks: list[bool]) -> None:
    beats = Beats(12.0, ask_every, 0.0, most)
    seen = []
    for number in range(7):
        seen.append(beats.beat(number * 12.0, most))
        if seen[-1]:
            beats.ask(number, number * 12.0)
            beats.answered(number * 12.0 + 0.1)
    assert seen == asks


def test_the_server_is_dead_an_interval_after_a_beat_that_it_did_not_answer() -> None:
    beats = Beats(12.0, 3, 0.0, most)
    beats.ask(5, 10.0)
    assert beats.dead_at == 22.0


def test_whoever_sends_is_alive() -> None:
    beats = Beats(12.0, 3, 0.0, most)
    beats.heard(5.0)
    before = beats.dead_at
    beats.ask(5, 10.0)
    beats.heard(20.0)
    assert before > 1e9
    assert beats.dead_at == 32.0


def test_an_answer_gives_the_round_trip() -> None:
    beats = Beats(12.0, 3, 0.0, most)
    beats.ask(5, 10.0)
    beats.answered(10.25)
    assert beats.round_trip_s == 0.25
    assert beats.dead_at > 1e9


def test_a_server_cannot_make_a_flood_of_its_client() -> None:
    beats = Beats(1e-9, 3, 0.0, most)
    beats.beat(1.0, most)
    assert beats.next_at >= 1.0 + 0.02 * (1 - BEAT_JITTER)
