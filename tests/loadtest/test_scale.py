"""The whole thing in small, and that its exit status would tell."""

from collections import Counter

import pytest

from loadtest.scale.fleet import Figures, Status
from loadtest.scale.play import Hold, Ramp
from loadtest.scale.report import Result
from loadtest.scale.verdict import Ends, Promise
from loadtest.usage import Memory


def result() -> Result:
    """A result in which everything was kept."""
    figures = Figures(Status(), 1.0, [0.001] * 100, [0.01])
    verdict = Ends(clients=10, offline=10)
    hold = Hold(12.0, 60.0, 50, {1: 0.5, 2: 0.5}, Memory(1, 2), 0, 0, figures)
    return Result(10, 2, 2, Promise(), ramps=[Ramp(10, 1.0, [0.01], {}, {})], holds=[hold], silence=verdict,
                  last_beat=Ends(clients=10, offline=10, first_to_last_s=2.0))  # fmt: skip


def test_a_result_in_which_everything_was_kept_is_passed() -> None:
    assert result().broken() == []
    assert result().notes() == []


def test_a_login_that_is_missing_is_told() -> None:
    found = result()
    found.ramps[0].online = 9
    assert found.broken() == ["only 9 of 10 logged in"]


@pytest.mark.parametrize(("what", "words"), [("lost", "connections lost"), ("offline", "offline events")])
def test_whom_the_server_loses_while_all_beat_is_told(what: str, words: str) -> None:
    found = result()
    setattr(found.holds[0], what, 1)
    assert found.broken() == [f"beat each 12 s: 1 {words}"]


def test_a_verdict_that_found_something_is_told() -> None:
    found = result()
    found.silence = Ends(Counter({"offline event lost": 1}), clients=10, offline=9)
    assert found.broken() == ["silence: 1 x offline event lost"]


def test_too_long_from_the_first_to_the_last_event_is_told() -> None:
    found = result()
    assert found.last_beat is not None
    found.last_beat.first_to_last_s = 5.01
    assert found.broken() == ["last beat: 5.01 s from first to last event"]
