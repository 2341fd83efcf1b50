"""WebSocket connections of the epoll transport: over TCP and TLS, slow heads, floods, ends on both sides."""

import json
from contextlib import suppress

import pytest
import trio
from websockets.frames import Frame, Opcode

from presence import protocol
from presence.core.admission import AdmissionLimits, PacketRate
from presence.protocol import KEEPALIVE, Code, Kind
from presence.transports.limits import MAX_GUEST_FRAMES, Limits
from presence.transports.websocket_head import MAX_HEAD_BYTES
from tests.support.websocket_client import WebSocketStream, masked
from tests.transports.harness import PATIENCE_S, Client, Harness, TransportKind, serving

websockets = pytest.mark.parametrize("kind", ["ws", "wss", "ws stream", "wss stream"])


def stream_of(client: Client) -> WebSocketStream:
    assert isinstance(client.stream, WebSocketStream)
    return client.stream


async def speaking_json(server: Harness) -> WebSocketStream:
    stream = stream_of(await server.connect(subprotocol="presence.v1.json"))
    await stream.send_text('[1,1,{"uid":"bob"}]')
    assert json.loads(await stream.receive_text())[:2] == [64, 1]
    return stream


@websockets
async def test_a_session_over_websocket(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        await client.beat()
        await client.send(protocol.keepalive(), protocol.keepalive(2), protocol.logout(id=3))
        assert [packet.id for packet in await client.rest()] == [2, 3]
        assert (close := stream_of(client).close) is not None
        assert close.code == 1000
        await server.remain(0)
        assert server.history() == [("login", "ada", "login"), ("end", "ada", "logout")]
        # The stream transport counts these down when it has closed the stream, a moment later.
        await server.until(
            lambda: server.counted.websocket_connections == server.counted.tls_connections == 0
        )


@websockets
async def test_a_session_in_json(kind: TransportKind) -> None:
    async with serving(kind) as server:
        stream = await speaking_json(server)
        await stream.send_text("[3]")
        await stream.send_text("[3, 9]")
        assert await stream.receive_text() == "[64,9]"
        await stream.send_text("[4,10]")
        assert await stream.receive_text() == "[64,10]"
        assert await stream.receive_text() == ""


@websockets
async def test_a_closed_tab_is_a_lost_connection(kind: TransportKind) -> None:
    async with serving(kind, grace=0.1) as server:
        client = await server.logged_in()
        await stream_of(client).send_frame(Frame(Opcode.CLOSE, (1001).to_bytes(2, "big")))
        assert await client.rest() == []
        await server.until(lambda: len(server.changes) == 2)
        assert server.history()[-1] == ("end", "ada", "closed")


@websockets
async def test_input_before_a_close_in_the_same_segment_counts(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        login = masked(2, protocol.encode(protocol.login("ada", id=1)))
        await stream_of(client).transport_stream.send_all(login + masked(8, b""))
        await client.rest()
        await server.until(lambda: server.changes)
        assert server.history() == [("login", "ada", "login")]
        await server.remain(0)


@websockets
async def test_a_violation_is_a_goodbye_and_a_close_code(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        await stream_of(client).transport_stream.send_all(masked(2, KEEPALIVE) + masked(3, b""))
        goodbye = (await client.rest())[-1]
        assert (goodbye.kind, goodbye.payload["code"]) == (Kind.GOODBYE, Code.PROTOCOL_ERROR)
        assert (close := stream_of(client).close) is not None
        assert close.code == 1002
        assert server.history()[-1] == ("end", "ada", "protocol_error")
        assert server.counted.failures == 0


async def test_before_the_login_a_violation_is_an_error() -> None:
    async with serving("ws") as server:
        client = await server.connect()
        await stream_of(client).transport_stream.send_all(masked(3, b""))
        error = (await client.rest())[-1]
        assert (error.kind, error.payload["code"]) == (Kind.ERROR, Code.PROTOCOL_ERROR)


@websockets
async def test_a_bad_packet_closes_with_its_code(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        await client.stream.send_all(b"\0\0\0\0")
        assert (await client.rest())[-1].payload["code"] == Code.PROTOCOL_ERROR
        assert (close := stream_of(client).close) is not None
        assert (close.code, close.reason) == (4310, "protocol_error")


async def test_a_silent_session_expires_with_a_close_code() -> None:
    async with serving("ws", idle_timeout=0.5) as server:
        client = await server.logged_in()
        assert (await client.rest())[-1].payload["code"] == Code.IDLE_TIMEOUT
        assert (close := stream_of(client).close) is not None
        assert close.code == 4201


async def test_pings_are_answered_and_are_no_activity() -> None:
    async with serving("ws", idle_timeout=0.5) as server:
        client = await server.logged_in()
        stream = stream_of(client)
        async with trio.open_nursery() as nursery:

            async def ping() -> None:
                with suppress(trio.BrokenResourceError):  # the server has closed the connection
                    while True:
                        await stream.send_frame(Frame(Opcode.PING, b"here"))
                        await trio.sleep(0.05)

            nursery.start_soon(ping)
            seen = await stream.receive_frames()
            assert (seen[0].opcode, bytes(seen[0].data)) == (Opcode.PONG, b"here")
            with trio.fail_after(PATIENCE_S):
                while await stream.receive_frames():
                    pass
            nursery.cancel_scope.cancel()
        assert server.history()[-1] == ("end", "ada", "idle_timeout")


@websockets
async def test_a_flood_of_pings_is_cut_off_as_one_of_packets(kind: TransportKind) -> None:
    async with serving(kind, packet_rate=PacketRate(10, 100)) as server:
        client = await server.logged_in()
        await stream_of(client).transport_stream.send_all(120 * masked(9, b""))
        with trio.fail_after(PATIENCE_S):
            while await stream_of(client).receive_frames():
                pass
        assert (close := stream_of(client).close) is not None
        assert close.code == 4311
        assert server.engine.statistics().refused == {"rate_limited": 1}


@websockets
async def test_frames_before_the_login_are_few(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.connect()
        await stream_of(client).transport_stream.send_all((MAX_GUEST_FRAMES + 1) * masked(10, b""))
        assert (await client.rest())[-1].payload["code"] == Code.PROTOCOL_ERROR
        await server.remain(0)


@websockets
async def test_many_small_messages_in_one_segment_are_all_handled(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        asked = b"".join(masked(2, protocol.encode(protocol.keepalive(number))) for number in range(1100))
        assert len(asked) < 16_384
        await stream_of(client).transport_stream.send_all(asked)
        assert [packet.id for packet in await client.take(1100)] == list(range(1100))


@websockets
async def test_a_long_message_in_small_fragments(kind: TransportKind) -> None:
    async with serving(kind) as server:
        client = await server.logged_in()
        frame = protocol.encode(protocol.message("bob", bytes(16_000), id=5))
        parts = [frame[start : start + 100] for start in range(0, len(frame), 100)]
        wire = masked(2, b"", fin=False)
        wire += b"".join(masked(0, part, fin=part is parts[-1]) for part in parts)
        await stream_of(client).transport_stream.send_all(wire)
        assert (await client.take(1))[0].id == 5
        await client.beat()


async def test_a_trickled_head_does_not_extend_the_timeout() -> None:
    async with serving("ws", Limits(login_timeout=0.5)) as server, trio.open_nursery() as nursery:
        client = await server.dial()

        async def trickle() -> None:
            while True:
                await client.tcp.send_all(b"G")
                await trio.sleep(0.02)

        nursery.start_soon(trickle)
        answer = await client.tcp.receive_some(4096)
        nursery.cancel_scope.cancel()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert server.counted.login_timeouts == 1


async def test_a_login_timeout_counts_from_the_accept() -> None:
    async with serving("ws", Limits(login_timeout=0.5)) as server:
        client = await server.connect()
        assert (await client.rest())[-1].payload["code"] == Code.LOGIN_TIMEOUT
        assert (close := stream_of(client).close) is not None
        assert close.code == 4312


@pytest.mark.parametrize(
    ("sent", "answer", "cause"),
    [
        (
            b"GET / HTTP/1.1\r\nX: " + bytes(MAX_HEAD_BYTES),
            b"HTTP/1.1 431 ",
            "431",
        ),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426 ", "426"),
        (protocol.encode(protocol.login("ada")), b"this port is for WebSocket", "400"),
        (b"\x16\x03\x01\x00\x10", b"this port is for WebSocket", "400"),
    ],
    ids=["too long", "no upgrade", "a packet over TCP", "TLS"],
)
async def test_what_is_no_request_gets_an_answer_and_the_end(sent: bytes, answer: bytes, cause: str) -> None:
    async with serving("ws", Limits(login_timeout=60.0)) as server:
        client = await server.dial()
        await client.tcp.send_all(sent)
        assert answer in await client.all_bytes()
        client.close()
        await server.remain(0)
        assert server.counted.upgrades_refused == {cause: 1}
        assert server.counted.websocket_connections == 0


async def test_plain_http_on_a_port_for_tls_is_told_so() -> None:
    async with serving("wss") as server:
        client = await server.dial()
        await client.tcp.send_all(b"GET / HTTP/1.1\r\n\r\n")
        answer = await client.all_bytes()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"this port is for TLS" in answer


async def test_a_refused_connection_is_told_so_in_http() -> None:
    async with serving("ws", admission=AdmissionLimits(max_connections=1)) as server:
        first = await server.logged_in()
        second = await server.dial()
        answer = await second.all_bytes()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: " in answer
        second.close()
        await first.beat()


async def test_a_foreign_page_is_refused() -> None:
    async with serving("ws", origins=["https://example.com"]) as server:
        stream = WebSocketStream((await server.dial()).tcp)
        assert (await stream.shake("https://evil.example")).status_code == 403
        stream = WebSocketStream((await server.dial()).tcp)
        assert (await stream.shake("https://example.com")).status_code == 101


async def test_operators_see_the_transport() -> None:
    async with serving("wss") as server:
        await server.logged_in()
        assert server.epoll.connected(server.session("ada").handle).transport == "wss"
        assert server.counted.upgrades == server.counted.websocket_connections == 1
