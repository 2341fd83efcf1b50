"""What is the epoll transport's own: one task for all, descriptors, bursts, and reads on demand."""

import gc
import os
import socket
import struct
import time

import pytest
import trio

import protocol
from presence.transports.accepting import ADMISSIONS_A_TURN
from presence.transports.epoll import EpollTransport
from presence.transports.limits import DRAIN_S
from protocol import Code, Kind
from tests.cells import brief
from tests.transports.harness import Client, Harness, serving

RESET = struct.pack("ii", 1, 0)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def errors_of(server: Harness) -> int:
    """Return how many accepts failed."""
    assert isinstance(server.transport, EpollTransport)
    return server.transport.statistics().accept_errors


async def many(server: Harness, count: int) -> list[Client]:
    clients = [await server.connect() for _ in range(count)]
    for number, client in enumerate(clients):
        await client.login(f"user-{number}")
    return clients


async def test_connections_need_no_tasks() -> None:
    async with serving("epoll") as server:
        await (await server.connect()).login("first")  # so the transport's own tasks run
        before = trio.lowlevel.current_statistics().tasks_living
        await many(server, 200)
        after = trio.lowlevel.current_statistics().tasks_living
        print(f"test_connections_need_no_tasks: {before} tasks with 1 connection, {after} with 201")
        assert server.transport.statistics().connections == 201
        assert after == before


async def test_a_burst_of_a_thousand_is_accepted() -> None:
    async with serving("epoll") as server:
        sockets = []
        began = trio.current_time()
        for number in range(1000):
            sock = socket.create_connection(server.address)
            sock.sendall(protocol.encode(protocol.login(f"user-{number}")))
            sockets.append(sock)
        await server.until(lambda: len(server.registry) == 1000)
        took = trio.current_time() - began
        print(f"test_a_burst_of_a_thousand_is_accepted: all logged in after {took:.2f} s")
        assert errors_of(server) == 0
        for sock in sockets:
            sock.close()


async def cycle(server: Harness, count: int) -> None:
    """Connect and close: silent, after a login, after what is refused; with FIN and with RST."""
    done = server.transport.statistics().closed + count
    for number in range(count):
        sock = socket.create_connection(server.address)
        if number % 4 == 1:
            sock.sendall(protocol.encode(protocol.login("ada")))
        elif number % 4 == 2:
            sock.sendall(b"\xff\xff\xff\xff")
        if number % 3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()
    await server.until(lambda: server.transport.statistics().closed == done)


async def test_cycles_leave_nothing_behind() -> None:
    batch, batches = 250, 40
    async with serving("epoll", grace=0.0) as server:
        transport = server.transport
        assert isinstance(transport, EpollTransport)
        await cycle(server, 1)
        gc.collect()  # what earlier tests have left
        before = open_descriptors()
        for _ in range(batches):
            await cycle(server, batch)
        after = open_descriptors()
        print(
            f"test_cycles_leave_nothing_behind: {batch * batches} cycles, {server.core.statistics().logins} "
            f"logins, descriptors {before} before, {after} after"
        )
        assert after == before
        assert transport.statistics().connections == transport.statistics().unsent_connections == 0
        assert not any(transport._connections.occupants)
        assert len(transport._connections.deadlines) == 0
        assert len(server.registry) == 0


# Reads on demand


async def test_look_finds_a_packet_that_waits_in_the_socket() -> None:
    async with serving("epoll", window_s=60.0) as server:
        (client,) = await many(server, 1)
        session = server.session("user-0")
        seen = session.last_seen
        await client.stream.send_all(protocol.KEEPALIVE)
        await server.until(lambda: session.last_seen > seen)  # from now on the window keeps it waiting
        seen = session.last_seen
        await client.stream.send_all(protocol.KEEPALIVE)
        await trio.sleep(0.05)
        assert session.last_seen == seen
        assert session.link is not None
        assert session.link.look(session.handle)
        assert session.last_seen > seen


async def test_a_login_that_waited_is_dated_from_its_arrival() -> None:
    async with serving("epoll") as server:
        sock = socket.create_connection(server.address)
        sock.sendall(protocol.encode(protocol.login("ada")))
        sent = server.clock.now()
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is meant to stall
        await server.until(lambda: len(server.registry))
        assert server.changes[0].at == pytest.approx(sent, abs=0.1)
        sock.close()


async def test_a_guest_is_served_at_once_whatever_the_window() -> None:
    async with serving("epoll", window_s=60.0) as server:
        first = await server.connect()
        await first.login("ada")
        await first.beat()
        second = await server.connect()
        with trio.fail_after(2):
            await second.login("bob")


# Ends


async def test_a_hung_up_client_that_stays_is_closed_after_the_drain() -> None:
    async with serving("epoll") as server:
        client = await server.connect()
        began = trio.current_time()
        await client.stream.send_all(protocol.KEEPALIVE)
        assert [brief(each) for each in await client.rest()] == [(Kind.ERROR, None, Code.NOT_LOGGED_IN)]
        await server.until(lambda: server.transport.statistics().connections == 0)
        assert trio.current_time() - began < DRAIN_S + 0.5


async def test_stopping_closes_the_listeners_and_keeps_connections() -> None:
    async with serving("epoll") as server:
        (client,) = await many(server, 1)
        await server.transport.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            await server.connect()
        await client.beat()


async def test_stopping_takes_in_who_waits_already() -> None:
    async with serving("epoll") as server:
        sockets = []
        for number in range(50):  # without a turn for the server: all of them wait in the kernel's queue
            sock = socket.create_connection(server.address)
            sock.sendall(protocol.encode(protocol.login(f"user-{number}", id=number)))
            sockets.append(sock)
        await server.transport.stop_accepting()
        for sock in sockets:
            sock.settimeout(2)
            assert protocol.decode(sock.recv(4096)[4:]).kind == Kind.OK
            sock.close()


async def test_stopping_takes_in_a_crowd_by_turns() -> None:
    async with serving("epoll") as server:
        sockets = [socket.create_connection(server.address) for _ in range(1000)]
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
        assert server.transport.statistics().accepted == 1000
        assert turns >= 1000 / ADMISSIONS_A_TURN / 2
        for sock in sockets:
            sock.close()


async def test_the_end_of_the_transport_closes_every_descriptor() -> None:
    before = open_descriptors()
    async with serving("epoll") as server:
        await many(server, 5)
        assert open_descriptors() > before + 10
    assert open_descriptors() == before


# Out of descriptors
