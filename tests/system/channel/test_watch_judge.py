"""Whether the judge of watches sees what is wrong."""

from typing import Any

import pytest

from loadtest.checker import id_order
from tests.system.channel.entries import ChannelEntry, by_user, entry_of
from tests.system.channel.watch_judge import (
    AnsweredWatch,
    History,
    Lost,
    Pushed,
    TrueStates,
    Unwatched,
    WatchVerdict,
    judge,
)


def entry(ms: int, type: str, uid: str = "ann", **fields: Any) -> ChannelEntry:
    given = {"type": type, "uid": uid, "code": 1, "reason": "why", "at_ms": ms - 5, "since_ms": 1000}
    given |= {"last_seen_ms": ms - 50, **fields}
    return entry_of(f"{ms}-0", {name: str(value) for name, value in given.items()})


CAME = entry(1000, "online", since_ms=1000)
AWAY = entry(2000, "away", status="away", status_ms=1995, meta='{"v":1}')
WENT = entry(3000, "offline")
AGAIN = entry(4000, "online", since_ms=3995)
STORY = [CAME, AWAY, WENT, AGAIN]
GONE = {"status": "offline", "since_ms": None, "last_seen_ms": 2950, "id": None}
UNKNOWN = {**GONE, "last_seen_ms": None}


def push(entry: ChannelEntry, **other: Any) -> Pushed:
    return Pushed(entry.id[0] + 20.0, entry.uid, {"uid": entry.uid, "reason": "why", **entry.state, **other})


def answer(state: Any, at_ms: float, *uids: str) -> AnsweredWatch:
    return AnsweredWatch(at_ms - 10, at_ms, uids or ("ann",), {"ann": state} if state else {})


def judged(*history: Any, entries: list[ChannelEntry] | None = None) -> WatchVerdict:
    happened: History = history
    return judge({"w": happened}, TrueStates(by_user(STORY if entries is None else entries)))


def wrong(*history: Any, entries: list[ChannelEntry] | None = None) -> list[str]:
    return [*judged(*history, entries=entries).counts]


def test_an_entry_is_the_state_that_the_protocol_shows() -> None:
    assert AWAY.state == {
        **{"id": "2000-0", "status": "away", "since_ms": 1995, "last_seen_ms": None},
        "meta": {"v": 1},
    }
    assert WENT.state == {"id": "3000-0", "status": "offline", "since_ms": 2995, "last_seen_ms": 2950}
    assert CAME.state["since_ms"] == 1000
    assert id_order("3000-12") == (3000, 12)


def test_whoever_is_told_all_has_nothing_to_complain_about() -> None:
    verdict = judged(answer(CAME.state, 1100), push(AWAY), push(WENT), push(AGAIN))
    assert verdict.broken == []
    assert (verdict.pushes, verdict.answers, verdict.stale_ms) == (3, 1, [0.0])
    assert verdict.decided_ms == [(2000, 25), (3000, 25), (4000, 25)]


@pytest.mark.parametrize(
    "history",
    [
        (answer(UNKNOWN, 900), push(CAME), push(AWAY), push(WENT), push(AGAIN)),
        (answer(CAME.state, 1100), push(AWAY), Lost(), answer(GONE, 3100), push(AGAIN)),
        (answer(CAME.state, 1100), push(AWAY), Lost(), answer(AGAIN.state, 4100)),
        (answer(AWAY.state, 2100), Lost(), answer(AWAY.state, 2200), push(WENT), push(AGAIN)),
        (answer(AWAY.state, 2100), Unwatched(["ann"]), answer(AGAIN.state, 4100)),
        (answer(CAME.state, 1100), Unwatched(["ann"])),
    ],
    ids=["before anything", "back while offline", "back later", "nothing new", "watched anew", "no more"],
)
def test_what_is_right(history: tuple[Any, ...]) -> None:
    assert wrong(*history) == []


SEEN = answer(CAME.state, 1100)


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        ((SEEN, push(AWAY), push(AWAY), push(WENT), push(AGAIN)), "ids do not rise"),
        ((SEEN, push(AWAY), push(WENT), push(AGAIN), push(WENT)), "ids do not rise"),
        ((SEEN, push(WENT), push(AGAIN)), "hole: an entry before a push was not pushed"),
        ((answer(GONE, 3100), push(AGAIN), Lost(), answer(AWAY.state, 4100)), "older than what was seen"),
        ((answer(UNKNOWN, 900), push(AWAY), push(WENT), push(AGAIN)), "hole"),
        ((SEEN, push(AWAY), push(WENT)), "final view differs"),
        ((SEEN, push(AWAY)), "final view differs"),
        ((answer(GONE, 3100),), "final view differs"),
        (
            (SEEN, push(AWAY, status="online"), push(WENT), push(AGAIN)),
            "state differs from its entry: status",
        ),
        ((SEEN, push(AWAY, meta={"v": 2}), push(WENT), push(AGAIN)), "state differs from its entry: meta"),
        ((SEEN, push(AWAY, since_ms=1), push(WENT), push(AGAIN)), "state differs from its entry: since_ms"),
        ((SEEN, push(AWAY, reason="other"), push(WENT), push(AGAIN)), "another reason"),
        ((SEEN, push(AWAY, id="2000-1")), "in no stream"),
        ((SEEN, push(AWAY, id="now")), "in no stream"),
        ((SEEN, push(AWAY, id=None)), "push without an id"),
        ((push(CAME),), "not watched"),
        ((SEEN, Unwatched(["ann"]), push(AWAY)), "not watched"),
        ((SEEN, Lost(), push(AWAY)), "not watched"),
        ((answer(None, 1100),), "leaves out"),
        ((answer(AGAIN.state, 4100), answer(AGAIN.state, 4100, "bob")), "not asked for"),
        ((answer({**GONE, "status": "unknown"}, 3100),), "without an id that is not offline"),
        ((answer(GONE, 1500),), "offline, and the user was not"),
        ((answer({**GONE, "last_seen_ms": 77}, 3100), push(AGAIN)), "last seen at another time"),
    ],
)
def test_each_fault_has_a_name(history: tuple[Any, ...], complaint: str) -> None:
    entries = STORY[1:] if complaint.startswith("offline, and") else STORY
    if complaint.startswith("offline, and"):  # seen online before, and nothing ended that yet
        history = (answer(AWAY.state, 2100), *history)
    assert any(complaint in each for each in wrong(*history, entries=entries))


def test_an_answer_that_was_over_when_it_was_asked_for_is_noted() -> None:
    verdict = judged(answer(CAME.state, 2510), push(AWAY), push(WENT), push(AGAIN))
    assert verdict.stale_ms == [500.0]
    assert judged(answer(GONE, 4510), push(AGAIN)).stale_ms == [500.0]


def test_many_who_watch_are_judged_each() -> None:
    right = (answer(AGAIN.state, 4100),)
    verdict = judge({"a": right, "b": (SEEN,)}, TrueStates(by_user(STORY)))
    assert dict(verdict.counts) == {"final view differs from the truth": 1}
    assert "'b'" in verdict.examples[0]
