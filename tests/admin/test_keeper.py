"""Whoever keeps the process for operators alive: how often, and until when."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from presence.admin import frames, keeper
from tests.admin.processes import children, found, is_gone


def test_the_first_end_is_made_good_at_once() -> None:
    assert keeper.pause_s(1) == 0.0


def test_pauses_double_up_to_a_limit() -> None:
    pauses = [keeper.pause_s(ends) for ends in range(2, 40)]
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses[-1] == keeper.BACKOFF_LIMIT_S


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_a_message_comes_whole(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = frames.framed(b"x" * size)
        ours.send(sent[:3])
        ours.send(sent[3:])
        theirs.settimeout(5)
        assert frames.read(theirs) == b"x" * size


@pytest.mark.parametrize("said", [b"", b"\0", frames.framed(b"whole")[:-1]])
def test_a_line_that_ends_early_has_no_message(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.send(said)
        assert frames.read(theirs) is None


@pytest.fixture
def control() -> Iterator[tuple[socket.socket, int]]:
    """The control line of a keeper whose process ends as soon as it has begun, and the keeper's process."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "presence.admin.keeper", "30"]
    with ours:
        with theirs:
            process = subprocess.Popen(command, stdin=theirs.fileno(), stderr=subprocess.DEVNULL)
        yield ours, process.pid
    try:
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_it_ends_when_nobody_gives_orders_any_more(control: tuple[socket.socket, int]) -> None:
    line, pid = control
    line.sendall(frames.framed(b"no message at all"))
    found(lambda: children(pid))
    line.close()
    found(lambda: is_gone(pid))


def test_it_ends_when_nobody_ever_gave_one(control: tuple[socket.socket, int]) -> None:
    line, pid = control
    line.close()
    found(lambda: is_gone(pid))


def test_signals_are_no_orders() -> None:
    assert set(keeper.IGNORED) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
