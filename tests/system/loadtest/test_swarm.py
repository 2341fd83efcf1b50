"""Thousands of clients in one thread: when they connect, beat and come back, and what is known of them."""

import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

import protocol
from loadtest.clients import Clients, Watcher
from loadtest.connection import source_addresses
from loadtest.links import ASKING_BEAT
from loadtest.swarm import Swarm
from protocol import KEEPALIVE, Code, Packet
from tests.live.server_process import ServerProcess, running_server

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
def listener() -> Iterator[socket.socket]:
    """A server that does only what the test does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        yield listener


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with running_server("--idle-timeout", "30") as server:
        yield server


def one(listener: socket.socket, **options: bool | int) -> Swarm:
    """A swarm of one client, which connects at once."""
    swarm = Swarm(listener.getsockname(), Clients("one", 1), **options)  # type: ignore[arg-type]  # as they are
    swarm.bring([0], time.monotonic())
    swarm.step(time.monotonic())
    return swarm


def accept(listener: socket.socket, swarm: Swarm, answer: bytes = GRANTED) -> socket.socket:
    """Accept the client, read its login and answer it."""
    peer, _ = listener.accept()
    peer.settimeout(5)
    drive(swarm, 0.01)
    assert protocol.decode(peer.recv(1024)[4:]).kind == protocol.Kind.LOGIN
    peer.sendall(answer)
    return peer


def test_all_log_in_at_the_rate_that_was_asked_for(server: ServerProcess) -> None:
    swarm = Swarm(server.address, Clients("rate", 200), sources=source_addresses("127.0.0.1", 4))
    begun = time.monotonic()
    swarm.bring(range(200), begun, per_second=400)
    assert drive(swarm, 10, lambda: not swarm.arriving)
    seconds = time.monotonic() - begun
    swarm.close()
    assert swarm.counts.logins == 200
    assert len(set(swarm.clients.sessions)) == 200
    assert 0.49 < seconds < 2


def test_connections_come_from_the_addresses_in_turn(listener: socket.socket) -> None:
    swarm = Swarm(listener.getsockname(), Clients("from", 3), sources=source_addresses("127.0.0.1", 2))
    swarm.bring(range(3), time.monotonic())
    swarm.step(time.monotonic())
    hosts = []
    for _ in range(3):
        peer, (host, _) = listener.accept()
        hosts.append(host)
        peer.close()
    swarm.close()
    assert hosts == ["127.0.0.2", "127.0.0.3", "127.0.0.2"]


@pytest.mark.alone
def test_a_turn_is_one_beat_of_each(server: ServerProcess) -> None:
    swarm = Swarm(server.address, Clients("turn", 300), asking=1)
    swarm.bring(range(300), time.monotonic())
    assert drive(swarm, 10, lambda: not swarm.arriving)
    entered = time.monotonic()
    swarm.beat(0.3, entered, turns=1)
    drive(swarm, 5, lambda: not swarm.is_beating)
    seconds = time.monotonic() - entered
    drive(swarm, 5, lambda: swarm.counts.answers == 300)
    sent = list(swarm.clients.begun)
    swarm.close()
    assert (swarm.counts.beats, swarm.counts.answers) == (300, 300)
    assert min(sent) > entered
    assert 0.29 < seconds < 1
    assert max(sent) - min(sent) == pytest.approx(0.3, abs=0.1)


def test_a_beat_is_sent_when_due_though_the_server_reads_nothing(listener: socket.socket) -> None:
    swarm = one(listener)
    with accept(listener, swarm) as peer:
        drive(swarm, 5, lambda: swarm.clients.online[0] == 1)
        swarm.beat(0.05, time.monotonic(), turns=6)
        drive(swarm, 5, lambda: not swarm.is_beating)
        assert peer.recv(1024) == KEEPALIVE * 6
    swarm.close()


@pytest.mark.alone
def test_a_beat_that_is_late_is_sent_late_and_that_is_noted(listener: socket.socket) -> None:
    swarm = one(listener)
    with accept(listener, swarm):
        drive(swarm, 5, lambda: swarm.clients.online[0] == 1)
        swarm.beat(0.05, time.monotonic(), turns=4)
        time.sleep(0.25)
        drive(swarm, 5, lambda: not swarm.is_beating)
    swarm.close()
    assert swarm.counts.beats == 4
    assert 0.15 < max(swarm.counts.late) < 0.4


@pytest.mark.parametrize(("first_s", "then_s"), [(0.1, 0.4), (0.4, 0.1)])
def test_with_a_new_interval_nobody_waits_longer_than_the_longer(
    server: ServerProcess, first_s: float, then_s: float
) -> None:
    class Gaps(Watcher):
        longest = 0.0

        def beaten(self, numbers: range) -> None:  # type: ignore[override]  # it is a range
            clients = swarm.clients
            self.longest = max(self.longest, *(clients.begun[n] - clients.before[n] for n in numbers), 0.0)

    gaps = Gaps()
    swarm = Swarm(server.address, Clients("gaps", 300), watcher=gaps)
    swarm.bring(range(300), time.monotonic())
    assert drive(swarm, 10, lambda: not swarm.arriving)
    swarm.beat(first_s, time.monotonic())
    drive(swarm, first_s * 1.1)  # each has beaten
    gaps.longest = 0.0
    drive(swarm, first_s / 2)
    swarm.beat(then_s, time.monotonic())
    drive(swarm, then_s * 1.5)
    late = max(swarm.counts.late)
    swarm.close()
    assert 0.2 < gaps.longest < 0.4 + late + 0.02


@pytest.mark.alone
def test_who_is_busy_is_asked_again_when_it_said(listener: socket.socket) -> None:
    swarm = one(listener)
    busy = protocol.error(1, Code.BUSY, "busy", 0.3)
    with accept(listener, swarm, protocol.encode(busy)):
        assert drive(swarm, 5, lambda: swarm.counts.refused["busy"] == 1)
        refused = time.monotonic()
        assert not drive(swarm, 0.25, lambda: swarm.clients.fds[0] >= 0)
        assert drive(swarm, 5, lambda: swarm.clients.fds[0] >= 0)
    assert time.monotonic() - refused < 0.4
    swarm.close()


def test_a_refusal_that_forbids_it_is_not_tried_again(listener: socket.socket) -> None:
    swarm = one(listener, returns=True)
    with accept(listener, swarm, protocol.encode(protocol.error(1, Code.AUTH_FAILED, "no"))):
        drive(swarm, 5, lambda: swarm.counts.refused["auth_failed"] == 1)
    assert swarm.due == float("inf")
    swarm.close()


@pytest.mark.parametrize("returns", [False, True])
def test_after_a_goodbye_only_those_come_back_who_shall(listener: socket.socket, returns: bool) -> None:
    swarm = one(listener, returns=returns)
    goodbye = protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, None, 0.05))
    with accept(listener, swarm, GRANTED + goodbye):
        drive(swarm, 5, lambda: swarm.counts.lost["server_drain"] == 1)
        assert drive(swarm, 0.3, lambda: swarm.clients.fds[0] >= 0) is returns
    swarm.close()


def test_a_connection_that_breaks_is_lost(listener: socket.socket) -> None:
    swarm = one(listener)
    accept(listener, swarm).close()
    assert drive(swarm, 5, lambda: swarm.counts.lost.total() == 1)
    swarm.close()


def test_a_server_that_is_not_there_is_tried_again(listener: socket.socket) -> None:
    address = listener.getsockname()
    listener.close()
    swarm = Swarm(address, Clients("none", 1))
    swarm.bring([0], time.monotonic())
    assert drive(swarm, 5, lambda: swarm.counts.failed["ECONNREFUSED"] == 1)
    assert swarm.arriving == 1
    swarm.close()


def test_an_answer_in_pieces_is_one(listener: socket.socket) -> None:
    swarm = one(listener)
    with accept(listener, swarm, GRANTED[:9]) as peer:
        drive(swarm, 0.05)
        peer.sendall(GRANTED[9:] + protocol.encode(Packet(64, 2)) + b"\0")
        assert drive(swarm, 5, lambda: swarm.counts.answers == 1)
    assert swarm.clients.sessions == ["s-1"]
    swarm.close()


def test_the_hushed_keep_silent(server: ServerProcess) -> None:
    swarm = Swarm(server.address, Clients("hush", 10), asking=1)
    swarm.bring(range(10), time.monotonic())
    drive(swarm, 5, lambda: not swarm.arriving)
    swarm.hush(range(4))
    swarm.beat(0.05, time.monotonic(), turns=1)
    drive(swarm, 5, lambda: not swarm.is_beating)
    swarm.close()
    assert swarm.counts.beats == 6


def test_a_dropped_share_comes_back(server: ServerProcess) -> None:
    swarm = Swarm(server.address, Clients("drop", 100))
    swarm.bring(range(100), time.monotonic())
    drive(swarm, 5, lambda: not swarm.arriving)
    before = swarm.clients.sessions[0]
    swarm.drop(range(30), time.monotonic(), (0.0, 0.2))
    assert len(swarm.clients.numbers(online=True)) == 70
    assert drive(swarm, 5, lambda: not swarm.arriving)
    swarm.close()
    assert (swarm.counts.left, swarm.counts.logins) == (30, 130)
    assert swarm.clients.sessions[0] != before


def test_what_happens_is_told_in_order(listener: socket.socket) -> None:
    told: list[str] = []

    class Listening(Watcher):
        def __getattribute__(self, name: str) -> object:
            told.append(name)
            return super().__getattribute__(name)

    swarm = Swarm(listener.getsockname(), Clients("told", 1), asking=1, watcher=Listening())
    swarm.bring([0], time.monotonic())
    swarm.step(time.monotonic())
    with accept(listener, swarm) as peer:
        drive(swarm, 5, lambda: swarm.clients.online[0] == 1)
        swarm.beat(0.01, time.monotonic(), turns=1)
        drive(swarm, 5, lambda: not swarm.is_beating)
        assert peer.recv(1024) == ASKING_BEAT
        peer.sendall(protocol.encode(protocol.ok(2)))
        drive(swarm, 5, lambda: swarm.counts.answers == 1)
        swarm.drop([0], time.monotonic(), (0.0, 0.0))
        swarm.step(time.monotonic())
    with accept(listener, swarm, protocol.encode(protocol.error(1, Code.AUTH_FAILED, "no"))):
        drive(swarm, 5, lambda: swarm.counts.refused.total() == 1)
    swarm.close()
    assert told == ["login_sent", "entered", "beaten", "answered", "left", "login_sent", "ended"]


def test_under_gevent_it_waits_without_holding_up_others(server: ServerProcess) -> None:
    """In a process of its own: gevent patches what the tests need."""
    host, port = server.address
    code = f"""
from gevent import monkey
monkey.patch_all()
import gevent, gevent.socket, time
from loadtest.clients import Clients
from loadtest.swarm import Swarm

turns = 0
def other():
    global turns
    while True:
        gevent.sleep(0.005)
        turns += 1

epoll = monkey.get_original("select", "epoll")()
swarm = Swarm(({host!r}, {port}), Clients("green", 50), asking=1, epoll=epoll)
swarm.bring(range(50), time.monotonic())
gevent.spawn(other)
beaten = False
while swarm.counts.answers < 50:
    due = swarm.step(time.monotonic())
    if swarm.counts.logins == 50 and not beaten:
        swarm.beat(0.2, time.monotonic(), turns=1)
        beaten, due = True, swarm.due
    try:
        gevent.socket.wait_read(swarm.fileno(), timeout=max(0.001, min(1.0, due - time.monotonic())))
    except TimeoutError:
        pass
print(swarm.counts.answers, turns)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=20
    )
    answers, turns = map(int, run.stdout.split() or (0, 0))
    assert answers == 50, run.stderr
    assert turns > 10
