"""Faults of Redis under three nodes: two of them played short, and what their judge would notice."""

import contextlib

import pytest

from loadtest.nodes.verdict import LOGGED_OUT, ONLINE, RETURNED
from loadtest.nodes.weighing import Forgets, weigh
from loadtest.redis_faults.__main__ import parse
from loadtest.scale.verdict import Event

CAME = Event("1-0", "online", "ann", "s-1", 1, 0, "", 0.0, 0.0)
WENT = Event("2-0", "offline", "ann", "s-1", 100, 0, "1-0", 0.0, 0.0)
EXPECTED = {"ann": [ONLINE, LOGGED_OUT]}


def test_an_entry_that_is_gone_is_wrong_where_nothing_may_be_lost() -> None:
    verdict, loss = weigh(EXPECTED, [CAME, WENT], [CAME])
    assert dict(verdict.wrong) == {"event that Redis has no more": 1}
    assert loss is None


def test_an_entry_that_redis_lost_is_counted_with_what_followed() -> None:
    verdict, loss = weigh(EXPECTED, [CAME, WENT], [CAME], Forgets.LAST_WRITES)
    assert not verdict.broken
    assert str(loss) == "Redis lost 1 entries, and doings of 1 users (1 x offline event lost)"


def test_who_lost_nothing_is_not_excused_by_those_who_did() -> None:
    verdict, _ = weigh(EXPECTED, [CAME], [CAME], Forgets.LAST_WRITES)
    assert verdict.count("lost") == 1


def test_who_is_excused_is_told_of_by_turns_all_the_same() -> None:
    kept = [CAME, CAME._replace(id="3-0")]
    verdict, _ = weigh(EXPECTED, [], kept, Forgets.LAST_WRITES, frozenset({"ann"}))
    assert verdict.count("out of order") == 1


def test_after_a_loss_of_everything_the_end_alone_is_judged() -> None:
    again = CAME._replace(id="9-0", code=2)
    verdict, loss = weigh({"ann": [RETURNED]}, [CAME, again], [again], Forgets.ALL)
    assert not verdict.broken
    assert loss is not None
    assert loss.entries == 1


def test_a_case_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        parse(["flood"])
    assert "no such case: flood" in capsys.readouterr().err
