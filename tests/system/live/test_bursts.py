"""512 users who each send 16 KiB of small packets at one moment: how long somebody else waits meanwhile."""

import itertools
import math
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import protocol
from presence.embedded import EmbeddedRedis
from protocol import Packet
from tests.live.server_process import ServerProcess, running_server

USERS = 512
HEAP_BYTES = 16_384
P99_S, MAX_S = 0.1, 0.25
BEATS_S = 4.0
FENCING = ("taken for dead", "a node is silent", "a node is dead")

KINDS = {
    "keepalive": protocol.KEEPALIVE,
    "asking": protocol.encode(protocol.keepalive(1)),
    "unknown": protocol.encode(Packet(9)),
    "unwatch": protocol.encode(protocol.unwatch(["a"])),
    "watch": protocol.encode(protocol.watch(["a"])),
    "query": protocol.encode(protocol.query(["a"])),
    "message": protocol.encode(protocol.message("a", 1)),
    "update": protocol.encode(protocol.update(status="away")),
    "login": protocol.encode(protocol.login("a")),
}
IN_EACH_RUN = ("unwatch", "watch", "login")  # the cheapest packet, the dearest, and one that is refused


def log_in(address: tuple[str, int], uid: str) -> socket.socket:
    sock = socket.create_connection(address, timeout=20)
    sock.sendall(protocol.encode(protocol.login(uid, id=1)))
    assert sock.recv(4096)
    return sock


@contextmanager
def users(address: tuple[str, int], prefix: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(log_in(address, f"{prefix}-{number}")) for number in range(USERS)]


def waits(bystander: socket.socket, flooders: list[socket.socket], packet: bytes) -> list[float]:
    """Let all send their heaps at one moment; return the seconds that each keepalive meanwhile waited."""
    heap = packet * (HEAP_BYTES // len(packet))
    for each in flooders:
        each.setblocking(False)
        each.send(heap)
    waited: list[float] = []
    begun = time.perf_counter()
    for id in itertools.count(1):
        sent = time.perf_counter()
        bystander.sendall(protocol.encode(protocol.keepalive(id)))
        assert bystander.recv(4096)
        waited.append(time.perf_counter() - sent)
        if time.perf_counter() - begun > BEATS_S:
            return sorted(waited)
        time.sleep(0.01)
    raise AssertionError


@pytest.mark.alone
@pytest.mark.parametrize(
    "kind", [kind if kind in IN_EACH_RUN else pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS]
)
def test_a_bystander_is_answered_while_512_users_send_16_kib_each(
    redis_server: EmbeddedRedis, kind: str
) -> None:
    flags = ("--redis", redis_server.url)
    with running_server(*flags) as server, running_server(*flags) as other:
        with users(server.address, kind) as flooders, log_in(server.address, "bystander") as bystander:
            waited = waits(bystander, flooders, KINDS[kind])
            p99 = waited[math.ceil(0.99 * len(waited)) - 1]
            print(f"\n{kind}: {len(waited)} keepalives, p99 {1e3 * p99:.0f}, max {1e3 * waited[-1]:.0f} ms")
        assert not fencings(server, other)
    assert p99 <= P99_S
    assert waited[-1] <= MAX_S


def fencings(*servers: ServerProcess) -> list[str]:
    """Return what servers have logged of leases that ended."""
    events = [line["event"] for server in servers for line in server.lines]
    return [event for event in events if event.startswith(FENCING)]
