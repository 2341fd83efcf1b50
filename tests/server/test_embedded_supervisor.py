"""The watcher of an embedded Redis: what exits or hangs is replaced at the same address, or given up."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from presence.prefork.arbiter import CannotContinue
from presence.server import embedded_supervisor
from presence.server.embedded_supervisor import MAX_FAILED_STARTS, EmbeddedSupervisor
from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import open_client
from tests.support.waiting import wait_for

HANG_TIMEOUT_S = 0.5
RESTARTED = "embedded Redis restarted"


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    yield server
    server.stop()


@pytest.fixture
def watcher(redis: EmbeddedRedis) -> Iterator[EmbeddedSupervisor]:
    watcher = EmbeddedSupervisor(redis, HANG_TIMEOUT_S)
    yield watcher
    watcher.close()


def supervise_until(watcher: EmbeddedSupervisor, event: str) -> list[dict[str, object]]:
    """Supervise until an event is logged; return the events so far."""

    def is_logged() -> bool:
        watcher.supervise()
        return any(line["event"] == event for line in lines)

    with capture_logs() as lines:
        wait_for(is_logged)
    return [dict(line) for line in lines]


@pytest.mark.parametrize("keeps_data", [False, True])
def test_a_killed_server_is_restarted_at_the_same_address(tmp_path: Path, *, keeps_data: bool) -> None:
    with embedded_redis(tmp_path if keeps_data else None, ("--appendfsync", "always")) as server:
        with open_client(server.url) as client:
            client.set("key", "value")
        server.process.kill()
        with closing(EmbeddedSupervisor(server, HANG_TIMEOUT_S)) as watcher:
            exited, _ = supervise_until(watcher, RESTARTED)
        assert (exited["event"], exited["signal"]) == ("embedded Redis exited, restarting", "SIGKILL")
        assert exited["is_data_lost"] is not keeps_data
        with open_client(server.url) as client:
            assert client.exists("key") == keeps_data


def test_a_server_that_hangs_is_killed_and_restarted(
    redis: EmbeddedRedis, watcher: EmbeddedSupervisor
) -> None:
    wait_for(lambda: watcher.supervise() and watcher._is_asked)
    hung = redis.process
    hung.send_signal(signal.SIGSTOP)
    lines = supervise_until(watcher, RESTARTED)
    assert [line["event"] for line in lines] == [
        "embedded Redis hung, killing it",
        "embedded Redis exited, restarting",
        RESTARTED,
    ]
    assert redis.process is not hung


def test_a_server_that_answers_is_left_alone(redis: EmbeddedRedis, watcher: EmbeddedSupervisor) -> None:
    running, until = redis.process, time.monotonic() + 3 * HANG_TIMEOUT_S
    while time.monotonic() < until:
        time.sleep(min(0.02, watcher.supervise()))
    assert redis.process is running
    assert running.poll() is None


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The clock of the watcher, which stands still otherwise."""
    now = [1000.0]
    monkeypatch.setattr(embedded_supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def add(seconds: float) -> None:
        now[0] += seconds

    return add


def test_a_server_that_exits_at_each_start_is_given_up(
    redis: EmbeddedRedis, watcher: EmbeddedSupervisor, pass_time: Callable[[float], None]
) -> None:
    redis.process.kill()
    redis._binary = "/bin/false"
    waited_s = 0.0

    def supervise() -> None:
        nonlocal waited_s
        while waited_s < 60:
            redis.process.wait()
            pass_time(pause_s := watcher.supervise())
            waited_s += pause_s

    with capture_logs() as lines, pytest.raises(CannotContinue):
        supervise()
    starts = [line for line in lines if line["event"] == "embedded Redis exited, restarting"]
    assert len(starts) == MAX_FAILED_STARTS
    assert waited_s < 10, "a service manager learns of it soon"
    assert lines[-1]["event"] == "embedded Redis cannot be restarted"


@pytest.mark.parametrize(
    "lack", [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), MemoryError()], ids=repr
)
def test_a_lack_of_processes_or_memory_is_waited_out(
    redis: EmbeddedRedis,
    watcher: EmbeddedSupervisor,
    pass_time: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    lack: Exception,
) -> None:
    def refuse() -> None:
        raise lack

    redis.process.kill()
    redis.process.wait()
    restart = redis.restart
    monkeypatch.setattr(redis, "restart", refuse)
    with capture_logs() as lines:
        for _ in range(2 * MAX_FAILED_STARTS):
            pass_time(watcher.supervise())
    assert sum(line["event"] == "cannot start embedded Redis" for line in lines) >= MAX_FAILED_STARTS
    monkeypatch.setattr(redis, "restart", restart)
    pass_time(embedded_supervisor.BACKOFF_LIMIT_S)
    supervise_until(watcher, RESTARTED)


def test_a_server_that_cannot_be_asked_for_want_of_descriptors_is_left_alone(
    redis: EmbeddedRedis,
    pass_time: Callable[[float], None],
    watcher: EmbeddedSupervisor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    process = redis.process
    monkeypatch.setattr("presence.server.embedded_supervisor.socket.socket", refuse)
    with capture_logs() as lines:
        for _ in range(100):
            pass_time(watcher.supervise())
    assert lines == []
    assert process.poll() is None


def test_a_server_whose_output_cannot_be_read_is_given_up_in_the_same_way(
    redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "open", refuse)
    assert "Too many open files" in redis.last_lines()


def test_a_forked_worker_does_not_hold_the_connection_of_the_watcher(
    redis: EmbeddedRedis, watcher: EmbeddedSupervisor
) -> None:
    wait_for(lambda: watcher.supervise() and watcher._probe is not None)
    assert watcher._probe is not None
    pid = os.fork()
    if pid == 0:
        os._exit(watcher._probe.fileno() != -1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
