"""Refusals are read, and a handler's failure ends one connection only, on either transport."""

import socket

import pytest
import structlog
import trio

import protocol
from presence.admission import AdmissionLimits
from presence.registry import Peer
from presence.session import Outcome, SessionProtocol
from presence.transports.connections import Connections
from presence.transports.limits import PACKETS_A_SLICE
from protocol import KEEPALIVE, Code, Kind
from tests.cells import brief
from tests.transports.harness import FAILING_WISH_S, Harness, TransportKind, both, every_kind, serving

BAD_FIRST_FRAME = protocol.KEEPALIVE


async def refusals_read(server: Harness, times: int) -> int:
    """Connect, send what is refused and more of it behind; return how often the refusal was read."""
    read = 0
    for _ in range(times):
        client = await server.connect()
        try:
            await client.stream.send_all(BAD_FIRST_FRAME + b"x" * 20_000)  # more than one read takes
            await client.stream.send_all(b"y" * 20_000)
            answers = [brief(each) for each in await client.rest()]
            read += answers == [(Kind.ERROR, None, Code.NOT_LOGGED_IN)]
        except trio.BrokenResourceError:
            pass
        await client.stream.aclose()
    return read


@every_kind
async def test_a_refusal_is_read_although_input_was_in_flight(kind: TransportKind) -> None:
    times = 200
    async with serving(kind) as server:
        read = await refusals_read(server, times)
    print(f"test_a_refusal_is_read_although_input_was_in_flight[{kind}]: {read / times:.2%} of {times}")
    assert read >= 0.999 * times


async def test_a_close_without_draining_would_lose_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def close_at_once(connections: Connections, fd: int, closing: object) -> None:
        connections.close(fd)

    monkeypatch.setattr(Connections, "_shut", close_at_once)
    async with serving("epoll") as server:
        assert await refusals_read(server, 100) < 99


@both
async def test_a_connection_too_many_is_told_when_to_return(kind: TransportKind) -> None:
    async with serving(kind, admission=AdmissionLimits(max_connections=1)) as server:
        first = await server.connect()
        await first.login("ada")
        second = await server.connect()
        await second.send(protocol.login("bob"))
        (refusal,) = await second.rest()
        assert (refusal.kind, refusal.payload["code"]) == (Kind.ERROR, Code.BUSY)
        assert refusal.payload["retry_after"] >= 1
        await first.beat()
        assert server.core.statistics().refused == {"busy": 1}


@both
async def test_those_who_are_told_that_they_are_too_many_have_a_bound(kind: TransportKind) -> None:
    limits = AdmissionLimits(max_connections=1, turned_away=4)
    async with serving(kind, admission=limits) as server:
        first = await server.connect()
        await first.login("ada")
        others = [socket.create_connection(server.address) for _ in range(40)]  # none of which closes
        open_at_once = 0
        with trio.move_on_after(0.3):
            while True:
                open_at_once = max(open_at_once, server.transport.statistics().connections)
                await trio.lowlevel.checkpoint()
        assert open_at_once == 5
        await first.beat()
        for other in others:
            other.close()
        await server.until(lambda: server.transport.statistics().connections == 1)


@pytest.mark.parametrize(
    ("kind", "what"),
    [("epoll", "accept"), ("stream", "accept"), ("epoll", "login"), ("stream", "login"), ("tls", "login")],
)
async def test_a_burst_beyond_its_bound_is_sent_away_and_comes_back_spread(
    kind: TransportKind, what: str
) -> None:
    bounds = (
        AdmissionLimits(accept_rate=2, accept_burst=20)
        if what == "accept"
        else AdmissionLimits(login_rate=2, login_burst=20)
    )
    async with serving(kind, admission=bounds) as server:
        clients = [await server.connect() for _ in range(60)]
        for number, client in enumerate(clients):
            await client.send(protocol.login(f"user-{number}"))
        answers = [await client.receive() for client in clients]
        granted = [each for each in answers if each is not None and each.kind == Kind.OK]
        refused = [each.payload for each in answers if each is not None and each.kind == Kind.ERROR]
        assert len(granted) + len(refused) == 60
        assert 20 <= len(granted) <= 35
        assert {each["code"] for each in refused} == {Code.BUSY}
        waits = sorted(each["retry_after"] for each in refused)
        assert waits[0] >= 1
        assert len(set(waits)) > 15
        assert 12 < waits[-1] < 60, "40 at 2 a second, spread over twice the time"
        assert server.core.statistics().refused == {"busy": len(refused)}


@every_kind
@pytest.mark.parametrize("when", ["login", "session", "later slice"])
async def test_a_handler_that_raises_ends_its_connection_only(
    kind: TransportKind, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(kind) as server:
        others = [await server.connect() for _ in range(20)]
        for number, other in enumerate(others):
            await other.login(f"user-{number}")
        victim = await server.connect()
        if when == "login":
            bad = protocol.login("ada", idle_timeout=FAILING_WISH_S)
        else:
            bad = protocol.message("bob", "boo")
            await victim.login("ada")
            receive = SessionProtocol.receive

            def poisoned(rules: SessionProtocol, peer: Peer, data: bytes, now: float, most: int) -> Outcome:
                if b"boo" in data or (when == "later slice" and not data):
                    raise ZeroDivisionError
                return receive(rules, peer, data, now, most)

            monkeypatch.setattr(SessionProtocol, "receive", poisoned)
        with structlog.testing.capture_logs() as logs:
            if when == "later slice":
                await victim.stream.send_all(KEEPALIVE * (3 * PACKETS_A_SLICE))
            else:
                await victim.send(bad)
            assert [brief(each) for each in await victim.rest()] == [(Kind.GOODBYE, None, Code.SERVER_ERROR)]
        assert [each["event"] for each in logs] == ["connection_failed"]
        assert server.transport.statistics().failures == 1
        assert when == "login" or server.session("ada").link is None, "in its grace"
        for other in others:
            await other.beat()
        lost = sum(1 for number in range(20) if server.registry.get(f"user-{number}") is None)
        print(f"test_a_handler_that_raises_ends_its_connection_only[{kind}-{when}]: others lost {lost}")
        assert lost == 0
