"""What ``presence top`` draws."""

import json
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from presence.admin.page_snapshot import RedisStatus, Speeds, snapshot
from presence.admin.workers import WorkerAnswer
from presence.store.health import RedisHealth
from presence.store.node_states import NodeState
from presence.top import state as state_module
from presence.top.state import TopState
from presence.top.view import TopView, screen
from presence.top.wheel_rows import merged_slots, wheel_rows
from tests.admin import scrapes

HELLO = {"version": "1.2.3", "idle_timeout_s": 30.0}
REDIS = RedisHealth(status="ok", ping_ms=0.5, server="valkey", version="9.1", used_memory_bytes=2**21)


def sample(*workers: dict[str, Any] | None, at_s: float = 1.0, **redis: Any) -> Any:
    """Return the sample that a server would send about these workers."""
    answers = [WorkerAnswer(number, each, at_s) for number, each in enumerate(workers, 1)]
    status = RedisStatus(**{"online": 12, "nodes": [], "redis": REDIS, **redis})
    made = snapshot(int(at_s * 1000), answers, Speeds(100.0, 1.0, 2.0, 3.0, 0.0), status)
    return json.loads(json.dumps(made))


def worker(pid: int = 1, cpu_s: float = 0.0, **given: Any) -> dict[str, Any]:
    process = {"rss_bytes": 60 * 2**20, "cpu_user_s": cpu_s, "cpu_system_s": 0.0}
    return scrapes.sample(pid=pid, process=process, **given)


def state_of(*samples: Any) -> TopState:
    state = TopState("http://h:7480")
    state.receive("hello", HELLO)
    for each in samples:
        state.receive("sample", each)
    return state


def lines(state: TopState, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in screen(state, width, height)]


def event(number: int, kind: str = "online", **fields: Any) -> dict[str, Any]:
    return {
        "id": f"{number}-0",
        "shard": 0,
        "type": kind,
        "uid": f"user-{number}",
        "reason": "login",
        **fields,
    }


def test_everything_is_on_one_small_screen() -> None:
    state = state_of(sample(worker(cpu_s=1.0)), sample(worker(cpu_s=1.25), at_s=2.0))
    state.receive("past", {"events": [event(number) for number in range(50)]})
    shown = lines(state)
    text = "\n".join(shown)
    assert len(shown) == 24
    assert max(map(len, shown)) <= 80
    assert shown[0].endswith(" live")
    assert "users online 12  sessions 5  connections 4" in text
    assert "per second: packets 100  logins 3.0  refusals 0.0  users come 1.0, gone 2.0" in text
    assert "detection delay: half within 0.5 s, 99 % over 1 s, of 6 silent sessions" in text
    assert "Redis: valkey 9.1  ping 0.5 ms  memory 2 MiB" in text
    assert "worker 1" in text
    assert "25%   60 MiB  ready" in text
    assert "user-49  login" in shown[-13] + shown[-12] + shown[-11]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 3), (20, 5), (40, 12), (80, 24), (200, 60)])
def test_it_fits_every_terminal(width: int, height: int) -> None:
    state = state_of(sample(*(worker(pid) for pid in range(30))))
    state.receive("past", {"events": [event(number) for number in range(200)]})
    shown = lines(state, width, height)
    assert len(shown) == height
    assert max(map(len, shown)) <= width


def test_a_sequence_that_would_control_the_terminal_is_escaped() -> None:
    evil = "\x1b]0;evil\x07"
    state = state_of(sample(worker(readiness=evil), redis=RedisHealth(status="away", error=evil)))
    state.receive("hello", {**HELLO, "version": evil})
    state.receive("transitions", {"events": [event(1, evil, uid=evil, device=evil, reason=evil, id=evil)]})
    state.lose(evil)
    assert all(line.isprintable() for line in lines(state))


def test_a_silent_worker_another_node_and_an_outage_are_seen() -> None:
    gone = NodeState(
        node="n2", status="dead", lease_left_s=None, sweeper="n1", address="10.0.0.2:7400", sessions=3
    )
    state = state_of(
        sample(
            worker(outbox={"pending": 7}),
            None,
            nodes=[gone],
            redis=RedisHealth(status="away", error="refused"),
        )
    )
    text = "\n".join(lines(state))
    assert "Redis: unreachable  7 changes queued  refused" in text
    assert "no answer" in text
    assert "dead" in text.partition("10.0.0.2:7400"[:14])[2].splitlines()[0]


def test_nodes_for_which_there_is_no_room_are_counted() -> None:
    assert "and 22 more" in "\n".join(lines(state_of(sample(*(worker(pid) for pid in range(29))))))


def test_nodes_in_trouble_are_shown_before_those_for_which_there_is_no_room() -> None:
    nodes = [
        NodeState(
            node=f"n{n}", status="alive", lease_left_s=5.0, sweeper=None, readiness="ready", address=f"a{n}"
        )
        for n in range(5000)
    ]
    nodes[4321] = NodeState(
        node="n4321", status="silent", lease_left_s=-1.0, sweeper=None, address="gone:7400"
    )
    shown = lines(state_of(sample(worker(), nodes=nodes)))
    (gone,) = [line for line in shown if "gone:7400" in line]
    assert gone.endswith("silent")
    assert "and 4,994 more" in "\n".join(shown)


def test_events_are_shown_once_the_newest_first() -> None:
    state = state_of()
    state.receive("transitions", {"events": [event(1), event(2)], "skipped": 0})
    state.receive("past", {"events": [event(1), event(2)]})
    state.receive("transitions", {"events": [event(3, "gap", dropped=1234)], "skipped": 5})
    shown = lines(state)[-4:]
    assert "1,234 changes are missing" in shown[0]
    assert shown[1] == "5 more events, too many to show"
    assert ["user-2" in shown[2], "user-1" in shown[3]] == [True, True]


def test_a_stalled_server_is_seen_by_the_age_of_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("presence.top.state.time.monotonic", lambda: now)
    state = state_of(sample(worker()))
    now += state_module.STALE_S
    assert lines(state)[0].endswith(" live")
    now += 9.0
    assert lines(state)[0].endswith("(12 s)")
    assert " no data since " in lines(state)[0]


def test_the_first_problem_is_marked_once_among_the_events() -> None:
    state = state_of(sample(worker()))
    state.receive("past", {"events": [event(1)]})
    state.lose("refused")
    state.lose("refused again")
    assert [each for each in state.events if isinstance(each, str)] == [
        "connection lost: events may be missing here"
    ]
    assert lines(state)[5] == "refused again"
    state.receive("sample", sample(worker()))
    assert lines(state)[5] == ""


def test_the_screen_fills_the_console() -> None:
    console = Console(width=90, height=30, force_terminal=True)
    with console.capture() as capture:
        console.print(TopView(state_of(sample(worker()))))
    assert max(map(len, Text.from_ansi(capture.get()).plain.splitlines())) == 90


def test_slots_are_merged_and_the_fullest_has_the_longest_bar() -> None:
    assert merged_slots([1, 2, 3, 4, 5], 3) == ([3, 7, 5], 2)
    assert merged_slots([], 3) == ([], 1)
    assert [row.plain for row in wheel_rows([0, 1234, 617], 0.5, 4)] == [
        "in  0.5 s ",
        "in  1.0 s ████ 1,234",
        "in  1.5 s ██ 617",
    ]
