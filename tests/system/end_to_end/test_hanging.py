"""A process that hangs is replaced by the one that watches it; a pause that all of them share is no hang."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.servers import PresenceServer
from presence.protocol import Kind
from presence.store.embedded import EmbeddedRedis
from tests.admin.processes import ADMIN, admin_of, answers, url_of
from tests.support.events import assert_alternation, of_type, read_events
from tests.support.server_process import running_server
from tests.support.swarm import Swarm
from tests.support.waiting import wait_for

HANG_S = 1.0
TIMEOUT_S = 40.0  # offline is due after 7 s; this only bounds a run that fails
TIMING = ("--idle-timeout", "2.5", "--lease", "2.5", "--tick", "0.2", "--disconnect-grace", "1")
FLAGS = ("--workers", "4", "--hang-timeout", str(HANG_S), *TIMING)
REPLACED = "worker exited, restarting"
STUCK_AT_SIGUSR1 = """
import signal, time

def stuck(*_):
    while True:
        time.sleep(0.01)

signal.signal(signal.SIGUSR1, stuck)
"""


@pytest.fixture
def server(redis_server: EmbeddedRedis) -> Iterator[PresenceServer]:
    with running_server("--redis", redis_server.url, *FLAGS) as running:
        yield running


def test_a_worker_that_hangs_is_replaced_and_its_users_come_back_or_are_offline(
    server: PresenceServer, redis_server: EmbeddedRedis
) -> None:
    with Swarm(server.address, beat_s=0.4) as swarm:
        swarm.log_in_everywhere(f"user-{n}" for n in range(60))
        swarm.run(5, until=swarm.logged_in)
        # A login that has not reached Redis is lost with its worker, and has no events.
        swarm.run(5, until=lambda: len(read_events(redis_server.url)) == 60)
        assert len(read_events(redis_server.url)) == 60
        hung = server.workers()[2]
        os.kill(hung, signal.SIGSTOP)
        started = time.monotonic()
        swarm.run(3 * HANG_S, until=lambda: server.workers()[2] != hung)
        assert server.workers()[2] != hung, "within three time-outs"
        swarm.run(3, until=lambda: len(server.logged("serving")) == 5)
        lost = [client.uid for client in swarm.clients if client.is_closed]
        back, gone = lost[::2], lost[1::2]
        assert min(len(back), len(gone)) > 1, "each worker has its period of new connections"
        new = swarm.log_in([*back, *(f"new-{n}" for n in range(60))])
        swarm.run(3, until=lambda: all(client.received for client in new))
        assert all(client.received and client.received[0].kind == Kind.OK for client in new)
        offline: list[str] = []
        while len(offline) < len(gone) and time.monotonic() < started + TIMEOUT_S:
            swarm.run(0.2)
            offline = [*of_type(read_events(redis_server.url), "offline")]
    events = read_events(redis_server.url)
    assert sorted(offline) == sorted(gone)
    assert_alternation(events)
    (details,) = server.logged("worker hung, killing it")
    (ended,) = server.logged(REPLACED)
    assert details["pid"] == hung
    assert ended["signal"] == "SIGKILL", "a stopped process cannot say where it stands"
    assert not server.logged("worker stop timed out, killing it"), "it was not stopping"


def test_a_loop_that_is_stuck_says_where(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK_AT_SIGUSR1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_server("--redis", redis_server.url, "--workers", "2", "--hang-timeout", "0.5") as server:
        os.kill(server.workers()[1], signal.SIGUSR1)
        wait_for(lambda: len(server.logged("serving")) == 3)
    (ended,) = server.logged(REPLACED)
    assert ended["signal"] == "SIGABRT"
    assert any("in stuck" in line["event"] for line in server.lines)


def test_a_pause_shorter_than_the_time_out_and_one_of_all_processes_are_no_hang(
    redis_server: EmbeddedRedis,
) -> None:
    flags = ("--redis", redis_server.url, "--workers", "3", "--hang-timeout", "2", "--idle-timeout", "2")
    with running_server(*flags) as server, Swarm(server.address, beat_s=0.4) as swarm:
        swarm.log_in(f"user-{n}" for n in range(30))
        swarm.run(5, until=swarm.logged_in)
        workers = server.workers()
        for paused, seconds in (([workers[1]], 1.2), ([server.process.pid, *workers.values()], 3.0)):
            for pid in paused:
                os.kill(pid, signal.SIGSTOP)
            swarm.run(seconds)
            for pid in reversed(paused):
                os.kill(pid, signal.SIGCONT)
            swarm.run(1.0)
        assert server.workers() == workers
        assert not any(client.is_closed for client in swarm.clients)
    assert [event["type"] for event in read_events(redis_server.url)] == ["online"] * 30


def test_the_process_that_serves_operators_is_replaced_when_it_hangs(redis_server: EmbeddedRedis) -> None:
    hung = "admin process hung, killing it"
    flags = ("--redis", redis_server.url, "--workers", "2", "--hang-timeout", str(HANG_S), *ADMIN)
    with running_server(*flags) as server:
        url = url_of(server)
        wait_for(lambda: answers(url))
        os.kill(admin_of(server), signal.SIGSTOP)
        wait_for(lambda: server.logged(hung), 10)
        wait_for(lambda: len(server.logged("admin HTTP server ready")) == 2)
        assert answers(url)
    assert len(server.logged(hung)) == 1
