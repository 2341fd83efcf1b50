"""What is specific to the epoll transport: one task for all, descriptors, bursts, turns, polls."""

import errno
import gc
import math
import os
import select
import socket
import struct
import threading
import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from presence import protocol
from presence.protocol import KEEPALIVE, Code, Kind
from presence.transports import acceptor
from presence.transports.acceptor import MAX_ACCEPTS_PER_TURN
from presence.transports.connection_states import DEMOTE_AFTER_KEEPALIVES, LatencyClass
from presence.transports.epoll_transport import CLOSE_PAUSE_S, KERNEL_ERROR_S, pause_after
from presence.transports.limits import DRAIN_TIMEOUT_S, Limits
from tests.support.desks import NotingDesk
from tests.support.state_table import brief
from tests.transports import certificates
from tests.transports.harness import Client, Harness, TransportKind, serving

RESET = struct.pack("ii", 1, 0)
plain_and_secured = pytest.mark.parametrize("kind", ["epoll", "tls"])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def class_of(server: Harness, uid: str = "ada") -> int:
    fd: int = server.session(uid).handle
    return server.epoll._connections.latency_class[fd]


async def many(server: Harness, count: int) -> list[Client]:
    return [await server.logged_in(f"user-{number}") for number in range(count)]


async def plain_beats(server: Harness, client: Client, count: int) -> None:
    """Send plain keepalives, each in its own read."""
    for _ in range(count):
        keepalives = server.engine.statistics().keepalives
        await client.stream.send_all(KEEPALIVE)
        await server.until(lambda wanted=keepalives + 1: server.engine.statistics().keepalives == wanted)  # type: ignore[misc]


async def test_connections_need_no_tasks() -> None:
    async with serving("epoll") as server:
        await server.logged_in("first")  # so that the transport's own tasks run
        before = trio.lowlevel.current_statistics().tasks_living
        await many(server, 200)
        assert server.counted.connections == 201
        assert trio.lowlevel.current_statistics().tasks_living == before


@pytest.mark.parametrize("data", [KEEPALIVE, protocol.encode(protocol.keepalive(1))[:2]])
async def test_a_batch_that_was_read_is_no_stall_whatever_was_in_it(data: bytes) -> None:
    async with serving("epoll") as server:
        client = await server.logged_in()
        server.engine.guard = guard = Mock()
        await client.stream.send_all(data)
        await server.until(lambda: guard.loop_ran.called)


async def test_a_burst_of_a_thousand_is_accepted() -> None:
    async with serving("epoll") as server:
        sockets = []
        for number in range(1000):
            sock = socket.create_connection(server.address)
            sock.sendall(protocol.encode(protocol.login(f"user-{number}")))
            sockets.append(sock)
        await server.until(lambda: len(server.registry) == 1000)
        assert server.counted.accept_errors == 0
        for sock in sockets:
            sock.close()


async def test_connections_in_quick_succession_are_accepted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BUSY_GAP_S": 1.0, "REST_S": 0.1, "REST_CONNECTIONS": 10_000}.items():
        monkeypatch.setattr(acceptor, name, value)
    async with serving("epoll") as server:
        accept = Mock(wraps=server.epoll._acceptor._accept)
        monkeypatch.setattr(server.epoll._acceptor, "_accept", accept)
        began = time.monotonic()
        with ExitStack() as connections:
            for _ in range(100):
                connections.enter_context(socket.create_connection(server.address))
                await trio.sleep(0.001)
            await server.until(lambda: server.counted.accepted == 100)
        rests = (time.monotonic() - began) / acceptor.REST_S
        assert accept.call_count <= acceptor.RECENT + rests + 2


@pytest.mark.parametrize(
    ("costly_reads", "last_s", "next_s"),
    [
        (0, 0.1, 0.1),
        (32, 0.1, 0.1),
        (320, 0.1, 0.01),
        (8, 0.01, 0.04),
        (1, 0.01, 0.1),
        (10_000, 0.0001, 0.0000128),
    ],
)
def test_a_batch_of_many_costly_reads_is_followed_sooner(
    costly_reads: int, last_s: float, next_s: float
) -> None:
    assert pause_after(costly_reads, last_s, window_s=0.1) == pytest.approx(next_s)


def leave(address: tuple[str, int], number: int, *, secured: bool) -> None:
    """Connect and close, with FIN or RST: silent, in a handshake, after it, a login, an invalid frame."""
    sock = socket.create_connection(address)
    how = number % 5
    if how == 1 and secured:
        sock.sendall(certificates.client_hello()[: number + 1])
    elif how > 1:
        if secured:
            sock = certificates.client_context().wrap_socket(sock, server_hostname=certificates.HOST)
        if how > 2:
            sock.sendall(protocol.encode(protocol.login("ada")) if how == 3 else b"\xff\xff\xff\xff")
    if number % 3:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


@pytest.mark.parametrize(("kind", "batch", "batches"), [("epoll", 250, 4), ("tls", 100, 3)])
async def test_repeated_connections_leave_nothing_behind(
    kind: TransportKind, batch: int, batches: int
) -> None:
    async with serving(kind, grace=0.0) as server:

        async def cycle(count: int) -> None:
            """Do so in a new thread; a worker thread of trio's would keep a descriptor."""
            done = server.counted.closed + count

            def work() -> None:
                for number in range(count):
                    leave(server.address, number, secured=kind == "tls")

            thread = threading.Thread(target=work)
            thread.start()
            await server.until(lambda: server.counted.closed == done, 30.0)
            thread.join()

        await cycle(5)
        gc.collect()  # garbage of earlier tests
        before = open_descriptors()
        for _ in range(batches):
            await cycle(batch)
        assert open_descriptors() == before
        connections = server.epoll._connections
        assert not any(connections.clients)
        assert [*connections.by_fd, *connections.addresses, *connections.handshaking] == []
        assert len(connections.deadlines) == 0
        assert server.counted.tls_connections == server.counted.unsent_connections == 0
        assert server.counted.connections == server.counted.handshakes_underway == len(server.registry) == 0
        assert kind == "epoll" or server.counted.handshakes_failed > 0


# What is kept of a connection


@plain_and_secured
async def test_a_connection_is_its_session_alone_unless_anything_is_pending(
    kind: TransportKind,
) -> None:
    async with serving(kind, Limits(unsent_bytes=10_000_000), send_buffer=4096) as server:
        kept = 0 if kind == "epoll" else 1
        client = await server.connect(receive_buffer=4096)
        await server.until(lambda: len(server.epoll._connections.by_fd) == 1)
        await client.login("ada")
        await server.until(lambda: len(server.epoll._connections.by_fd) == kept)
        many = [protocol.keepalive(number) for number in range(2000)]
        await client.send(*many)
        await server.until(lambda: server.counted.unsent_connections)
        assert len(server.epoll._connections.by_fd) == 1
        await client.take(len(many))
        await server.until(lambda: not server.counted.unsent_connections)
        await server.until(lambda: len(server.epoll._connections.by_fd) == kept)
        client.close()
        await server.until(lambda: not server.epoll._connections.by_fd)


@plain_and_secured
async def test_a_reader_that_has_caught_up_wakes_the_loop_no_more(kind: TransportKind) -> None:
    async with serving(kind, Limits(unsent_bytes=10_000_000), send_buffer=4096) as server:
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        many = [protocol.keepalive(number) for number in range(2000)]
        await client.send(*many)
        await server.until(lambda: server.counted.unsent_connections)
        await client.take(len(many))
        await server.until(lambda: not server.counted.unsent_connections)
        assert not any(epoll.poll(0) for epoll in server.epoll._connections.sets)
        await client.beat()


async def test_a_close_that_is_queued_does_not_reach_the_next_connection_of_its_descriptor() -> None:
    async with serving("epoll") as server:
        await server.logged_in("ada")
        fd = server.session("ada").handle
        server.engine.terminator.kick("ada", server.registry.session_id(server.session("ada")))
        sock = socket.create_connection(server.address)  # it waits in the kernel's queue
        server.epoll._connections.close(fd)
        acceptor = server.epoll._acceptor
        acceptor._accept(acceptor._listeners[0])  # before the close has its turn
        acceptor._admit_some()
        client = Client(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
        await client.login("bob")
        assert server.session("bob").handle == fd
        await trio.sleep(2 * CLOSE_PAUSE_S)
        await client.beat()
        await client.stream.aclose()


# Polls


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        ("epoll", (KEEPALIVE,)),
        ("tls", (KEEPALIVE[:4], KEEPALIVE[4:])),
        ("tls", (KEEPALIVE, protocol.encode(protocol.logout()))),
        ("ws", (KEEPALIVE[:4], KEEPALIVE[4:])),
        ("wss", (KEEPALIVE[:4], KEEPALIVE[4:], protocol.encode(protocol.logout()))),
    ],
    ids=["plain", "in two records", "behind another", "in two messages", "in two messages and another"],
)
async def test_a_poll_reads_everything_in_the_socket(kind: TransportKind, records: tuple[bytes, ...]) -> None:
    async with serving(kind, window_s=60.0) as server:
        client = await server.logged_in()
        session = server.session("ada")
        await plain_beats(server, client, 1)  # from now on the window delays all further reads
        seen, before = session.last_seen, server.engine.statistics()
        for record in records:
            await client.stream.send_all(record)
        await trio.sleep(0.05)
        assert session.last_seen == seen
        assert session.transport is not None
        assert session.transport.poll_now(session.handle)
        after = server.engine.statistics()
        packets_read = after.other_packets - before.other_packets
        packets_read += after.keepalives - before.keepalives
        assert packets_read == b"".join(records).count(b"\x00\x00\x00")


@pytest.mark.parametrize("record", [64, 1])
async def test_a_packet_in_small_tls_records_is_found_before_its_session_ends(record: int) -> None:
    """All that has arrived counts, even if most of it is TLS overhead."""
    async with serving("tls", window_s=60.0) as server:
        client = await server.logged_in()
        await client.beat()  # its latency class is now batched: later packets stay unread
        session = server.session("ada")
        packet = protocol.encode(protocol.message("bob", "x" * (16_000 if record > 1 else 900)))
        for start in range(0, len(packet), record):
            await client.stream.send_all(packet[start : start + record])
        session.last_seen = 0.0
        assert server.transport.poll_now(session.handle)
        assert session.last_seen > 0


async def test_a_delayed_login_is_dated_from_its_arrival() -> None:
    async with serving("epoll") as server:
        sock = socket.create_connection(server.address)
        sock.sendall(protocol.encode(protocol.login("ada")))
        sent = server.clock.now()
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is meant to stall
        await server.until(lambda: len(server.registry))
        assert server.changes[0].at == pytest.approx(sent, abs=0.1)
        sock.close()


# Latency classes: how long a connection waits, by what it sends


@plain_and_secured
async def test_a_connection_that_becomes_quiet_moves_to_slower_classes_step_by_step(
    kind: TransportKind,
) -> None:
    async with serving(kind, window_s=0.03) as server:
        server.engine.request_handler = desk = NotingDesk()
        client = await server.logged_in()
        assert class_of(server) == LatencyClass.BATCHED
        await client.beat()
        await server.until(lambda: class_of(server) == LatencyClass.SHORT)
        await client.send(protocol.message("bob", "hello"))
        await server.until(lambda: desk.taken)
        assert class_of(server) == LatencyClass.IMMEDIATE, "even without an answer yet"
        for _ in range(DEMOTE_AFTER_KEEPALIVES - 1):
            await client.beat()
        assert class_of(server) == LatencyClass.IMMEDIATE
        await client.beat()
        assert class_of(server) == LatencyClass.SHORT
        await plain_beats(server, client, DEMOTE_AFTER_KEEPALIVES - 1)
        await client.beat()  # requests an answer, and so resets the class
        await plain_beats(server, client, DEMOTE_AFTER_KEEPALIVES - 1)
        assert class_of(server) == LatencyClass.SHORT
        await plain_beats(server, client, 2)
        assert class_of(server) == LatencyClass.BATCHED


async def test_a_guest_is_served_immediately_regardless_of_the_window() -> None:
    async with serving("epoll", window_s=60.0) as server:
        await (await server.logged_in()).beat()
        with trio.fail_after(2):
            await server.logged_in("bob")


async def test_a_change_of_class_loses_no_packet() -> None:
    async with serving("epoll", window_s=0.01) as server:
        client = await server.logged_in()
        answers = 0
        for number in range(200):
            await client.stream.send_all(KEEPALIVE)
            if number % 10 < 2:
                await client.send(protocol.keepalive(number))
                answers += 1
            if number % 50 == 0:
                await client.send(protocol.message("bob", "hello", id=1000 + number))
                answers += 1
            await trio.sleep(0.002)
        assert len({packet.id for packet in await client.take(answers)}) == answers

        def packets() -> int:
            statistics = server.engine.statistics()
            return statistics.other_packets + statistics.keepalives

        await server.until(lambda: packets() >= 1 + 200 + answers)
        assert packets() == 1 + 200 + answers


async def test_without_deadlines_the_loop_does_not_wake_up() -> None:
    async with serving("epoll") as server:
        await server.logged_in()
        deadlines = server.epoll._connections.deadlines
        await server.until(lambda: not deadlines)
        await trio.sleep(0.25)
        assert not deadlines.armed.is_set()
        guest = await server.connect()
        await guest.stream.send_all(b"\0")
        await server.until(deadlines.armed.is_set)


async def test_the_ends_of_many_sessions_are_queued_before_their_goodbyes_are_sent() -> None:
    async with serving("epoll", idle_timeout=0.5) as server:
        clients = await many(server, 300)
        await server.until(lambda: len(server.ends()) == 300)
        assert server.counted.closed < 300
        for client in clients:
            (goodbye,) = await client.rest()
            assert goodbye.payload["code"] == Code.IDLE_TIMEOUT
            client.close()
        await server.remain(0)


# Ends


async def test_a_hung_up_client_that_stays_is_closed_after_the_drain() -> None:
    async with serving("epoll") as server:
        client = await server.connect()
        began = trio.current_time()
        await client.stream.send_all(KEEPALIVE)
        assert [brief(each) for each in await client.rest()] == [(Kind.ERROR, None, Code.NOT_LOGGED_IN)]
        await server.remain(0)
        assert trio.current_time() - began < DRAIN_TIMEOUT_S + 0.5


async def test_the_kernel_is_not_asked_for_the_age_of_data_that_came_a_moment_ago() -> None:
    async with serving("epoll") as server:
        await server.logged_in()
        await trio.sleep(0.1)
        handle, now = server.session("ada").handle, server.clock.now()
        for since, is_asked in ((-math.inf, True), (now - 2 * KERNEL_ERROR_S, True), (now, False)):
            server.epoll._acceptor.admits_since = since
            assert (server.epoll.receive_queue_age_s(handle, now) > 0) is is_asked


async def test_a_logout_closes_the_connection_without_waiting_for_the_client() -> None:
    async with serving("epoll") as server:
        client = await server.logged_in()
        await client.send(protocol.logout(id=1))
        await server.remain(0)  # the client has not closed it yet
        assert [brief(each) for each in await client.rest()] == [(Kind.OK, 1, None)]


async def test_connections_in_the_accept_queue_are_served_in_turns_while_stopping() -> None:
    async with serving("epoll") as server:
        sockets = []
        for number in range(1000):  # without a checkpoint: all of them stay in the kernel's queue
            sock = socket.create_connection(server.address)
            sock.sendall(protocol.encode(protocol.login(f"user-{number}", id=number)))
            sockets.append(sock)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await server.transport.stop_accepting()
            nursery.cancel_scope.cancel()
        assert turns >= 1000 / MAX_ACCEPTS_PER_TURN
        for sock in sockets:
            sock.settimeout(2)
            assert protocol.decode(sock.recv(4096)[4:]).kind == Kind.OK
            sock.close()


async def test_the_end_of_the_transport_closes_every_descriptor() -> None:
    before = open_descriptors()
    async with serving("epoll") as server:
        await many(server, 5)
        assert open_descriptors() > before + 10
    assert open_descriptors() == before


# The user's limit of watches is reached: the kernel adds no descriptor to an epoll set


class FullSet:
    """An epoll set that refuses new descriptors while it is full."""

    def __init__(self, epoll: "select.epoll") -> None:
        self._epoll = epoll
        self.full = True

    def register(self, fd: int, mask: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._epoll.register(fd, mask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def fill(server: Harness, latency_class: int) -> FullSet:
    """Fill the set of that latency class."""
    sets: list[Any] = server.epoll._connections.sets
    full = sets[latency_class] = FullSet(sets[latency_class])
    return full


@pytest.mark.parametrize(
    ("kind", "latency_class"), [("epoll", LatencyClass.IMMEDIATE), ("tls", LatencyClass.HANDSHAKING)]
)
async def test_an_accepted_connection_that_cannot_be_watched_is_closed_and_others_follow(
    kind: TransportKind, latency_class: int
) -> None:
    async with serving(kind) as server:
        full = fill(server, latency_class)
        refused = await server.dial()
        assert await refused.all_bytes() == b""
        full.full = False
        await server.logged_in("next")
        assert server.counted.connections == 1


async def test_a_login_that_cannot_be_watched_ends_its_own_connection_only() -> None:
    async with serving("epoll", grace=0.2) as server:
        other = await server.logged_in("other")
        fill(server, LatencyClass.BATCHED)
        client = await server.connect()
        await client.send(protocol.login("ada"))
        assert await client.rest() == []
        await other.beat()
        assert server.counted.connections == 1
        await server.until(server.ends)
        assert server.history()[1:] == [("login", "ada", "login"), ("end", "ada", "server_error")]
