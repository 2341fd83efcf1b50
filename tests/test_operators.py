"""The process that serves operators, as the server sees it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from presence import operators
from presence.admin import startup
from presence.admin.__main__ import IGNORED
from presence.operators import Operators
from presence.ports import Address, CannotListen
from presence.settings import Settings

PATIENCE_S = 10.0
POPEN = subprocess.Popen


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operators]:
    """Operators of a server with two workers on a machine with no room for one more process."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no room for one more process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    listener = socket.create_server(("127.0.0.1", 0))
    found = Operators(Settings(), "redis://h", [listener], workers=2)
    yield found
    found.stop()


def test_a_server_goes_on_where_no_process_can_be_started(alone: Operators) -> None:
    alone.reload()
    assert alone.line(1) is not alone.line(2)
    assert 0 < (alone.tend() or 0) <= operators.RETRY_S


def test_a_worker_keeps_its_own_end_only(alone: Operators) -> None:
    own = alone.line(2)
    everything = [*alone._listeners, *(end for line in alone._lines for end in line)]
    assert alone.become_worker(2) is own
    assert [each for each in everything if each.fileno() >= 0] == [own]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The processes that were started; each ends when it begins to be told what it serves."""
    brief = [sys.executable, "-S", "-c", "import sys; sys.stdin.buffer.raw.read(4)"]
    begun: list[subprocess.Popen[bytes]] = []

    def start(_command: list[str], **how: object) -> "subprocess.Popen[bytes]":
        begun.append(POPEN(brief, **how))  # type: ignore[call-overload] # as it was asked for
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return begun


def test_a_process_that_ended_is_replaced_at_the_same_address_and_told(
    started: list["subprocess.Popen[bytes]"],
) -> None:
    found = Operators(Settings(), "redis://h", [socket.create_server(("127.0.0.1", 0))], workers=1)
    started[0].wait(PATIENCE_S)
    with capture_logs() as lines:
        assert found.tend() is None  # the first end is made good at once
    assert len(started) == 2
    assert [(line["log_level"], line["status"]) for line in lines] == [("error", 0)]
    socket.create_connection(found.address, PATIENCE_S).close()
    found.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(found.address)


def test_a_process_that_always_ends_is_started_less_and_less(
    started: list["subprocess.Popen[bytes]"],
) -> None:
    found = Operators(Settings(), "redis://h", [socket.create_server(("127.0.0.1", 0))], workers=1)
    for _ in range(2):
        started[-1].wait(PATIENCE_S)
        pause_s = found.tend()
    assert pause_s is not None
    assert 0 < pause_s <= operators.pause_s(2)
    assert len(started) == 2
    found.stop()


def test_where_there_is_room_again_operators_are_served(
    alone: Operators, started: list["subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "_start_at", 0.0)
    assert alone.tend() is None
    assert len(started) == 1


def test_who_takes_no_order_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = [sys.executable, "-c", "import sys, time; sys.stdin.buffer.raw.read(9); time.sleep(60)"]
    popen = subprocess.Popen

    def start(_command: list[str], **how: object) -> object:
        return popen(idle, **how)  # type: ignore[call-overload] # as it was asked for

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(operators, "END_S", 0.2)
    found = Operators(Settings(), "redis://h", [socket.create_server(("127.0.0.1", 0))], workers=1)
    begun = time.monotonic()
    for _ in range(5000):
        found.reload()
    found.stop()
    assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.parametrize(("path", "flags"), [([os.getcwd(), "/x"], []), (["", "/x"], []), (["/x"], ["-P"])])
def test_nobody_loads_modules_of_a_directory_that_the_server_does_not(
    monkeypatch: pytest.MonkeyPatch, path: list[str], flags: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", path)
    assert operators._path_flags() == flags


def test_a_start_message_comes_whole_or_not_at_all() -> None:
    address = Address("127.0.0.1", 1)
    start = startup.Start(Settings(), "x" * 50_000, (3,), (4,), address, "http://127.0.0.1:1/")
    whole = start.packed()
    for sent, read in ((whole, start), (whole[:-1], None), (whole[:2], None), (b"", None)):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.send(sent[:3])
                ours.send(sent[3:])
            assert startup.read(theirs) == read


def test_a_process_without_a_server_ends_and_signals_are_no_orders() -> None:
    assert set(IGNORED) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    ours, theirs = socket.socketpair()
    with theirs:
        process = POPEN([sys.executable, "-m", "presence.admin"], stdin=theirs.fileno())
    ours.close()
    assert process.wait(PATIENCE_S) == 0


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        settings = Settings(admin=f"127.0.0.1:{owner.getsockname()[1]}")
        with (
            pytest.raises(CannotListen, match=settings.admin),
            operators.serving(settings, "", asked_for=True),
        ):
            pass
