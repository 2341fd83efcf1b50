"""The fault proxy: it carries, and each fault is seen by who sends and who receives."""

import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import RedisError, open_client
from tests.support import proxy as module
from tests.support.proxy import CLEAR, Proxy, ProxyFaults

WAIT_S = 0.1
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(5)
        yield listener


@pytest.fixture
def proxy(target: socket.socket) -> Iterator[Proxy]:
    with Proxy(target.getsockname()) as proxy:
        yield proxy


@pytest.fixture
def ends(proxy: Proxy, target: socket.socket) -> Iterator[Ends]:
    with closing(plug_in(proxy)) as near, closing(target.accept()[0]) as far:
        far.settimeout(5)
        yield near, far


def plug_in(proxy: Proxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=5)


def receive(sock: socket.socket, size: int) -> list[bytes]:
    """What was received, piece by piece."""
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < size:
        piece = sock.recv(1 << 20)
        assert piece
        pieces.append(piece)
    return pieces


def assert_silent(sock: socket.socket) -> None:
    sock.settimeout(WAIT_S)
    with pytest.raises(TimeoutError):
        sock.recv(1)
    sock.settimeout(5)


def test_connections_go_to_any_of_several_targets(proxy: Proxy, target: socket.socket) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        both = {target.getsockname(), other.getsockname()}
        proxy.retarget(*both)
        for listener in (target, other):
            listener.settimeout(0)
        reached = set()
        for _ in range(64):
            with plug_in(proxy):
                ready, _, _ = select.select((target, other), (), (), 5)
                reached |= {each.getsockname() for each in ready}
                for each in ready:
                    each.accept()[0].close()
        assert reached == both


@pytest.mark.parametrize(
    "faults",
    [CLEAR, ProxyFaults(jitter_s=0.001), ProxyFaults(latency_s=0.01, jitter_s=0.01, slice_bytes=20_000)],
)
def test_it_carries_all_bytes_in_order_both_ways(ends: Ends, proxy: Proxy, faults: ProxyFaults) -> None:
    proxy.disturb(faults)
    near, far = ends
    much = random.randbytes(3_000_000)
    for sender, receiver in ((near, far), (far, near)):
        sending = threading.Thread(target=sender.sendall, args=(much,))
        sending.start()
        assert b"".join(receive(receiver, len(much))) == much
        sending.join()


def test_latency_and_jitter_are_added_to_each_way(ends: Ends, proxy: Proxy) -> None:
    near, far = ends
    proxy.disturb(ProxyFaults(latency_s=0.05), down=False)
    proxy.disturb(ProxyFaults(latency_s=0.5, jitter_s=0.05), up=False)
    started = time.monotonic()
    near.sendall(b"ask")
    far.recv(100)
    up = time.monotonic()
    far.sendall(b"answer")
    near.recv(100)
    assert 0.05 <= up - started < 0.5 <= time.monotonic() - up
    assert proxy.injected.delayed_bytes == len(b"askanswer")


def test_slices_arrive_one_by_one(ends: Ends, proxy: Proxy) -> None:
    near, far = ends
    proxy.disturb(ProxyFaults(slice_bytes=1))
    near.sendall(bytes(range(256)) * 8)
    pieces = receive(far, 2048)
    assert b"".join(pieces) == bytes(range(256)) * 8
    assert len(pieces) > 1
    assert proxy.injected.cuts > 2000


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
def test_a_blackhole_keeps_what_was_sent_until_it_ends(
    ends: Ends, proxy: Proxy, up: bool, down: bool
) -> None:
    near, far = ends
    proxy.blackhole(up=up, down=down)
    near.sendall(b"ask")
    far.sendall(b"hint")
    for sock, is_hole in ((far, up), (near, down)):
        if is_hole:
            assert_silent(sock)
    proxy.heal()
    assert far.recv(100) == b"ask"
    assert near.recv(100) == b"hint"
    assert proxy.injected.held_bytes == 3 * up + 4 * down


def test_a_connection_waits_while_there_is_a_blackhole(proxy: Proxy, target: socket.socket) -> None:
    proxy.blackhole(up=False)
    with closing(plug_in(proxy)) as near:
        target.settimeout(WAIT_S)
        with pytest.raises(TimeoutError):
            target.accept()
        proxy.heal()
        target.settimeout(5)
        with closing(target.accept()[0]) as far:
            far.sendall(b"answer")
            assert near.recv(100) == b"answer"


def test_connections_may_be_ended_after_a_blackhole(ends: Ends, proxy: Proxy) -> None:
    near, far = ends
    proxy.blackhole()
    near.sendall(b"ask")
    time.sleep(0.01)
    proxy.heal(reset=True)
    for sock in (near, far):
        with pytest.raises(ConnectionResetError):
            sock.recv(100)


def test_a_reset_is_seen_by_both_sides(ends: Ends, proxy: Proxy) -> None:
    assert proxy.reset() == 1
    for sock in ends:
        with pytest.raises(ConnectionResetError):
            sock.recv(100)
    assert proxy.connections == 0


def test_an_end_is_passed_on_and_the_other_way_stays(ends: Ends) -> None:
    near, far = ends
    near.sendall(b"that is all")
    near.shutdown(socket.SHUT_WR)
    assert far.recv(100) == b"that is all"
    assert far.recv(100) == b""
    far.sendall(b"answer")
    assert near.recv(100) == b"answer"


def test_a_reset_by_one_side_is_passed_on(ends: Ends, proxy: Proxy) -> None:
    near, far = ends
    far.sendall(b"unread")
    time.sleep(0.01)
    near.close()  # with bytes that were not read, so the kernel resets
    with pytest.raises(ConnectionResetError):
        far.recv(100)


def test_a_request_is_carried_out_and_its_reply_is_lost(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.4)  # a busy machine sends a request in pieces
    with Proxy(redis_server.url.removeprefix("unix://")) as proxy, open_client(proxy.url) as client:
        proxy.drop_reply(2, containing=b"RPUSH")
        for n in range(4):
            client.ping()
            with client.pipeline(transaction=False) as pipe:
                for _ in range(1000):
                    pipe.rpush("list", f"{n}" * 100)
                if n < 2:
                    with pytest.raises(RedisError, match=r"closed by server|reset by peer"):
                        pipe.execute()
                else:
                    assert pipe.execute()[-1] == (n + 1) * 1000
        assert proxy.injected.replies_dropped == 2


def test_the_command_disturbs_until_it_is_interrupted(target: socket.socket) -> None:
    host, port = target.getsockname()
    words = ["--target", f"{host}:{port}", "--latency", "0.1"]
    command = [sys.executable, "-m", "tests.support.proxy", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        at = process.stdout.readline().removeprefix("ready 127.0.0.1:")
        with closing(socket.create_connection((host, int(at)), timeout=5)) as near:
            with closing(target.accept()[0]) as far:
                started = time.monotonic()
                near.sendall(b"ask")
                assert far.recv(100) == b"ask"
                assert time.monotonic() - started >= 0.1
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
