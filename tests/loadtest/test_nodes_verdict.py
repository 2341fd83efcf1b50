"""What the judge of the scenarios on several nodes would notice, and what its exit status says."""

import pytest

from loadtest.nodes import __main__ as command
from loadtest.nodes.outcome import Outcome, table
from loadtest.nodes.serving import Setup
from loadtest.nodes.stall import Case
from loadtest.nodes.story import groups
from loadtest.nodes.verdict import NODE_DOWN, ONLINE, RETURNED, SILENT, Told, judge, left_over, spread
from loadtest.scale.verdict import Event

CAME = Event("1-0", "online", "ann", "s-1", 1, 0, "", 0.0, 0.0)
WENT = Event("2-0", "offline", "ann", "s-1", 402, 0, "1-0", 0.0, 0.0)
AGAIN = CAME._replace(id="3-0", code=2)
STORY = [ONLINE, NODE_DOWN, RETURNED]


def test_a_story_told_as_it_was() -> None:
    assert judge({"ann": STORY, "bob": []}, [CAME, WENT, AGAIN]).broken == []


@pytest.mark.parametrize(
    ("due", "events", "wrong"),
    [
        ([ONLINE], [CAME, WENT], "false offline event"),
        ([ONLINE, NODE_DOWN], [CAME, WENT, WENT], "offline event doubled"),
        ([ONLINE, NODE_DOWN], [CAME], "offline event lost"),
        ([ONLINE], [CAME, AGAIN], "online event doubled"),
        (STORY, [CAME, WENT], "online event lost"),
        ([], [CAME], "false online event"),
        (STORY, [CAME, WENT._replace(code=201), AGAIN], "offline event for another reason"),
        (STORY, [CAME, WENT, AGAIN._replace(code=1)], "online event for another reason"),
        (STORY, [CAME, AGAIN, WENT], "events out of order"),
        (STORY, [CAME, WENT._replace(since_id="0-1"), AGAIN], "since_id is not that of the online event"),
        ([ONLINE], [CAME, CAME._replace(uid="eve")], "event of somebody who was not there"),
        ([ONLINE], [CAME, CAME._replace(type="gap", uid="")], "entry of type gap"),
    ],
)
def test_what_is_wrong_has_a_name(due: list[Told], events: list[Event], wrong: str) -> None:
    assert dict(judge({"ann": due}, events).wrong) == {wrong: 1}


def test_what_is_wrong_is_counted_and_shown() -> None:
    expected = {f"user-{n}": [ONLINE] for n in range(30)}
    count, *examples = judge(expected, []).broken
    assert count == "30 x online event lost"
    assert len(examples) == 5
    assert "user-0" in examples[0]


def test_ghosts_and_missing_sessions_are_counted() -> None:
    assert left_over({"ann"}, {"bob", "eve"}) == ["1 ghosts in Redis", "2 live sessions missing in Redis"]
    assert left_over((), ()) == []


def test_a_run_that_injected_nothing_fails() -> None:
    assert Outcome("kill", "", "offline 0 of 0").failures == ["nothing was injected"]
    assert Outcome("kill", "one worker", "offline 9 of 9").failures == []


def test_the_table_says_what_was_broken() -> None:
    rows = table([Outcome("a", "x", "1 s"), Outcome("b", "x", "2 s", ["late", "lost"])]).splitlines()
    assert rows[2:] == ["| a | x | 1 s | kept |", "| b | x | 2 s | late; lost |"]


def test_the_exit_status_says_whether_a_promise_was_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.SCENARIOS, "kill", lambda *_: [Outcome("kill", "a worker", "fine")])
    monkeypatch.setitem(command.SCENARIOS, "loss", lambda *_: [Outcome("loss", "a flush", "bad", ["ghosts"])])
    assert command.main(["kill"]) == 0
    assert capsys.readouterr().out.endswith("passed\n")
    assert command.main(["kill", "loss"]) == 1
    assert capsys.readouterr().out.endswith("FAILED: 1 of 2\n")


def test_an_unknown_scenario_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["kill", "flood"])
    assert "flood" in capsys.readouterr().err


def test_the_promised_time_is_made_of_the_settings() -> None:
    assert Setup().death_s == 43.0
    flags = "--idle-timeout 2 --lease 1 --tick 0.5 --shards 4"
    assert Setup(2, 1, 0.5, 4).flags == (*flags.split(),)


def test_everybody_has_something_to_do_in_an_outage() -> None:
    parts = groups(200)
    assert [len(each) for each in parts] == [80, 20, 20, 20, 20, 20, 20]
    assert [*parts.before, *parts.arriving] == [*range(200)]


def test_a_stop_ends_users_only_if_a_peer_takes_the_node_for_dead() -> None:
    beating, silent = 50, 0
    alone, watched = Case(Setup(), 100, 60.0, has_peer=False), Case(Setup(), 100, 60.0, has_peer=True)
    assert alone.due(beating) == Case(Setup(), 100, 31.0, has_peer=True).due(beating) == [ONLINE]
    assert watched.due(beating) == STORY
    assert watched.due(silent) == STORY[:2]
    assert alone.due(silent) == [ONLINE, SILENT]


def test_a_spread_of_nothing_is_said_to_be_none() -> None:
    assert spread([]) == "none"
    assert spread([3.0, 1.0, 2.0]) == "p50 2.00 p99 3.00 max 3.00 s"
