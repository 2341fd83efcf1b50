"""The demo compares events with what its clients did, by the load test's judge."""

import io
import re
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from presence.demo.devices import DemoRun
from presence.demo.view import show_summary
from presence.loadtest.judge import EventDeadlines, Sent
from presence.subscriber.events import Entry, Gap, Item

T_S = 10.0
LOGIN_MS = 1_000_000  # when the only client logged in, by the server's clock
SESSION = "s-1"
AGO_S = 60.0


@pytest.fixture
def run() -> Iterator[DemoRun]:
    """A run whose only client logged in a minute ago, and has been silent since."""
    run = DemoRun(("127.0.0.1", 1), 1, EventDeadlines(tick_s=1.0, grace_s=5.0, slack_s=0.5), (0.0, 0.0))
    at = time.monotonic() - AGO_S
    session = run.judge.login_sent("user-0", Sent(at, at))
    run.judge.login_answered(session, at, SESSION, T_S, LOGIN_MS)
    run.judge.silence_began(session)
    run.peers.append("user-0")
    with run.loop:
        yield run


def online(uid: str = "user-0", id: str = "1-0") -> Entry:
    return Entry(0, id, {"type": "online", "uid": uid, "session": SESSION, "at_ms": f"{LOGIN_MS}"})


def offline(after_s: float = T_S + 0.4, code: int = 201, reason: str = "idle_timeout") -> Entry:
    fields = {"type": "offline", "uid": "user-0", "session": SESSION, "code": str(code), "reason": reason}
    return Entry(0, "2-0", fields | {"at_ms": f"{LOGIN_MS + after_s * 1000:.0f}", "since_id": "1-0"})


def differences(run: DemoRun, *items: Item) -> list[str]:
    for each in items:
        run.take(each)
    run.close()
    return run.differences


def test_an_event_that_was_decided_in_time_matches_although_it_is_read_later(run: DemoRun) -> None:
    assert differences(run, online(), offline()) == []


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([online()], "offline idle_timeout: no offline event in time"),
        ([online(), offline(), offline()], "two offline events in a row"),
        ([online(), online(id="2-0"), offline()], "two online events in a row"),
        ([online(), offline(T_S - 0.1)], "offline event too early"),
        ([online(), offline(T_S + 1.7)], "offline event too late"),
        ([online(), offline(code=200, reason="closed")], "a reason that the device did not give"),
        ([online(), offline(), online("bob")], "none of the clients"),
        ([online(), Gap(0, "1-0", "trimmed"), offline()], "events are missing: trimmed after 1-0"),
    ],
)
def test_a_wrong_event_is_a_difference(run: DemoRun, items: list[Item], words: str) -> None:
    assert words in differences(run, *items)[0]


def test_a_client_that_could_not_log_in_is_a_difference(run: DemoRun) -> None:
    run.peers.clear()
    assert differences(run, online(), offline()) == ["only 0 of 1 clients could log in"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_summary_is_a_table_on_a_terminal_and_lines_elsewhere(run: DemoRun, is_terminal: bool) -> None:
    differences(run, online(), offline())
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120, no_color=True)
    show_summary(run, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    (headings,) = [each for each in lines if "number" in each]
    (row,) = [each for each in lines if "offline idle_timeout" in each]
    assert ("┃" in headings, "│" in row) == (is_terminal, is_terminal)
    assert re.findall(r"[\w.]+", row)[:4] == ["offline", "idle_timeout", "1", "10.40"]


def test_a_visitor_is_none_of_the_run_only_if_it_has_visitors(run: DemoRun) -> None:
    visitor = online("guest-1")
    assert differences(run, online(), offline(), visitor) == [f"{visitor.fields} is of none of the clients"]
    deadlines = EventDeadlines(tick_s=1.0, grace_s=5.0, slack_s=0.5)
    visited = DemoRun(("127.0.0.1", 1), 0, deadlines, (0.0, 0.0), has_visitors=True)
    with visited.loop:
        assert differences(visited, visitor) == []
