"""Measurements report their own faults; techniques are compared with what users did."""

import dataclasses
import math
import socket
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from benchmarks import handshakes, prober, visits
from benchmarks import keepalives as bench
from benchmarks.compare import __main__ as compare
from benchmarks.compare.player import ComparePlan, CompareRow, Schedule, Telling, judge
from benchmarks.load_generator import ANSWERED, PRESENCE, UNANSWERED, GeneratorReport
from benchmarks.results import KeepaliveLoad, Results, Trips
from loadtest import usage
from loadtest.usage import WINDOW_SAMPLES, Stolen
from presence import protocol
from presence.loadtest.client_loop import KEEPALIVE_ID
from presence.protocol import Code, Kind

FINE = GeneratorReport(wanted=1000, sent=1000, answers=1000, rate=1000.0, core_share=0.3, late_max_s=0.01)


@pytest.mark.parametrize(
    ("changed", "kind", "word"),
    [
        ({}, ANSWERED, ""),
        ({"answers": 0}, UNANSWERED, ""),  # none was requested
        ({"answers": 980}, ANSWERED, "unanswered"),
        ({"core_share": 0.71}, ANSWERED, "of a core"),
        ({"late_max_s": 0.2}, ANSWERED, "late"),
        ({"rate": 980.0}, ANSWERED, "late"),
    ],
)
def test_a_generator_that_was_the_bottleneck_reports_it(
    changed: dict[str, Any], kind: str, word: str
) -> None:
    complaints = dataclasses.replace(FINE, **changed).complaints(kind)
    assert bool(complaints) is bool(word)
    assert all(word in each for each in complaints)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, ""),
        ({"core_share": 0.71}, "of a core"),
        ({"late_max_s": 0.2}, "late"),
        ({"finished": 980}, "end"),
    ],
)
def test_a_load_of_visits_that_was_not_as_ordered_reports_it(changed: dict[str, Any], word: str) -> None:
    fine = visits.VisitReport(visits=1000, finished=1000, login_ms=[], core_share=0.3, late_max_s=0.01)
    complaints = visits.complaints(dataclasses.replace(fine, **changed))
    assert bool(complaints) is bool(word)
    assert all(word in each for each in complaints)


class VisitedServer:
    """A server of visits that answers the login, and then does as it is told."""

    def __init__(self, *then: bytes | None) -> None:
        self._then = then  # what it sends after the logout; None: it closes before that
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "VisitedServer":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.join()
        self.listener.close()

    def _serve(self) -> None:
        for then in self._then:
            connection, _ = self.listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(protocol.encode(protocol.ok(1)))
                if then is not None:
                    connection.recv(4096)
                    connection.sendall(then)


@pytest.mark.parametrize(
    ("then", "finished"),
    [
        (protocol.encode(protocol.ok(2)), 1),
        (protocol.encode(protocol.goodbye(Code.KICKED)), 0),
        (b"", 0),  # it closes instead of an answer
        (None, 0),  # it closes before the logout
    ],
)
def test_a_visit_that_the_server_ends_is_not_finished(
    monkeypatch: pytest.MonkeyPatch, then: bytes | None, finished: int
) -> None:
    monkeypatch.setattr(visits, "STAY_S", 0.05)
    with VisitedServer(then) as server:
        generator = visits.VisitGenerator(server.listener.getsockname(), PRESENCE)
        report = generator.play(rate=100.0, seconds=0.01)
    assert (report.visits, len(report.login_ms), report.finished) == (1, 1, finished)


def test_a_name_of_a_server_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such server: presense"):
        visits.choose_servers("presence,presense", 2, ())
    with pytest.raises(SystemExit, match="give NAME=PYTHON"):
        visits.choose_servers("", 2, ["python3"])


@pytest.mark.parametrize(
    "words", [["--rounds", "0"], ["--rates", "0"], ["--seconds", "nan"], ["--connections", "-1"]]
)
def test_a_benchmark_of_nothing_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse(words)


class EchoServer:
    """What a prober sees: logins are granted, answers come when the test says so."""

    def __init__(self, loop: prober.Prober) -> None:
        self.probe = prober._Probe(loop, prober.ALWAYS, 0)

    def answer(self, now: float) -> None:
        self.probe.on_packet(Kind.OK, KEEPALIVE_ID, {}, now)


def test_a_late_answer_belongs_to_its_own_probe() -> None:
    with prober.Prober(("127.0.0.1", 1)) as loop:
        server = EchoServer(loop)
        server.probe.ask(10.0)
        server.probe.ask(10.5)
        server.answer(10.6)
        server.answer(10.7)
        assert loop.trips_ms[prober.ALWAYS] == pytest.approx([600.0, 200.0])


@pytest.mark.parametrize(("unanswered", "words"), [(1, []), (2, ["2 of 101 probes stayed unanswered"])])
def test_round_trips_without_the_probes_that_were_not_answered_are_not_valid(
    unanswered: int, words: list[str]
) -> None:
    probed = prober.Probed({prober.ALWAYS: [1.0] * 60, prober.LOGIN: [9.0] * 39}, unanswered)
    assert probed.complaints() == words
    trips = Trips("presence", 1, KeepaliveLoad(ANSWERED, 9.0, 7), prober.ALWAYS, [1.0], probed.complaints())
    assert len(Results({}, {}, trips=[trips]).complaints()) == len(words)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"error": "it fell"}, ["presence wheel at 3: it fell"]),
        ({"refused": 2}, ["presence wheel at 3: Redis refused 2 calls"]),
    ],
)
def test_a_technique_whose_calls_were_refused_has_no_valid_figures(
    changed: dict[str, Any], words: list[str]
) -> None:
    assert compare.invalid([CompareRow(ComparePlan("wheel", 3), **changed)]) == words


@pytest.mark.parametrize("words", [["--idle-timeout", "0"], ["--users", "0"], ["--seconds", "1"]])
def test_a_comparison_that_cannot_be_played_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        compare.parse(words)


def test_a_program_without_a_version_costs_no_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "nats-server"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(usage, "_PACKAGES", ("presence-server", "no-such-package"))
    facts = usage.machine_facts()
    assert (facts["nats-server"], facts["gcc"], facts["no-such-package"]) == (
        *("?", "not installed", "not installed"),
    )


@pytest.mark.parametrize(
    ("samples", "worst_s"),
    [
        ([[50.0, 7.0]], 0.0),  # time stolen earlier does not count
        ([[50.0, 7.0], [50.1, 7.3]], 0.3),  # the CPU that lost most counts
        ([[0.02 * sample] for sample in range(5 * WINDOW_SAMPLES)], 0.02 * WINDOW_SAMPLES),
    ],
)
def test_the_cpu_time_stolen_in_the_worst_second_is_reported(
    samples: list[list[float]], worst_s: float
) -> None:
    remaining = iter(samples)
    stolen = Stolen(lambda: next(remaining))
    for _ in samples:
        stolen.sample()
    assert stolen.worst_s == pytest.approx(worst_s)


T = 10.0


@pytest.mark.parametrize(
    ("reports", "early", "false", "missed", "max_ms"),
    [
        ([Telling(0, 15.1, T + 0.1), Telling(1, 18.3, T + 0.3)], 0, 0, 0, 300.0),
        ([Telling(1, 18.3, T + 0.3)], 0, 0, 1, 300.0),
        ([Telling(0, 14.9, T - 0.1)], 1, 0, 1, -100.0),
        ([Telling(0, 15.0, T - 0.0005)], 0, 0, 1, -0.5),  # within the precision of Redis
        ([Telling(2, 25.0, T)], 0, 1, 2, math.nan),
        ([Telling(1, 6.0, T)], 0, 1, 2, math.nan),  # before the last keepalive
        ([Telling(0, 15.0, T), Telling(0, 20.0, T + 5)], 0, 0, 1, 0.0),
    ],
)
def test_offline_reports_are_compared_with_what_users_did(
    reports: list[Telling], early: int, false: int, missed: int, max_ms: float
) -> None:
    schedule = Schedule(array("d"), array("L"), array("d", [5.0, 8.0, math.inf]))
    row = CompareRow(ComparePlan("wheel", 3, idle_timeout_s=T, seconds=30.0))
    judge(row, schedule, reports)
    assert (row.early, row.false, row.missed) == (early, false, missed)
    assert row.max_ms == pytest.approx(max_ms, nan_ok=True)


def test_handshakes_are_of_the_kind_they_are_counted_as() -> None:
    for version in handshakes.VERSIONS.values():
        found = handshakes.measured(handshakes.KEYS["P-256"], version, 2)
        assert [each.is_resumed for each in found["full"]] == [False, False]
        assert [each.is_resumed for each in found["resumed"]] == [True, True]
        assert found["resumed"][1].received_bytes < found["full"][1].received_bytes
