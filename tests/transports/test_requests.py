"""Requests and unsolicited packets: order, turns, slow readers, closed connections."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from presence import protocol
from presence.common.faults import Faults
from presence.core.admission import PacketRate
from presence.core.registry import Session
from presence.core.service_requests import MessageRequest, QueryRequest, Request, send_ok
from presence.protocol import KEEPALIVE, Code, Kind, Packet
from presence.transports.connection_states import LatencyClass
from presence.transports.limits import (
    DRAIN_TIMEOUT_S,
    MAX_PACKETS_PER_SLICE,
    MIN_PROGRESS_BYTES,
    READ_BYTES,
    Limits,
)
from presence.watching.push_queue import PushQueue
from presence.watching.user_table import UserTable
from presence.watching.watch_index import Watches
from tests.support.desks import NotingDesk
from tests.support.state_table import brief
from tests.transports.harness import PATIENCE_S, Client, Harness, TransportKind, every_kind, serving
from tests.watching.fakes import entry

BIG = protocol.encode(protocol.deliver("bob", b"x" * 2000, 1))
UNKNOWN = protocol.encode(Packet(9))
A_READ = READ_BYTES // len(UNKNOWN)


def answer_immediately(session: Session, request: Request) -> None:
    send_ok(session, request.id, {"delivered": 1})


def fail(*_: object) -> None:
    raise RuntimeError("a mistake of ours")


@asynccontextmanager
async def asking(
    kind: TransportKind, limits: Limits | None = None, *, is_slow: bool = False
) -> AsyncIterator[tuple[Harness, NotingDesk, Client, Session]]:
    """Serve one client, who is logged in; is_slow: small kernel buffers between the two."""
    few = 4096 if is_slow else 0
    async with serving(kind, limits, send_buffer=few) as server:
        server.engine.request_handler = desk = NotingDesk()
        client = await server.logged_in(receive_buffer=few)
        yield server, desk, client, server.session("ada")


def link_send(session: Session, data: bytes) -> None:
    assert session.transport is not None
    session.transport.send(session.handle, data)


def link_offer(session: Session, data: bytes) -> bool:
    assert session.transport is not None
    return session.transport.try_send(session.handle, data)


def queued(server: Harness, session: Session) -> int:
    """Return how many bytes are queued for a client."""
    return server.transport.connected(session.handle).unsent_bytes if session.transport is not None else 0


async def fill(server: Harness, session: Session) -> None:
    """Send until bytes are queued in the server."""
    with trio.fail_after(PATIENCE_S):
        while not queued(server, session):
            link_send(session, BIG)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()


# Order


@every_kind
async def test_an_immediate_answer_follows_earlier_replies(kind: TransportKind) -> None:
    async with asking(kind) as (_, desk, client, _):
        desk.answer = answer_immediately
        await client.send(Packet(9, 1), protocol.query(["bob"], id=2), Packet(9, 3), protocol.keepalive(4))
        answers = [brief(each) for each in await client.take(4)]
        # The replies of one read precede the handler's answers to its requests.
        assert answers == [
            (Kind.ERROR, 1, Code.UNSUPPORTED),
            (Kind.ERROR, 3, Code.UNSUPPORTED),
            (Kind.OK, 4, None),
            (Kind.OK, 2, None),
        ]


@every_kind
async def test_a_login_and_a_request_in_one_read_are_answered_in_order_even_if_one_is_later(
    kind: TransportKind,
) -> None:
    async with serving(kind) as server:
        server.engine.request_handler = desk = NotingDesk()
        client = await server.connect()
        await client.send(protocol.login("ada", id=1), protocol.query(["bob"], id=2))
        assert [each.id for each in await client.take(1)] == [1]
        await server.until(lambda: desk.taken)
        await client.beat()
        send_ok(server.session("ada"), 2, {"presence": {}})
        assert [each.id for each in await client.take(1)] == [2]


@every_kind
@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (protocol.keepalive(7), Kind.OK),
        (protocol.update(quiet=False, id=7), Kind.OK),
        (protocol.update(token="none", id=7), Kind.ERROR),
        (protocol.keepalive(), None),
    ],
    ids=["answered", "end of quiet", "refused", "unanswered"],
)
async def test_what_is_held_follows_the_answer(
    kind: TransportKind, packet: Packet, answer: Kind | None
) -> None:
    async with asking(kind) as (server, desk, client, session):
        watches, quiet = Watches(UserTable()), server.engine.quiet
        pushes = PushQueue(watches, Faults(), lambda _uid: None, quiet)
        desk.release_held = pushes.release  # type: ignore[method-assign]
        desk.refill = pushes.all_sent
        server.nursery.start_soon(pushes.run)
        watches.add(session, ["bob"])
        await client.send(protocol.update(quiet=True, id=1))
        assert [each.id for each in await client.take(1)] == [1]
        pushes.push(entry("bob", 3))
        await server.until(lambda: quiet.holding)
        await client.send(packet)
        expected = [Kind.PRESENCE] if answer is None else [answer, Kind.PRESENCE]
        assert [each.kind for each in await client.take(len(expected))] == expected


# Turns: many small packets in one read


@every_kind
async def test_a_client_is_not_delayed_by_others_that_send_many_packets(kind: TransportKind) -> None:
    async with serving(kind, Limits(unsent_bytes=10_000_000)) as server:
        bystander = await server.logged_in("bystander")
        flooders = [await server.logged_in(f"user-{number}") for number in range(3)]
        before = server.engine.statistics().other_packets
        for each in flooders:
            await each.stream.send_all(UNKNOWN * A_READ)
        await bystander.send(protocol.keepalive(1))
        assert await bystander.receive()
        heaps = len(flooders) * A_READ
        assert server.engine.statistics().other_packets - before < heaps / 2
        await server.until(lambda: server.engine.statistics().other_packets - before == heaps)


@every_kind
async def test_deferred_packets_are_handled_in_order_with_later_ones(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        ids = range(10 * MAX_PACKETS_PER_SLICE + 1)
        data = b"".join(protocol.encode(protocol.keepalive(id)) for id in ids)
        await client.stream.send_all(data[:-3])
        await client.stream.send_all(data[-3:] + protocol.encode(protocol.logout(id=1000)))
        assert [each.id for each in await client.rest()] == [*ids, 1000]
        assert [change.code for change in server.ends()] == [Code.LOGOUT]


async def test_a_session_with_deferred_packets_does_not_time_out() -> None:
    async with serving("epoll") as server:
        client = await server.logged_in()
        session = server.session("ada")
        # Without a checkpoint, so that nothing else reads or handles them.
        os.write(client.tcp.socket.fileno(), KEEPALIVE * (3 * MAX_PACKETS_PER_SLICE))
        for _ in range(2):
            session.last_seen = 0.0
            assert server.epoll.poll_now(session.handle)
            assert session.last_seen > 0
            assert session.unhandled, "more are deferred"
        await server.until(lambda: not session.unhandled)


async def test_a_flood_ends_a_few_packets_beyond_the_limit() -> None:
    burst = 5 * MAX_PACKETS_PER_SLICE
    async with serving("epoll", packet_rate=PacketRate(10, burst)) as server:
        client = await server.logged_in()
        before = server.engine.statistics().other_packets
        await client.stream.send_all(UNKNOWN * A_READ)
        *answers, goodbye = await client.rest()
        assert goodbye.payload["code"] == Code.RATE_LIMITED
        assert server.engine.statistics().other_packets - before <= burst + MAX_PACKETS_PER_SLICE
        assert len(answers) <= burst + MAX_PACKETS_PER_SLICE


# Connections that close


@every_kind
@pytest.mark.parametrize(
    "last", [protocol.encode(protocol.logout(id=9)), bytes(4)], ids=["logout", "mistake"]
)
async def test_requests_before_the_end_are_handled_and_watches_end_with_it(
    kind: TransportKind, last: bytes
) -> None:
    async with asking(kind) as (_, desk, client, session):
        desk.answer = answer_immediately
        requests = protocol.watch(["bob"], id=1), protocol.message("bob", "bye", id=2)
        await client.stream.send_all(b"".join(map(protocol.encode, requests)) + last)
        (answer,) = await client.rest()
        assert answer.id in (9, None), "the answer to the logout; the others have no recipient"
        assert desk.requests == [MessageRequest(2, "bob", "bye")]
        assert desk.gone == [session]


@every_kind
@pytest.mark.parametrize("end", ["close", "reset", "logout", "kick", "takeover"])
async def test_a_connection_is_reported_closed_once(kind: TransportKind, end: str) -> None:
    async with asking(kind) as (server, desk, client, session):
        if end == "close":
            client.close()
        elif end == "reset":
            client.reset()
        elif end == "logout":
            await client.send(protocol.logout())
        elif end == "kick":
            server.engine.terminator.kick("ada", server.registry.session_id(session))
        else:
            await server.logged_in()
        await server.until(lambda: desk.gone)
        client.close()
        await trio.sleep(0.05)
        assert desk.gone == [session]


@every_kind
async def test_an_error_of_the_handler_ends_its_own_connection_only(kind: TransportKind) -> None:
    async with asking(kind) as (server, desk, unlucky, session):
        desk.answer = fail
        other = await server.logged_in("bob")
        await unlucky.send(protocol.query(["bob"], id=1))
        assert [brief(each) for each in await unlucky.rest()] == [(Kind.GOODBYE, None, Code.SERVER_ERROR)]
        await other.beat()
        assert server.counted.failures == 1
        assert desk.gone == [session]


@every_kind
async def test_an_error_while_flushing_ends_its_own_connection_only(
    kind: TransportKind,
) -> None:
    async with asking(kind, Limits(unsent_bytes=1_000_000), is_slow=True) as (server, desk, unlucky, session):
        other = await server.logged_in("bob")
        await fill(server, session)
        desk.refill = fail
        with suppress(trio.BrokenResourceError):
            await unlucky.rest()
        await other.beat()
        assert server.counted.failures == 1
        assert session.transport is None


# Acknowledgements


def acknowledged(session: Session) -> tuple[int, int]:
    assert session.transport is not None
    found = session.transport.acknowledged_bytes(session.handle)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["epoll", "tls"])
async def test_bytes_are_acknowledged_when_the_other_kernel_has_them_and_not_while_they_are_queued(
    kind: TransportKind,
) -> None:
    async with asking(kind, Limits(unsent_bytes=1_000_000), is_slow=True) as (server, _, client, session):
        await server.until(lambda: acknowledged(session)[0] == acknowledged(session)[1])
        before = acknowledged(session)[0]
        link_send(session, BIG[:100])
        sent = acknowledged(session)[1] - before
        assert 100 <= sent <= 200, "over TLS in a record"
        await server.until(lambda: acknowledged(session)[0] == before + sent)
        await fill(server, session)
        acked, target = acknowledged(session)
        assert target - acked > queued(server, session) > 0
        assert acknowledged(session)[0] < target, "the client reads nothing, and its kernel has no room"
        with trio.fail_after(PATIENCE_S):
            while queued(server, session) or acknowledged(session)[0] < acknowledged(session)[1]:
                await client.stream.receive_some(4096)
        assert acknowledged(session)[0] == target


async def test_of_a_connection_that_was_reset_nothing_is_known() -> None:
    async with asking("epoll") as (server, _, client, session):
        await server.until(lambda: acknowledged(session)[0] == acknowledged(session)[1])
        transport, handle = session.transport, session.handle
        assert transport is not None
        client.reset()
        assert transport.acknowledged_bytes(handle) is None, "or what fails to be sent would seem to be there"


async def test_over_streams_acknowledgements_are_not_known() -> None:
    async with asking("stream") as (_, _, _, session):
        assert session.transport is not None
        assert session.transport.acknowledged_bytes(session.handle) is None


# Slow readers


@every_kind
async def test_try_send_is_refused_while_bytes_are_queued_and_accepted_afterwards(
    kind: TransportKind,
) -> None:
    async with asking(kind, Limits(unsent_bytes=1_000_000), is_slow=True) as (server, desk, client, session):
        await server.until(lambda: not queued(server, session))
        assert link_offer(session, BIG)
        await fill(server, session)
        desk.drains.clear()
        before = queued(server, session)
        assert not link_offer(session, BIG)
        assert queued(server, session) == before
        mark = protocol.encode(protocol.deliver("bob", "the end", 2))
        desk.refill = lambda session: desk.drains[1:] or link_offer(session, mark)
        with trio.fail_after(PATIENCE_S):
            while (packet := await client.receive()) is not None and packet.payload["body"] != "the end":
                pass
        assert set(desk.drains) == {session}


@every_kind
async def test_too_many_queued_bytes_cut_the_reader_off(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=8192, unsent_timeout=30.0)
    async with asking(kind, limits, is_slow=True) as (server, desk, client, session):
        with suppress(trio.BrokenResourceError), trio.fail_after(PATIENCE_S):
            while True:
                await client.send(*(Packet(9, number) for number in range(20)))
                assert queued(server, session) <= limits.unsent_bytes
                await trio.lowlevel.checkpoint()
        assert server.counted.slow_readers == 1
        assert desk.gone == [session]
        assert server.engine.registry.get("ada") is session, "within its grace: it may return"
        send_ok(session, 1, {})  # without a recipient
        await server.remain(0)


@every_kind
async def test_a_reader_cut_off_during_an_answer_gets_no_more_requests_handled(kind: TransportKind) -> None:
    async with asking(kind, Limits(unsent_bytes=8192), is_slow=True) as (server, desk, client, session):

        def overwhelm(session: Session, request: Request) -> None:
            if session.transport is not None:
                link_send(session, bytes(3_000_000))

        desk.answer = overwhelm
        await client.send(
            protocol.query(["bob"], id=1), protocol.watch(["bob"], id=2), protocol.message("bob", 1, id=3)
        )
        await server.until(lambda: len(desk.taken) == 2)
        assert desk.requests == [QueryRequest(1, ["bob"]), MessageRequest(3, "bob", 1)]
        assert desk.gone == [session]


@every_kind
async def test_one_large_answer_does_not_make_a_reader_slow(kind: TransportKind) -> None:
    async with asking(kind, Limits(unsent_bytes=1024), is_slow=True) as (server, _, client, session):
        large = {"raw": bytes(200_000)}
        send_ok(session, 2, large)
        assert queued(server, session) > 100_000
        send_ok(session, 3, {})  # and small ones after it
        await client.send(protocol.keepalive(4))
        first, *others = await client.take(3)
        assert first.payload["raw"] == large["raw"]
        assert [first.id, *(each.id for each in others)] == [2, 3, 4]
        send_ok(session, 5, large)
        send_ok(session, 6, large)
        assert session.transport is None, "two do"


@every_kind
async def test_a_slow_reader_is_cut_off_at_the_time_limit(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=1_000_000, unsent_timeout=0.3)
    async with asking(kind, limits, is_slow=True) as (server, _, client, session):
        await client.send(*(Packet(9, number) for number in range(1000)))
        await server.until(lambda: queued(server, session))
        await server.until(lambda: server.counted.slow_readers, 0.3 + 5.0)


@every_kind
async def test_a_reader_that_makes_progress_is_given_time(kind: TransportKind) -> None:
    limits = Limits(unsent_bytes=10_000_000, unsent_timeout=1.0)
    async with asking(kind, limits, is_slow=True) as (server, _, client, session):
        await client.send(*(Packet(9, number) for number in range(4000)))
        await server.until(lambda: queued(server, session) > 4 * MIN_PROGRESS_BYTES)
        started = trio.current_time()
        for number in range(4000):
            assert (await client.receive() or Packet(0)).id == number
            if number % 40 == 0:
                await trio.sleep(0.018)
        assert trio.current_time() - started > 1.5 * limits.unsent_timeout
        assert server.counted.slow_readers == 0


async def test_a_slow_reader_that_catches_up_gets_the_goodbye() -> None:
    async with asking("epoll", Limits(unsent_bytes=1_000_000), is_slow=True) as (server, _, client, session):
        await client.send(*(Packet(9, number) for number in range(1000)))
        await server.until(lambda: server.engine.statistics().other_packets >= 1000)
        goodbye = protocol.encode(protocol.goodbye(Code.SERVER_DRAIN))
        server.epoll._connections.begin_close(session.handle, goodbye)
        *answers, last = await client.rest()  # the goodbye may still be queued when all else is read
        assert len(answers) == 1000
        assert last.payload["code"] == Code.SERVER_DRAIN


async def test_a_slow_reader_that_sends_nothing_more_gets_the_goodbye_behind_what_is_unsent() -> None:
    async with asking("epoll", Limits(unsent_bytes=1_000_000), is_slow=True) as (server, _, client, session):
        await fill(server, session)
        server.transport.disconnect(session.handle, protocol.encode(protocol.goodbye(Code.SERVER_DRAIN)))
        await client.tcp.send_eof()
        await wait_all_tasks_blocked(0.01)  # the server has read the end, and waits
        *_, last = await client.rest()
        assert brief(last) == (Kind.GOODBYE, None, Code.SERVER_DRAIN)


async def test_a_reader_cut_off_within_the_batch_of_its_keepalive_gets_only_its_grace() -> None:
    async with serving("epoll", Limits(unsent_bytes=8192), window_s=60.0, grace=1.0) as server:
        server.engine.request_handler = desk = NotingDesk()
        slow, other = await server.logged_in("slow"), await server.logged_in("other")
        sessions = server.session("slow"), server.session("other")
        desk.answer = lambda session, request: link_send(sessions[0], bytes(8_000_000))
        # Without a checkpoint, so that both are read in this batch.
        for client, data in ((slow, KEEPALIVE), (other, protocol.encode(protocol.query(["x"])))):
            os.write(client.tcp.socket.fileno(), data)
        before = server.counted.slow_readers
        server.epoll._reader.serve([(each.handle, 1) for each in sessions], LatencyClass.BATCHED)
        assert server.counted.slow_readers == before + 1
        await server.until(server.ends, 3.0)
        assert [each.uid for each in server.ends()] == ["slow"]


# A connection that its own packets close


@pytest.mark.parametrize("kind", ["epoll", "tls"])
async def test_a_connection_closed_while_its_packets_are_handled_is_not_closed_again(
    kind: TransportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(kind, Limits(unsent_bytes=len(BIG)), is_slow=True) as (server, _, client, session):
        handle = server.engine._handle

        def send_too_much(*arguments: Any) -> None:
            while session.transport is not None:
                link_send(session, BIG)
            handle(*arguments)

        monkeypatch.setattr(server.engine, "_handle", send_too_much)
        await client.send(Packet(9, 1), protocol.logout(id=2))
        await server.until(lambda: session.transport is None)
        await trio.sleep(DRAIN_TIMEOUT_S + 0.2)  # until a second close would come
        assert (server.counted.connections, server.counted.closed) == (0, 1)


@pytest.mark.parametrize("kind", ["epoll", "tls"])
async def test_an_error_in_the_last_look_before_the_end_closes_that_connection_only(
    kind: TransportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(kind) as (server, _, _, session):
        other = await server.logged_in("bob")
        monkeypatch.setattr(server.epoll._reader, "poll", fail)
        assert server.epoll.poll_now(session.handle)
        assert session.transport is None
        await other.beat()
