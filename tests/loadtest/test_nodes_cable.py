"""The cable between a node and Redis: it carries, it can be cut, and what was sent meanwhile comes late."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from loadtest.nodes.cable import Cable

WAIT_S = 0.15


@pytest.fixture
def target(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.settimeout(5)
        yield listener


@pytest.fixture
def cable(target: socket.socket) -> Iterator[Cable]:
    with Cable(str(target.getsockname())) as cable:
        yield cable


def plug_in(cable: Cable) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", int(cable.url.rpartition(":")[2])))
    sock.settimeout(5)
    return sock


def test_it_carries_both_ways_whatever_the_size(cable: Cable, target: socket.socket) -> None:
    with closing(plug_in(cable)) as near, closing(target.accept()[0]) as far:
        near.sendall(b"ask")
        assert far.recv(100) == b"ask"
        much = bytes(3_000_000)
        far.settimeout(0)
        sent = 0
        got = 0
        while got < len(much):
            try:
                sent += far.send(much[sent:])
            except BlockingIOError:
                time.sleep(0.001)
            near.setblocking(False)
            try:
                got += len(near.recv(1_000_000))
            except BlockingIOError:
                continue
        assert got == len(much)


def test_what_was_sent_while_it_was_cut_comes_late(cable: Cable, target: socket.socket) -> None:
    with closing(plug_in(cable)) as near, closing(target.accept()[0]) as far:
        cable.cut()
        time.sleep(WAIT_S)
        near.sendall(b"ask")
        far.settimeout(WAIT_S)
        with pytest.raises(TimeoutError):
            far.recv(100)
        near.close()  # the caller gives up; what it sent is under way
        cable.mend()
        far.settimeout(5)
        assert far.recv(100) == b"ask"
        assert far.recv(100) == b""


def test_a_connection_that_is_made_while_it_is_cut_waits(cable: Cable, target: socket.socket) -> None:
    cable.cut()
    time.sleep(WAIT_S)
    with closing(plug_in(cable)) as near:
        target.settimeout(WAIT_S)
        with pytest.raises(TimeoutError):
            target.accept()
        cable.mend()
        target.settimeout(5)
        with closing(target.accept()[0]) as far:
            far.sendall(b"answer")
            assert near.recv(100) == b"answer"


def test_an_end_is_passed_on(cable: Cable, target: socket.socket) -> None:
    with closing(plug_in(cable)) as near, closing(target.accept()[0]) as far:
        far.sendall(b"last words")
        far.close()
        assert near.recv(100) == b"last words"
        assert near.recv(100) == b""


def test_without_a_target_connections_are_closed(cable: Cable, target: socket.socket) -> None:
    target.close()
    with closing(plug_in(cable)) as near:
        assert near.recv(100) == b""
