"""How a soak judges what grows."""

from argparse import Namespace
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from benchmarks.soak import growth, kinds
from benchmarks.soak.__main__ import LATENCIES, TOO_FEW, judge_samples, parse, stretch_of, unseen_kinds
from benchmarks.soak.load import RosterKeeper
from benchmarks.soak.trend import BLOCKS, trend
from benchmarks.soak.watch import (
    GAUGES,
    PROCESS_FIGURES,
    STORED,
    USED,
    EventJudge,
    Samples,
    lasting_differences,
    rooms_left,
)
from loadtest.outcome import MAX_EXAMPLES
from loadtest.processes import LocustReport, LocustRow
from loadtest.redis_contents import Data
from loadtest.scenario_report import ScenarioReport
from loadtest.servers import wait_for
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.rosters import PresenceRosters
from presence.store.embedded import EmbeddedRedis
from presence.subscriber.events import Entry
from tests.support.preloaded import PreloadedServer

TIMES = [float(second) for second in range(0, 3600, 10)]


def noisy(per_hour: float, noise: float = 1.0, level: float = 100.0) -> list[float]:
    chance = Random(3)
    return [level + per_hour * at / 3600 + chance.uniform(-noise, noise) for at in TIMES]


def test_a_figure_that_grows_is_found_in_noise() -> None:
    found = trend(TIMES, noisy(5.0))
    assert found.growth == pytest.approx(5, abs=found.error)
    assert found.grows


@pytest.mark.parametrize(("per_hour", "noise"), [(0.0, 5.0), (-20.0, 1.0), (0.9, 0.01), (5.0, 60.0)])
def test_noise_shrinking_and_next_to_nothing_do_not_count(per_hour: float, noise: float) -> None:
    assert not trend(TIMES, noisy(per_hour, noise)).grows


def test_a_step_is_no_steady_growth_and_yet_counts() -> None:
    values = [100.0 if at < 1800 else 130.0 for at in TIMES]
    assert trend(TIMES, values).grows


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=f"needs {BLOCKS}"):
        trend(TIMES[: BLOCKS - 1], noisy(0.0)[: BLOCKS - 1])


TABLE = "table users"
FIGURES = {*PROCESS_FIGURES, *GAUGES, TABLE, *USED, *(f"{name} p99, ms" for name in LATENCIES)}


def samples_of(**counts: int) -> Samples:
    """Return samples that do not change, as many of each figure as a soak needs, or as given."""
    samples = Samples()
    for name in FIGURES:
        number = counts.get(name.partition(" ")[0], 2 * BLOCKS)
        if number:
            samples.times[name] = [float(second) for second in range(number)]
            samples.values[name] = [5.0] * number
    return samples


def verdict(samples: Samples, *, events_only: bool = False) -> list[str]:
    report = ScenarioReport("soak")
    judge_samples(samples, Namespace(warm_up=0.1, events_only=events_only), report)
    return report.broken


def test_figures_that_stay_the_same_pass() -> None:
    assert verdict(samples_of()) == []


@pytest.mark.parametrize(("name", "number"), [("descriptors", 0), ("threads", BLOCKS - 1), ("login", 0)])
def test_a_figure_that_was_not_sampled_often_enough_fails(name: str, number: int) -> None:
    samples = samples_of(**{name: number})
    (broken,) = verdict(samples)
    assert broken.startswith(name)
    assert broken.endswith(TOO_FEW)
    assert verdict(samples, events_only=True) == []


def test_a_server_whose_tables_were_not_seen_fails() -> None:
    assert "no table of the server was seen" in verdict(samples_of(table=0))


@pytest.mark.parametrize("name", ["presence_watched_rooms", "presence_websocket_connections", "table quiet"])
def test_a_figure_that_was_always_0_although_clients_are_there_for_it_fails(name: str) -> None:
    samples = samples_of()
    samples.values[name] = [0.0] * len(samples.values[name])
    assert verdict(samples) == verdict(samples, events_only=True) == [f"{name} was never above 0"]


def test_a_kind_of_client_that_has_done_nothing_or_only_failed_is_named() -> None:
    rows = {("device", name): LocustRow(requests=7, failures=2) for name in kinds.ROWS}
    assert unseen_kinds(LocustReport(0, rows, [], [])) == []
    del rows["device", kinds.ROSTER_PUSH]
    rows["device", kinds.QUIET_PUSH] = LocustRow(requests=2, failures=2)
    assert unseen_kinds(LocustReport(0, rows, [], [])) == [
        "crowd: no push of a roster",
        "crowd: no push to a quiet client",
    ]


def test_members_that_differ_from_the_records_all_the_time_and_rooms_left_behind_are_found() -> None:
    with Data() as data:
        assert lasting_differences(data, 0.0) == set()
        assert rooms_left(data) == []
        data.client.zadd(STORED.room_sizes(0), {"lobby": 1})
        data.client.hset(STORED.room("lobby"), "ann", "1-0 -")
        (found,) = lasting_differences(data, 0.1)
        assert (found.room, found.uid) == ("lobby", "ann")
        assert rooms_left(data) == ["lobby", STORED.room("lobby")]
        data.client.delete(STORED.room_sizes(0))
        assert rooms_left(data) == [STORED.room("lobby")]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_the_objects_of_a_server_take_is_counted_by_type(
    redis_server: EmbeddedRedis, tmp_path: Path, workers: int
) -> None:
    program = ("-m", "benchmarks.soak.growth", str(tmp_path))
    flags = ("--redis", redis_server.url, "--workers", str(workers), "--tick", "1")
    with PreloadedServer(*flags, program=program) as server, ClientLoop(server.address) as loop:
        first = growth.ask(server, tmp_path)
        loop.log_in([LoopClient(loop, f"user-{number}") for number in range(300)], 20.0)
        last = growth.ask(server, tmp_path)
    session = "presence.core.registry.Session"
    assert first[session] == 0
    assert last[session] >= 300 * 50
    assert last[growth.ALL] > first[growth.ALL]
    assert session in growth.table(first, last)


def test_the_types_that_grow_most_come_first() -> None:
    first, last = Counter(all=1), Counter({"dict": 3_000, "str": 9_000, growth.ALL: 12_000})
    rows = growth.table(first, last).splitlines()
    assert rows[2:5] == [
        f"| {growth.ALL} | 12.0 | +12.0 |",
        "| str | 9.0 | +9.0 |",
        "| dict | 3.0 | +3.0 |",
    ]


def test_rosters_that_are_not_as_the_backend_has_put_them_are_named(redis_server: EmbeddedRedis) -> None:
    crowd = {f"user-{number}" for number in range(6)}
    with closing(RosterKeeper(redis_server.url, lambda: crowd)) as keeper:
        assert wait_for(lambda: keeper.changes >= 12 or bool(keeper.error), 20.0)
        assert (keeper.wrong(), keeper.error) == ([], "")
        uid = next(iter(keeper._kept))
        with PresenceRosters(redis_server.url) as rosters:
            rosters.add(uid, ["stranger"])
        assert keeper.wrong() == [uid]


@pytest.mark.parametrize(
    "words", [["--rate", "0"], ["--crowd", "0"], ["--warm-up", "1"], ["--restart-every", "-1"]]
)
def test_a_soak_that_makes_no_sense_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)


def test_promises_that_are_broken_all_the_time_are_counted_and_not_kept(redis_server: EmbeddedRedis) -> None:
    judge = EventJudge(redis_server.url, 3.0)
    fields = {"type": "online", "uid": "ann", "session": "s-1", "at_ms": "0"}
    try:
        for number in range(1000):
            judge._add(Entry(0, f"{number + 1}-0", fields))
    finally:
        judge.close()
    assert judge.found.count("doubled") == 999
    assert len(judge.found.broken) == 1 + MAX_EXAMPLES


@pytest.mark.parametrize(
    ("seconds", "stretch_s"), [(3.0, 3.0), (10.0, 5.0), (600.0, 30.0), (1200.0, 60.0), (4800.0, 60.0)]
)
def test_a_run_has_enough_stretches_to_judge_the_latency_of_logins(seconds: float, stretch_s: float) -> None:
    assert stretch_of(seconds) == stretch_s
    if seconds >= 120:
        assert (1 - parse([]).warm_up) * seconds / stretch_s >= BLOCKS
