"""Samples of workers as one snapshot, their rates, and the history."""

from typing import Any

from presence.admin.page_snapshot import (
    LONG_POINTS,
    POINTS,
    History,
    Rates,
    RedisStatus,
    Speeds,
    snapshot,
    summed_histogram,
    summed_wheel,
)
from presence.admin.workers import WorkerAnswer
from presence.store.node_states import NodeState


def answer_of(number: int, at: float, pid: int = 1, **counters: Any) -> WorkerAnswer:
    core = {"keepalives": counters.get("keepalives", 0), "refused": counters.get("refused", {})}
    transitions = {"online": {"login": counters.get("online", 0)}}
    return WorkerAnswer(number, {"pid": pid, "started_ms": pid, "core": core, "transitions": transitions}, at)


def test_rates_are_known_from_a_workers_second_answer_and_add_up() -> None:
    rates = Rates()
    assert rates.update([answer_of(1, 10.0), answer_of(2, 10.0)]) == Speeds()
    speeds = rates.update([answer_of(1, 11.0, online=3, refused={"busy": 1}), answer_of(2, 12.0, online=4)])
    assert (speeds.online, speeds.refusals) == (3 + 2, 1)


def test_a_silent_worker_makes_no_peak_and_a_replaced_one_starts_at_zero() -> None:
    rates = Rates()
    rates.update([answer_of(1, 10.0)])
    assert rates.update([WorkerAnswer(1, None, 11.0)]) == Speeds()
    assert rates.update([answer_of(1, 20.0, keepalives=100)]).packets == 10.0
    assert rates.update([answer_of(1, 22.0, pid=2, keepalives=8)]).packets == 4.0


def test_wheels_are_added_by_the_time_until_slots_are_due() -> None:
    wheels = [
        {"slot_s": 0.5, "next_s": 0.1, "sizes": [1, 2, 3], "later": 1},
        {"slot_s": 0.5, "next_s": 0.55, "sizes": [10, 20, 30], "later": 2},
    ]
    assert summed_wheel(wheels) == {"slot_s": 0.5, "next_s": 0.1, "sizes": [1, 12, 23, 30], "later": 3}
    assert summed_wheel([{}]) is None


def test_histograms_with_other_bounds_are_left_out() -> None:
    one: dict[str, Any] = {"bounds": [1.0], "counts": [1, 2], "sum": 3.0}
    both = {"bounds": [1.0], "counts": [2, 4], "sum": 6.0}
    assert summed_histogram([one, one, {"bounds": [2.0], "counts": [9, 9], "sum": 9.0}]) == both
    assert summed_histogram([{}]) is None


def test_unknown_values_are_null() -> None:
    made = snapshot(7, [WorkerAnswer(0, None, 1.0)], Speeds(), RedisStatus())
    assert (made["online"], made["sessions"], made["wheel"], made["nodes"], made["redis"]) == (None,) * 5
    assert made["point"] == (7, None, None, None, None, None, None, None)
    assert snapshot(7, [], Speeds(logins=2.5), RedisStatus())["point"][-1] == 2.5
    assert (made["workers"][0]["answering"], made["workers"][0]["sessions"]) == (False, None)


def test_a_node_has_its_share_of_all_sessions() -> None:
    nodes = [
        NodeState(node=name, status="alive", lease_left_s=5.0, sweeper=None, sessions=sessions)
        for name, sessions in (("a", 30), ("b", 10), ("c", None))
    ]
    made = snapshot(7, [], Speeds(), RedisStatus(nodes=nodes))
    assert [node["share"] for node in made["nodes"]] == [0.75, 0.25, 0.0]


def test_the_largest_rooms_are_shown_only_if_they_are_read() -> None:
    assert "rooms" not in snapshot(7, [], Speeds(), RedisStatus())
    assert snapshot(7, [], Speeds(), RedisStatus(has_rooms=True))["rooms"] is None
    made = snapshot(7, [], Speeds(), RedisStatus(rooms={"lobby": 3, "game": 1}, has_rooms=True))
    assert made["rooms"] == [{"name": "lobby", "count": 3}, {"name": "game", "count": 1}]


def test_after_the_clock_was_set_back_points_replace_those_that_are_later() -> None:
    history = History()
    for second in range(0, 400, 10):
        history.add((1000 * second, second))
    for second in range(100, 240, 10):
        history.add((1000 * second + 1, -1))
    report = history.report()
    for name in ("history", "long_history"):
        times = [point[0] for point in report[name]["points"]]
        assert times == sorted(set(times))
        assert times[-1] < 240_000


def test_a_minute_is_the_mean_of_its_known_values() -> None:
    history = History()
    for second, online in enumerate((10, None, 20)):
        history.add((60_000 + 1000 * second, online, 1, 1, None, 0.0, 0.0))
    assert history.report()["long_history"]["points"] == []
    history.add((120_000, 5, 1, 1, 1.0, 0.0, 0.0))
    minute = [60_000, 15.0, 1.0, 1.0, None, 0.0, 0.0]
    assert history.report()["long_history"] == {"step_s": 60, "points": [minute]}
    assert len(history.report()["history"]["points"]) == 4


def test_history_is_bounded() -> None:
    history = History()
    for minute in range(LONG_POINTS + 100):
        history.add((60_000 * minute, 1, 1, 1, 1, 1, 1))
    report = history.report()
    assert len(report["history"]["points"]) == POINTS
    assert len(report["long_history"]["points"]) == LONG_POINTS
