"""What the load tests read of a server's log, and what an interrupt leaves of servers: nothing."""

import queue
import tempfile
from pathlib import Path

import psutil
import pytest

from loadtest.servers import LocalRedis, PresenceServer, read_entry
from tests.support.waiting import wait_for


def test_an_entry_is_read() -> None:
    assert read_entry('{"event":"stopped","level":"info"}\n') == {"event": "stopped", "level": "info"}


@pytest.mark.parametrize(
    "line", ['{"event":"stopped","le', "Traceback (most recent call last):", '{"event":"stopped"}', "{}"]
)
def test_what_is_no_entry_is_an_error(line: str) -> None:
    assert read_entry(f"{line}\n") == {"event": line, "level": "error"}


@pytest.mark.parametrize(
    ("line", "is_failure"),
    [
        ('{"event":"task died","level":"error","exception":"KeyError"}', True),
        ("Traceback (most recent call last):", True),
        ("Fatal Python error: Segmentation fault", True),
        ('{"event":"worker exited","level":"error"}', False),
    ],
)
def test_exceptions_and_crashes_are_failures(line: str, is_failure: bool) -> None:
    server = object.__new__(PresenceServer)
    server.lines = [read_entry(line)]
    assert bool(server.failures()) is is_failure


def children() -> list[psutil.Process]:
    return psutil.Process().children()


# Python's arguments for a server that logs a byte which is no text, and 100 KB; it never stops by itself.
STRANGE = (
    "-c",
    "import sys, time; say = sys.stderr.buffer.write;"
    r"say(b'ready 127.0.0.1:1\n\xff\n'); say(2000 * (b'x' * 50 + b'\n')); sys.stderr.flush();"
    "open(sys.argv[-1], 'w').close(); time.sleep(60)",
)


def test_a_log_that_is_no_text_is_read_on(tmp_path: Path) -> None:
    written = tmp_path / "written"
    with PresenceServer(str(written), program=STRANGE) as server:
        wait_for(written.exists, 10)
        wait_for(lambda: len(server.lines) == 2001, 10)


class Interrupted(BaseException):
    """As Ctrl-C."""


def test_an_interrupt_while_a_server_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptedQueue:
        def get(self, timeout: float) -> str:
            raise Interrupted

        def put(self, _: str) -> None:
            """The log is read meanwhile."""

    before = children()
    monkeypatch.setattr(queue, "SimpleQueue", InterruptedQueue)
    with pytest.raises(Interrupted):
        PresenceServer(program=("-c", "import time; time.sleep(60)"))
    assert children() == before


def test_an_interrupt_while_redis_starts_leaves_no_process_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: LocalRedis) -> bool:
        raise Interrupted

    before = children()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(LocalRedis, "is_answering", interrupted)
    with pytest.raises(Interrupted):
        LocalRedis()
    assert children() == before
    assert not [*tmp_path.iterdir()]
