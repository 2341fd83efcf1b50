"""What the verdict on a period would notice: events that are doubled, lost, false, late or another's."""

from dataclasses import replace

import pytest

from loadtest.scale.verdict import Event, Promise, Truth, Verdict, WallClock, judge

OFFSET = 1_000_000.0  # Unix seconds at monotonic 0
ANN = Truth("ann", "s-1", begun=100.0, before=88.0)
BOB = Truth("bob", "s-2", begun=101.0, before=89.0)


def online(truth: Truth, at: float = 50.0) -> Event:
    return Event(f"{truth.uid}-on", "online", truth.uid, truth.session, 1, _ms(at), "", at, at + 0.01)


def offline(truth: Truth, at: float) -> Event:
    """An event that was decided at that moment, stood 20 ms later, and was read after another 10."""
    known = (truth.uid, truth.session, 201, _ms(at), f"{truth.uid}-on")
    return Event(f"{truth.uid}-off", "offline", *known, at + 0.02, at + 0.03)


def _ms(at: float) -> int:
    return round((OFFSET + at) * 1000)


RIGHT = [online(ANN), online(BOB), offline(ANN, 130.4), offline(BOB, 131.3)]


def verdict_on(*events: Event) -> Verdict:
    return judge([ANN, BOB], events, Promise(), WallClock(OFFSET))


def test_a_period_in_which_all_is_right() -> None:
    verdict = verdict_on(*RIGHT)
    assert (verdict.offline, verdict.clients, verdict.broken.total()) == (2, 2, 0)
    assert list(verdict.read_s) == pytest.approx([30.33, 30.43])
    assert list(verdict.stood_s) == pytest.approx([30.32, 30.42])
    assert verdict.first_to_last_s == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([*RIGHT, offline(ANN, 131.0)], "offline event doubled"),
        ([*RIGHT[:1], *RIGHT], "online event doubled"),
        (RIGHT[:3], "offline event lost"),
        (RIGHT[1:], "online event lost"),
        ([*RIGHT[:2], offline(ANN, 129.9), RIGHT[3]], "false offline event"),
        ([*RIGHT[:2], offline(ANN, 132.0), RIGHT[3]], "offline event late"),
        ([*RIGHT, offline(Truth("eve", "s-3", 0, 0), 131.0)], "event of somebody who was not there"),
        ([*RIGHT[:3], RIGHT[3]._replace(session="s-9")], "offline event of another session"),
        ([*RIGHT[:3], RIGHT[3]._replace(since_id="5-0")], "since_id is not that of the online event"),
        ([RIGHT[2], *RIGHT[:2], RIGHT[3]], "since_id is not that of the online event"),
        ([*RIGHT[:3], RIGHT[3]._replace(code=200)], "offline event for another reason"),
        ([*RIGHT, RIGHT[3]._replace(type="gap")], "event of type gap"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_each_broken_promise_is_noticed(events: list[Event], broken: str) -> None:
    verdict = verdict_on(*events)
    assert broken in verdict.broken
    assert verdict.examples[0].startswith(tuple(verdict.broken))


def test_an_end_for_an_older_silence_is_true_though_a_beat_is_on_its_way() -> None:
    """The last beat left after the decision; before it the client had been silent for T."""
    late = ANN._replace(begun=120.0, before=88.0)
    verdict = judge([late], [online(late), offline(late, 118.3)], Promise(), WallClock(OFFSET))
    assert (verdict.offline, verdict.broken.total()) == (1, 0)


def test_an_end_of_a_client_that_beats_is_false() -> None:
    beating = ANN._replace(begun=132.0, before=120.0)
    verdict = judge([beating], [online(beating), offline(beating, 130.5)], Promise(), WallClock(OFFSET))
    assert verdict.broken["false offline event"] == 1


def test_a_step_of_the_wall_clock_makes_nothing_false() -> None:
    clock = WallClock(OFFSET)
    clock.sample(OFFSET + 0.5)  # the server's clock may be that of its start, or of now
    clock.sample(OFFSET)
    stepped = offline(ANN, 130.2)
    verdict = judge([ANN], [online(ANN), stepped], Promise(), clock)
    assert verdict.broken.total() == 0


def test_what_is_too_late_depends_on_what_was_promised() -> None:
    events = [online(ANN), offline(ANN, 134.0)]
    for slack, right in ((1.0, 0), (5.0, 1)):
        promise = replace(Promise(), slack=slack)
        assert judge([ANN], events, promise, WallClock(OFFSET)).offline == right
