"""The processes that serve operators, as the server sees them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from presence import inquiries, operators
from presence.operators import Operators
from presence.ports import CannotListen
from presence.settings import Settings

PATIENCE_S = 10.0


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
    with pytest.raises(OSError, match="refused"):  # nobody listens where nobody would answer
        socket.create_connection(alone.address)


def test_the_url_is_for_a_browser(alone: Operators) -> None:
    assert alone.url == f"http://127.0.0.1:{alone.address.port}/"


def test_a_worker_keeps_its_own_end_only(alone: Operators) -> None:
    other = alone.line(1)
    own = alone.become_worker(2)
    assert (own.fileno() >= 0, other.fileno()) == (True, -1)


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


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        settings = Settings(admin=f"127.0.0.1:{owner.getsockname()[1]}")
        with (
            pytest.raises(CannotListen, match=settings.admin),
            operators.serving(settings, "", asked_for=True),
        ):
            pass


def test_what_a_worker_answers_to_nobody_is_dropped() -> None:
    asking, answering = inquiries.line_pair()
    asking.close()
    with answering, pytest.raises(OSError, match="refused"):
        answering.send(b"answer")
