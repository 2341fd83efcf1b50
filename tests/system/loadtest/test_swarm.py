"""Thousands of clients in one thread: load does not wait for the server, but for its word to come back."""

import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

import protocol
from loadtest.clients import Clients
from loadtest.swarm import Swarm
from protocol import KEEPALIVE, Code

GRANTED = protocol.encode(protocol.ok(1, session="s-1", idle_timeout=30.0, keepalive=12.0, time_ms=0, v=1))


def drive(swarm: Swarm, seconds: float, done: Callable[[], bool] = lambda: False) -> bool:
    """Drive it as a plain loop does, until something is so; return whether it became so."""
    until = time.monotonic() + seconds
    poll = select.epoll()
    poll.register(swarm.fileno(), select.EPOLLIN)
    with poll:
        while (now := time.monotonic()) < until:
            due = swarm.step(now)
            if done():
                return True
            poll.poll(max(0.0, min(due, until) - time.monotonic()))
    return False


@pytest.fixture
def swarm(listener: socket.socket) -> Iterator[Swarm]:
    """A swarm of one client, which connects at once."""
    swarm = Swarm(listener.getsockname(), Clients("one", 1))
    swarm.bring([0], time.monotonic())
    swarm.step(time.monotonic())
    yield swarm
    swarm.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that does only what the test does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        yield listener


def accept(listener: socket.socket, swarm: Swarm, answer: bytes = GRANTED) -> socket.socket:
    """Accept the client, read its login and answer it."""
    peer, _ = listener.accept()
    peer.settimeout(5)
    drive(swarm, 0.01)
    assert protocol.decode(peer.recv(1024)[4:]).kind == protocol.Kind.LOGIN
    peer.sendall(answer)
    return peer


@pytest.mark.alone
def test_a_beat_is_sent_though_the_server_reads_nothing_and_late_ones_are_noted(
    listener: socket.socket, swarm: Swarm
) -> None:
    with accept(listener, swarm) as peer:
        drive(swarm, 5, lambda: swarm.clients.online[0] == 1)
        swarm.beat(0.05, time.monotonic(), turns=6)
        time.sleep(0.25)
        drive(swarm, 5, lambda: not swarm.is_beating)
        assert peer.recv(1024) == KEEPALIVE * 6
    assert 0.15 < max(swarm.counts.late) < 0.4


@pytest.mark.alone
def test_who_is_busy_is_asked_again_when_it_said(listener: socket.socket, swarm: Swarm) -> None:
    busy = protocol.error(1, Code.BUSY, "busy", 0.3)
    with accept(listener, swarm, protocol.encode(busy)):
        assert drive(swarm, 5, lambda: swarm.counts.refused["busy"] == 1)
        refused = time.monotonic()
        assert not drive(swarm, 0.25, lambda: swarm.clients.fds[0] >= 0)
        assert drive(swarm, 5, lambda: swarm.clients.fds[0] >= 0)
    assert time.monotonic() - refused < 0.4
