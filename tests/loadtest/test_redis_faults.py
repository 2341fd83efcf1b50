"""Faults of Redis under three nodes: two of them played short, and what their judge would notice."""

import contextlib
from typing import Any

import pytest

from loadtest.nodes.trial import Fault, weigh
from loadtest.nodes.verdict import LOGGED_OUT, ONLINE, RETURNED
from loadtest.redis_faults.__main__ import main, parse
from loadtest.scale.verdict import Event

NOTHING: Any = None  # these are not asked for
CAME = Event("1-0", "online", "ann", "s-1", 1, 0, "", 0.0, 0.0)
WENT = Event("2-0", "offline", "ann", "s-1", 100, 0, "1-0", 0.0, 0.0)
STRICT = Fault(NOTHING, "", NOTHING, NOTHING)
LOSING = Fault(NOTHING, "", NOTHING, NOTHING, windows=[(0.0, 1.0)])
EMPTYING = Fault(NOTHING, "", NOTHING, NOTHING, loses=True)
EXPECTED = {"ann": [ONLINE, LOGGED_OUT]}


def test_an_entry_that_is_gone_is_wrong_where_nothing_may_be_lost() -> None:
    verdict, loss = weigh(STRICT, EXPECTED, [CAME, WENT], [CAME], set())
    assert dict(verdict.wrong) == {"event that Redis has no more": 1}
    assert loss is None


def test_an_entry_that_redis_lost_is_counted_with_what_followed() -> None:
    verdict, loss = weigh(LOSING, EXPECTED, [CAME, WENT], [CAME], set())
    assert not verdict.broken
    assert loss is not None
    assert (loss.entries, loss.users) == (1, 1)
    assert str(loss) == "Redis lost 1 entries, and doings of 1 users (1 x offline event lost)"


def test_who_lost_nothing_is_not_excused_by_those_who_did() -> None:
    verdict, _ = weigh(LOSING, EXPECTED, [CAME], [CAME], set())
    assert verdict.count("lost") == 1


def test_who_is_excused_is_told_of_by_turns_all_the_same() -> None:
    verdict, _ = weigh(LOSING, EXPECTED, [], [CAME, CAME._replace(id="3-0")], {"ann"})
    assert verdict.count("out of order") == 1


def test_after_a_loss_of_everything_the_end_alone_is_judged() -> None:
    again = CAME._replace(id="9-0", code=2)
    verdict, loss = weigh(EMPTYING, {"ann": [RETURNED]}, [CAME, again], [again], set())
    assert not verdict.broken
    assert loss is not None
    assert loss.entries == 1


def test_a_case_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        parse(["flood"])
    assert "no such case: flood" in capsys.readouterr().err


def test_nothing_false_is_told_when_redis_is_full_or_a_cluster_loses_a_primary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = "--idle-timeout 2 --lease 2 --tick 0.5 --users 100 --seconds 3 --jobs 2"
    assert main(["memory", "primary", *short.split()]) == 0, capsys.readouterr()
