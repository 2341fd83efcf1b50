"""`presence timers run` as processes: killed, drained, stuck, and with Redis away."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from presence.embedded import find_binary
from presence.store.keys import Keys
from presence.store.scripting import Scripting
from presence.timers.delay_queue import DelayQueue
from presence.timers.interface import Event
from tests.store.servers import Server
from tests.timers.workers import Workers, workers
from tests.timers.zygote import Zygote, zygote

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        server = Server(find_binary(), Path(folder), keep=True)
        yield server
        server.close()


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.client.flushall()
    return shared_server


@pytest.fixture(scope="module")
def ready_made() -> Iterator[Zygote]:
    with zygote() as running:
        yield running


Start = Callable[..., contextlib.AbstractContextManager[Workers]]


@pytest.fixture
def start(ready_made: Zygote, server: Server, tmp_path: Path) -> Start:
    return partial(workers, ready_made, server.url, tmp_path)


@pytest.fixture
def queue(server: Server) -> Iterator[DelayQueue]:
    scripting = Scripting(server.url)
    yield DelayQueue(scripting, Keys().timer("t"))
    scripting.close()


def test_what_a_killed_process_had_begun_another_handles(start: Start, queue: DelayQueue) -> None:
    queue.schedule(Event("e", 0, b"0.6"))
    flags = ("--processes", "2", "--lease", "1")
    with start("note_slowly", *flags) as running:
        running.wait_until(lambda: "begun-e" in running.notes())
        ((pid, _),) = running.notes()["begun-e"]
        os.kill(int(pid), signal.SIGKILL)
        running.wait_until(lambda: "e" in running.notes())
        ((other, attempt),) = running.notes()["e"]
        assert (other != pid, attempt) == (True, "2")
        replaced = running.wait_for("worker ended, and is replaced")
        assert (replaced["status"], replaced["pause_s"]) == (-signal.SIGKILL, 0.5)
        running.wait_for("worker started", 3)
        assert running.stop() == 0
    assert queue.state().counts["done"] == 1


def test_a_drain_finishes_what_runs_and_gives_back_the_rest(start: Start, queue: DelayQueue) -> None:
    queue.schedule_many([Event("first", 0, b"0.5"), Event("second", 0.001, b"0")])
    with start("note_slowly") as running:
        running.wait_until(lambda: "begun-first" in running.notes())
        running.wait_for("ready queue t")
        assert running.stop() == 0
        assert [*running.notes()] == ["begun-first", "first"]
    state = queue.state()
    assert (state.waiting + state.leased, state.counts["done"]) == (1, 1)
    assert [due.id for due in queue.due()] == ["second"]


def test_a_second_signal_ends_at_once(start: Start, queue: DelayQueue) -> None:
    queue.schedule(Event("e", 0, b"30"))
    with start("note_slowly") as running:
        running.wait_until(lambda: "begun-e" in running.notes())
        running.wait_for("ready queue t")
        running.process.send_signal(signal.SIGINT)
        running.wait_for("stopping")
        running.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert running.process.wait() == 1
        assert time.monotonic() - began < 2


def test_a_stuck_plain_handler_is_ended_with_its_process(start: Start, queue: DelayQueue) -> None:
    queue.schedule_many([Event("stuck", 0, b"1000"), Event("e", 0.001, b"0")])
    flags = ("--timeout", "0.2", "--attempts", "1")
    with start("note_slowly", *flags) as running:
        running.wait_until(lambda: "e" in running.notes())
        ((first, _),), ((second, _),) = running.notes()["begun-stuck"], running.notes()["e"]
        assert first != second
        assert not Path(f"/proc/{first}").exists()
        assert running.stop() == 0
    assert [letter.id for letter in queue.dead()] == ["stuck"]


def test_workers_wait_for_a_redis_that_is_restarted(start: Start, server: Server, queue: DelayQueue) -> None:
    with start("note") as running:
        running.wait_for("ready queue t")
        queue.schedule(Event("e", 0.3))
        server.kill()
        running.wait_for("Redis is away, trying again")
        server.start()
        running.wait_until(lambda: "e" in running.notes())
        assert running.stop() == 0
    told = [line["event"] for line in running.lines if line["event"].startswith("Redis")]
    assert told == ["Redis is away, trying again", "Redis is back"]


def test_workers_drain_when_their_supervisor_is_killed(start: Start, queue: DelayQueue) -> None:
    queue.schedule(Event("e", 0, b"0.3"))
    with start("note_slowly") as running:
        running.wait_until(lambda: "begun-e" in running.notes())
        running.process.send_signal(signal.SIGKILL)
        running.wait_for("stopped")
    assert "e" in running.notes()
    assert queue.state().counts["done"] == 1


def test_a_handler_that_cannot_be_called_starts_nothing(start: Start) -> None:
    with start("nobody") as running:
        assert running.process.wait() == 2
        (refusal,) = [line["error"] for line in running.lines if line["event"] == "refusing to start"]
        assert "'tests.timers.workers' has no attribute 'nobody'" in refusal
