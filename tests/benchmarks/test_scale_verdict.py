"""What the verdict on a period notices: events that are duplicated, lost, false, late or of another user."""

from dataclasses import replace

import pytest

from benchmarks.scale.verdict import Ends, LastPacket, ScaleDeadlines, judge
from loadtest.stream_events import ROUNDING_S, StreamEvent

ANN = LastPacket("ann", "s-1", sent_at=100.0, previous_at=88.0)
BOB = LastPacket("bob", "s-2", sent_at=101.0, previous_at=89.0)


def online(truth: LastPacket, at: float = 50.0) -> StreamEvent:
    return StreamEvent(f"{at:.0f}-{truth.uid}", "online", truth.uid, truth.session, 1, 0, "", at, at + 0.01)


def offline(truth: LastPacket, at: float) -> StreamEvent:
    """An event decided at that time, written 20 ms later, and read after another 10 ms."""
    known = (truth.uid, truth.session, 201, 0, f"50-{truth.uid}")
    return StreamEvent(
        f"{at:.0f}-{truth.uid}-off", "offline", *known, at + 0.02, at + 0.03, (at, at + ROUNDING_S)
    )


RIGHT = [online(ANN), online(BOB), offline(ANN, 130.4), offline(BOB, 131.3)]


def verdict_on(*events: StreamEvent) -> Ends:
    return judge([ANN, BOB], events, ScaleDeadlines())


def test_a_correct_period_has_no_findings() -> None:
    verdict = verdict_on(*RIGHT)
    assert (verdict.offline, verdict.clients, verdict.counts.total()) == (2, 2, 0)
    assert sorted(verdict.read_s) == pytest.approx([30.33, 30.43])
    assert sorted(verdict.written_s) == pytest.approx([30.32, 30.42])
    assert verdict.first_to_last_s == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([*RIGHT, offline(ANN, 131.0)], "event doubled"),
        ([*RIGHT[:1], *RIGHT], "event doubled"),
        (RIGHT[:3], "offline event lost"),
        (RIGHT[1:], "online event lost"),
        ([*RIGHT[:2], offline(ANN, 129.9), RIGHT[3]], "false offline event"),
        ([*RIGHT[:2], offline(ANN, 132.0), RIGHT[3]], "offline event late"),
        ([*RIGHT, offline(LastPacket("eve", "s-3", 0, 0), 131.0)], "event of an unknown user"),
        ([*RIGHT[:3], RIGHT[3]._replace(session="s-9")], "offline event of another session"),
        ([*RIGHT[:3], RIGHT[3]._replace(since_id="5-0")], "event doubled"),
        ([RIGHT[2], *RIGHT[:2], RIGHT[3]], "event doubled"),
        ([*RIGHT[:3], RIGHT[3]._replace(code=200)], "offline event for another reason"),
        ([*RIGHT, RIGHT[3]._replace(type="gap")], "event of type gap"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_each_broken_promise_is_noticed(events: list[StreamEvent], broken: str) -> None:
    verdict = verdict_on(*events)
    assert broken in verdict.counts
    assert verdict.examples[0].startswith(tuple(verdict.counts))


def test_an_end_for_an_earlier_silence_is_true_even_if_a_keepalive_is_on_its_way() -> None:
    """The last keepalive was sent after the decision; before it the client had been silent for T."""
    late = ANN._replace(sent_at=120.0, previous_at=88.0)
    verdict = judge([late], [online(late), offline(late, 118.3)], ScaleDeadlines())
    assert (verdict.offline, verdict.counts.total()) == (1, 0)


def test_an_end_of_a_client_that_sends_keepalives_is_false() -> None:
    beating = ANN._replace(sent_at=132.0, previous_at=120.0)
    verdict = judge([beating], [online(beating), offline(beating, 130.5)], ScaleDeadlines())
    assert verdict.counts["false offline event"] == 1


def test_a_step_of_the_wall_clock_makes_no_event_false() -> None:
    stepped = offline(ANN, 129.8)._replace(
        decided_between=(129.8, 130.3)
    )  # by the clock at the start, or now
    assert judge([ANN], [online(ANN), stepped], ScaleDeadlines()).counts.total() == 0


def test_lateness_depends_on_the_promise() -> None:
    events = [online(ANN), offline(ANN, 134.0)]
    for slack, right in ((1.0, 0), (5.0, 1)):
        promise = replace(ScaleDeadlines(), slack=slack)
        assert judge([ANN], events, promise).offline == right
