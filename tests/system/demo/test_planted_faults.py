"""A demo against a server that loses or doubles an event fails, and says how."""

import io

import pytest
from rich.console import Console

from presence.demo import run as demo
from presence.loadtest.judge import EventDeadlines
from presence.store.embedded import EmbeddedRedis
from tests.support.script_texts import SourceChange, changed

BEFORE = "  local command = highest_id == ''\n"
ADD = "add_effect({'XADD', events_key, take_id(), 'v', '1', 'type', type, ...})"
SHORT = {
    "IDLE_TIMEOUT_S": 1.0,
    "DEADLINES": EventDeadlines(tick_s=0.1, grace_s=0.3, slack_s=0.5),
    "LOGIN_SPAN_S": 0.3,
    "FIRST_ACTION_S": 0.5,
    "OFFLINE_TIMEOUT_S": 2.0,
    "SETTLE_S": 0.5,
}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("", "events match the clients"),
        ("if code == '201' then return take_id(), {} end", "no offline event in time"),
        (f"if code == '201' then {ADD} end", "two offline events in a row"),
        (f"if code == '1' then {ADD} end", "two online events in a row"),
    ],
    ids=["none", "offline lost", "offline doubled", "online doubled"],
)
def test_a_lost_or_doubled_event_fails_the_demo(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    for name, value in SHORT.items():
        monkeypatch.setattr(demo, name, value)
    console = Console(file=io.StringIO())
    with changed(SourceChange("lib/entries", BEFORE, f"  {fault}\n{BEFORE}")):
        matches = demo.run(redis_server, "p", seconds=5.0, clients=20, console=console, no_admin=True)
    assert isinstance(console.file, io.StringIO)
    assert words in console.file.getvalue()
    assert matches == (not fault)
