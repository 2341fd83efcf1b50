"""The benchmark's load, and what it says of itself."""

import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import protocol
from loadtest.bench import generator as generator_module
from loadtest.bench.dialects import ANSWERED, PRESENCE, UNANSWERED
from loadtest.bench.generator import Generator, Report

FINE = Report(wanted=1000, sent=1000, answers=1000, rate=1000.0, core_share=0.3, late_max_s=0.01)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"core_share": 0.71}, "of a core"),
        ({"late_max_s": 0.2}, "late"),
        ({"rate": 980.0}, "late"),
        ({"answers": 980}, "unanswered"),
    ],
)
def test_a_generator_that_was_the_bottleneck_says_so(changed: dict[str, Any], word: str) -> None:
    (complaint,) = dataclasses.replace(FINE, **changed).complaints(ANSWERED)
    assert word in complaint


def test_a_generator_that_kept_its_pace_has_no_complaint() -> None:
    assert FINE.complaints(ANSWERED) == []


def test_no_answers_are_missed_that_nobody_asked_for() -> None:
    assert dataclasses.replace(FINE, answers=0).complaints(UNANSWERED) == []


class Counting:
    """A server in a thread: answers logins and keepalives, and counts each connection's plain ones."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.plain: dict[int, int] = {}
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock, len(self._threads)))
            thread.start()
            self._threads.append(thread)

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock:
            decoder = protocol.Decoder(protocol.FRAME_LIMIT_BYTES)
            while data := sock.recv(4096):
                decoder.feed(data)
                while (packet := decoder.next()) is not None:
                    if packet.id is not None:
                        sock.sendall(protocol.encode(protocol.ok(packet.id)))
                    else:
                        self.plain[number] = self.plain.get(number, 0) + 1

    def until_counted(self, plain: int) -> None:
        """Wait until so many plain ones were read: they need no answer that would tell of it."""
        give_up = time.monotonic() + 5
        while sum(list(self.plain.values())) < plain and time.monotonic() < give_up:
            time.sleep(0.005)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in [self._acceptor, *self._threads]:
            thread.join()


@pytest.fixture
def server() -> Iterator[Counting]:
    counting = Counting()
    yield counting
    counting.close()


@pytest.fixture
def generator(server: Counting) -> Iterator[Generator]:
    generator = Generator(server.address, PRESENCE)
    yield generator
    generator.close()


def test_beats_go_over_all_connections_in_turn(server: Counting, generator: Generator) -> None:
    generator.connect(4)
    assert generator.beat(UNANSWERED, 1000, 0.01).sent == 10
    assert generator.beat(UNANSWERED, 1000, 0.01).sent == 10
    server.until_counted(20)
    assert server.plain == {0: 5, 1: 5, 2: 5, 3: 5}


def test_answers_are_counted(generator: Generator) -> None:
    generator.connect(3)
    report = generator.beat(ANSWERED, 1000, 0.05)
    assert (report.sent, report.answers) == (50, 50)


def test_the_load_does_not_wait_for_a_server_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_module, "LAST_ANSWERS_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        welcomer = threading.Thread(target=_welcome_one, args=(listener,))
        welcomer.start()
        generator = Generator(listener.getsockname(), PRESENCE)
        generator.connect(1)
        report = generator.beat(ANSWERED, 500, 0.2)
        generator.close()
        welcomer.join()
    assert report.sent == 100
    assert "100 keepalives stayed unanswered" in report.complaints(ANSWERED)


def _welcome_one(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    with sock:
        sock.recv(4096)
        sock.sendall(protocol.encode(protocol.ok(1)))
        sock.settimeout(5)
        while sock.recv(4096):
            pass
