"""Requests and what is sent without being asked for: order, slow readers, and connections that have gone."""

import os
from contextlib import suppress

import pytest
import trio

import protocol
from presence.registry import Session
from presence.requests import Message, Query, Request, Watch, grant
from presence.transports.connections import ATTENTIVE, PATIENT
from presence.transports.epoll import EpollTransport
from presence.transports.limits import Limits
from protocol import Code, Kind, Packet
from tests.cells import brief
from tests.desks import NotingDesk
from tests.transports.harness import Client, Harness, TransportKind, every_kind, serving
from tests.transports.test_slow_readers import queued

BIG = protocol.encode(protocol.deliver("bob", b"x" * 2000, 1))


def desk_of(server: Harness) -> NotingDesk:
    server.core.desk = desk = NotingDesk()
    return desk


def answer_at_once(session: Session, request: Request) -> None:
    grant(session, request.id, {"delivered": 1})


async def received(client: Client, count: int) -> list[Packet]:
    packets = []
    with trio.fail_after(10):
        for _ in range(count):
            packet = await client.receive()
            assert packet is not None
            packets.append(packet)
    return packets


def link_send(session: Session, data: bytes) -> None:
    assert session.link is not None
    session.link.send(session.handle, data)


def link_offer(session: Session, data: bytes) -> bool:
    assert session.link is not None
    return session.link.offer(session.handle, data)


@every_kind
async def test_an_answer_at_once_stays_behind_what_goes_before_it(kind: TransportKind) -> None:
    async with serving(kind) as server:
        desk_of(server).answer = answer_at_once
        client = await server.connect()
        await client.login("ada")
        await client.send(Packet(9, 1), protocol.query(["bob"], id=2), Packet(9, 3), protocol.keepalive(4))
        answers = [brief(each) for each in await received(client, 4)]
        # One read's own replies go before what the desk says to its requests.
        assert answers == [
            (Kind.ERROR, 1, Code.UNSUPPORTED),
            (Kind.ERROR, 3, Code.UNSUPPORTED),
            (Kind.OK, 4, None),
            (Kind.OK, 2, None),
        ]


@every_kind
async def test_a_login_and_a_watch_in_one_go_are_answered_in_order(kind: TransportKind) -> None:
    async with serving(kind) as server:
        desk = desk_of(server)
        desk.answer = answer_at_once
        client = await server.connect()
        await client.send(protocol.login("ada", id=1), protocol.watch(["bob"], id=2))
        assert [each.id for each in await received(client, 2)] == [1, 2]
        assert desk.requests == [Watch(2, ["bob"])]


@every_kind
async def test_an_answer_that_comes_later_reaches_the_connection(kind: TransportKind) -> None:
    async with serving(kind) as server:
        desk = desk_of(server)
        client = await server.connect()
        await client.login("ada")
        await client.send(protocol.query(["bob"], id=2))
        await server.until(lambda: desk.taken)
        await client.beat()
        grant(desk.taken[0][0], 2, {"presence": {}})
        assert [each.id for each in await received(client, 1)] == [2]


async def test_who_asks_is_served_at_once_though_no_answer_is_there_yet() -> None:
    async with serving("epoll", window_s=0.01) as server:
        desk = desk_of(server)
        client = await server.connect()
        await client.login("ada")
        transport = server.transport
        assert isinstance(transport, EpollTransport)
        fd = server.session("ada").handle
        assert transport._connections.pace[fd] == PATIENT
        await client.send(protocol.message("bob", "hello"))
        await server.until(lambda: desk.taken)
        assert transport._connections.pace[fd] == ATTENTIVE


# Connections that go


@every_kind
@pytest.mark.parametrize(
    "last", [protocol.encode(protocol.logout(id=9)), bytes(4)], ids=["logout", "mistake"]
)
async def test_what_was_said_before_the_end_is_handed_on_and_nobody_watches_after_it(
    kind: TransportKind, last: bytes
) -> None:
    async with serving(kind) as server:
        desk = desk_of(server)
        desk.answer = answer_at_once
        client = await server.connect()
        await client.login("ada")
        session = server.session("ada")
        requests = protocol.watch(["bob"], id=1), protocol.message("bob", "bye", id=2)
        await client.stream.send_all(b"".join(map(protocol.encode, requests)) + last)
        (answer,) = await client.rest()
        assert answer.id in (9, None), "the end's own; nobody is there for the others"
        assert desk.requests == [Message(2, "bob", "bye")]
        assert desk.gone == [session]


@every_kind
@pytest.mark.parametrize("end", ["close", "reset", "logout", "kick", "takeover"])
async def test_a_connection_leaves_once_however_it_ends(kind: TransportKind, end: str) -> None:
    async with serving(kind) as server:
        desk = desk_of(server)
        client = await server.connect()
        await client.login("ada")
        session = server.session("ada")
        if end == "close":
            client.close()
        elif end == "reset":
            client.reset()
        elif end == "logout":
            await client.send(protocol.logout())
        elif end == "kick":
            server.core.endings.kick("ada", server.registry.session_id(session))
        else:
            await (await server.connect()).login("ada")
        await server.until(lambda: desk.gone)
        client.close()
        await trio.sleep(0.05)
        assert desk.gone == [session]


@every_kind
async def test_a_mistake_of_the_desk_ends_that_connection_and_no_other(kind: TransportKind) -> None:
    async with serving(kind) as server:
        desk = desk_of(server)

        def fail(session: Session, request: Request) -> None:
            raise RuntimeError("a mistake of ours")

        desk.answer = fail
        unlucky, other = await server.connect(), await server.connect()
        await unlucky.login("ada")
        await other.login("bob")
        await unlucky.send(protocol.query(["bob"], id=1))
        assert [brief(each) for each in await unlucky.rest()] == [(Kind.GOODBYE, None, Code.SERVER_ERROR)]
        await other.beat()
        assert server.transport.statistics().failures == 1
        assert [each.uid for each in desk.gone] == ["ada"]


@every_kind
async def test_a_mistake_while_waiting_bytes_are_flushed_ends_that_connection_only(
    kind: TransportKind,
) -> None:
    async with serving(kind, Limits(unsent_bytes=1_000_000), send_buffer=4096) as server:
        desk = desk_of(server)
        unlucky, other = await server.connect(receive_buffer=4096), await server.connect()
        await unlucky.login("ada")
        await other.login("bob")
        await fill(server, server.session("ada"))

        def fail(session: Session) -> None:
            raise RuntimeError("a mistake of ours")

        desk.refill = fail
        with suppress(trio.BrokenResourceError):
            await unlucky.rest()
        await other.beat()
        assert server.transport.statistics().failures == 1
        assert server.session("ada").link is None


# Slow readers


async def fill(server: Harness, session: Session) -> None:
    """Send until bytes wait in the server."""
    with trio.fail_after(10):
        while not queued(server):
            link_send(session, BIG)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()


@every_kind
async def test_an_offer_is_refused_while_bytes_wait_and_welcome_when_they_are_gone(
    kind: TransportKind,
) -> None:
    async with serving(kind, Limits(unsent_bytes=1_000_000), send_buffer=4096) as server:
        desk = desk_of(server)
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        session = server.session("ada")
        await fill(server, session)
        desk.drains.clear()
        before = queued(server)
        assert not link_offer(session, BIG)
        assert queued(server) == before
        mark = protocol.encode(protocol.deliver("bob", "the end", 2))
        desk.refill = lambda session: desk.drains[1:] or link_offer(session, mark)
        with trio.fail_after(10):
            while (packet := await client.receive()) is not None and packet.payload["body"] != "the end":
                pass
        assert set(desk.drains) == {session}


@every_kind
async def test_an_offer_to_a_reader_that_keeps_up_is_taken(kind: TransportKind) -> None:
    async with serving(kind) as server:
        desk_of(server)
        client = await server.connect()
        await client.login("ada")
        session = server.session("ada")
        await server.until(lambda: not queued(server))
        assert link_offer(session, BIG)
        assert [each.kind for each in await received(client, 1)] == [Kind.DELIVER]


@every_kind
async def test_what_is_sent_beyond_the_bound_cuts_the_reader_off_at_once(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=8192)
    async with serving(kind, limits, send_buffer=4096) as server:
        desk = desk_of(server)
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        session = server.session("ada")
        while session.link is not None:
            link_send(session, BIG)
            await trio.lowlevel.checkpoint()
        assert desk.gone == [session]
        assert server.core.sessions.get("ada") is session, "in its grace"
        assert server.transport.statistics().slow_readers == 1
        grant(session, 1, {})  # to nobody
        await server.until(lambda: server.transport.statistics().connections == 0)


@every_kind
async def test_a_reader_cut_off_while_it_is_answered_is_asked_for_nothing_more(kind: TransportKind) -> None:
    async with serving(kind, Limits(unsent_bytes=8192), send_buffer=4096) as server:
        desk = desk_of(server)

        def overwhelm(session: Session, request: Request) -> None:
            if session.link is not None:
                link_send(session, bytes(3_000_000))

        desk.answer = overwhelm
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        session = server.session("ada")
        await client.send(
            protocol.query(["bob"], id=1), protocol.watch(["bob"], id=2), protocol.message("bob", 1, id=3)
        )
        await server.until(lambda: len(desk.taken) == 2)
        assert desk.requests == [Query(1, ["bob"]), Message(3, "bob", 1)]
        assert desk.gone == [session]


@every_kind
async def test_one_large_answer_is_no_sign_of_a_slow_reader(kind: TransportKind) -> None:
    async with serving(kind, Limits(unsent_bytes=1024), send_buffer=4096) as server:
        desk_of(server)
        client = await server.connect(receive_buffer=4096)
        await client.login("ada")
        session = server.session("ada")
        large = {"raw": bytes(200_000)}
        grant(session, 2, large)
        assert queued(server) > 100_000
        grant(session, 3, {})  # and small ones beside it
        await client.send(protocol.keepalive(4))
        assert [each.id for each in await received(client, 3)] == [2, 3, 4]
        grant(session, 5, large)
        grant(session, 6, large)
        assert session.link is None, "two are"


async def test_a_reader_cut_off_in_the_middle_of_a_batch_that_its_beat_is_in_has_its_grace_only() -> None:
    async with serving("epoll", Limits(unsent_bytes=8192), window_s=60.0, grace=1.0) as server:
        desk = desk_of(server)
        transport = server.transport
        assert isinstance(transport, EpollTransport)
        slow, other = await server.connect(), await server.connect()
        await slow.login("slow")
        await other.login("other")
        sessions = server.session("slow"), server.session("other")
        desk.answer = lambda session, request: link_send(sessions[0], bytes(8_000_000))
        # Without a checkpoint, so that both are read in this batch.
        for client, data in ((slow, protocol.KEEPALIVE), (other, protocol.encode(protocol.query(["x"])))):
            assert isinstance(client.stream, trio.SocketStream)
            os.write(client.stream.socket.fileno(), data)
        before = transport.statistics().slow_readers
        transport._reading.serve([(each.handle, 1) for each in sessions], PATIENT)
        assert transport.statistics().slow_readers == before + 1
        await server.until(server.ends, 3.0)
        assert [each.uid for each in server.ends()] == ["slow"]
