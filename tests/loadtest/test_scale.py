"""That the exit status of a run at scale would tell."""

from collections import Counter

import pytest

from loadtest.scale.__main__ import parse
from loadtest.scale.fleet import Status
from loadtest.scale.play import Hold, Ramp
from loadtest.scale.report import Result
from loadtest.scale.verdict import Ends, Promise
from loadtest.usage import Memory


def result(*, online: int = 10, lost: int = 0, offline: int = 0, span_s: float = 2.0, **wrong: int) -> Result:
    """A result in which everything was kept, but for what is given."""
    load = Status(online=online, beats=50, late_s=[0.001] * 100, login_s=[0.01])
    ends = {
        "silence": Ends(Counter(wrong), clients=10, offline=10),
        "last_beat": Ends(clients=10, offline=10, first_to_last_s=span_s),
    }
    hold = Hold(12.0, 60.0, 1.0, Memory(1, 2), lost, offline, load)
    return Result(10, 2, 2, Promise(), ramps=[Ramp(1.0, load)], holds=[hold], ends=ends)


def test_a_result_in_which_everything_was_kept_is_passed() -> None:
    assert result().broken() == []
    assert result().notes() == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (result(online=9), "only 9 of 10 logged in"),
        (result(lost=1), "beat each 12 s: 1 connections lost"),
        (result(offline=1), "beat each 12 s: 1 offline events"),
        (result(late=1), "silence: 1 x late"),
        (result(span_s=5.01), "last_beat: 5.01 s from first to last event"),
    ],
)
def test_what_is_broken_is_told(found: Result, words: str) -> None:
    assert found.broken() == [words]


@pytest.mark.parametrize("beats", [("12", "30"), ("28.5", "2")])
def test_a_beat_no_oftener_than_the_time_out_is_refused(beats: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--beat", *beats, "--idle-timeout", "30", "--last-beat", "2"])
