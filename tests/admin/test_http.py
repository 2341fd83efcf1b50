"""HTTP for operators: slow, stuck or excess clients occupy a connection for a bounded time only."""

import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator

import pytest
import trio
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from presence.admin import http
from presence.admin.http_metrics import HttpMetrics
from tests.support.waiting import until

PATIENCE_S = 20.0
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
ENDLESS = b"GET /endless HTTP/1.1\r\nHost: h\r\n\r\n"


class Stage:
    """A server in this process, and its state.

    Attributes:
        metrics: its counters.
        stop: ends it.
        ended: how the application's streams ended.
        address: where it listens.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.metrics = HttpMetrics()
        self.stop = trio.Event()
        self.ended: list[str] = []
        self.address = address

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.address)

    async def until(self, *, least: int = 0, most: int = http.MAX_CONNECTIONS) -> None:
        """Wait until the number of connections is in this range."""
        await until(lambda: least <= self.metrics.connections <= most)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/wrong":
            raise RuntimeError("out of order")
        body = (await receive())["body"] or scope["path"].encode()
        if scope["path"] == "/slow":
            await trio.sleep(0.1)
        if scope["path"] == "/blind":
            await trio.sleep_forever()
        head: Message = {"type": "http.response.start", "status": 200, "headers": []}
        if scope["path"] != "/endless":
            head["headers"] = [(b"content-length", str(len(body)).encode())]
        await send(head)
        if scope["path"] == "/endless":
            await self._send_endlessly(receive, send)
        else:
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_endlessly(self, receive: Receive, send: Send) -> None:
        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.ended.append("gone")
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_gone)
            while True:
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})


@contextlib.asynccontextmanager
async def serving(write_s: float = http.WRITE_TIMEOUT_S) -> AsyncIterator[Stage]:
    """Serve in the background; the stage is stopped at the end, which must take little time."""
    listener = socket.create_server(("127.0.0.1", 0))
    stage = Stage(listener.getsockname())
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await http.serve_http(stage.app, [listener], stage.metrics, stage.stop, write_s=write_s)

        nursery.start_soon(run)
        yield stage
        stage.stop.set()
        nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S
    assert not nursery.cancel_scope.cancelled_caught


async def answer(stream: trio.SocketStream) -> bytes:
    """Read until the other side closes or resets."""
    found = b""
    with trio.fail_after(PATIENCE_S), contextlib.suppress(trio.BrokenResourceError):
        async for piece in stream:
            found += piece
    return found


async def response(stream: trio.SocketStream, request: bytes = GET) -> bytes:
    """Send a request; return the response, or only its head if it has no length."""
    await stream.send_all(request)
    found = b""
    with trio.fail_after(PATIENCE_S):
        while b"\r\n\r\n" not in found:
            found += await stream.receive_some(65_536)
        head, _, body = found.partition(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head)
        while size and len(body) < int(size[1]):
            body += await stream.receive_some(65_536)
    return head + b"\r\n\r\n" + body


async def test_a_client_gone_before_the_response_is_no_failure() -> None:
    with capture_logs() as lines:
        async with serving() as stage:
            for _ in range(30):
                async with await stage.connect() as stream:
                    await stream.send_all(GET)
            await trio.sleep(0.05)
            await stage.until(most=0)
    assert lines == []


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="no such option here")
def test_connections_inherit_the_timeout_for_silent_peers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        http._configure(listener)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            given_up_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert given_up_ms == http.WRITE_TIMEOUT_S * 1000


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.5)


async def test_a_connection_serves_several_requests_and_hides_the_server_software() -> None:
    async with serving() as stage, await stage.connect() as stream:
        for _ in range(3):
            response_bytes = await response(stream)
            assert response_bytes.startswith(b"HTTP/1.1 200")
            assert b"server:" not in response_bytes.lower()
        assert stage.metrics.connections == 1
        body = b"x" * http.MAX_BODY_BYTES
        head = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        await stream.send_all(head + body)
        assert (await answer(stream)).endswith(b"\r\n\r\n" + body), "the whole body reaches the application"


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with serving() as stage, await stage.connect() as stream:
        size = http.MAX_BODY_BYTES + 1
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
        await stream.send_all(b"x" * size)
        response_bytes = await answer(stream)
        assert response_bytes.startswith(b"HTTP/1.1 413")
        assert list(json.loads(response_bytes.partition(b"\r\n\r\n")[2])["error"]) == ["code", "message"]
        assert stage.metrics.refusals["body"] == 1
        await stage.until(most=0)


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("sent", [b"", b"GET", GET[:-2], GET])
async def test_an_incomplete_or_missing_request_is_closed(sent: bytes) -> None:
    async with serving() as stage, await stage.connect() as stream:
        if sent == GET:
            await response(stream)
        else:
            await stream.send_all(sent)
        assert await answer(stream) == b""
        await stage.until(most=0)


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(
    ("begin", "drip", "reply"),
    [
        (GET[:-2], b"X: y\r\n", b""),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n", b"x", b"HTTP/1.1 408"),
    ],
    ids=["head", "body"],
)
async def test_a_request_sent_byte_by_byte_times_out(begin: bytes, drip: bytes, reply: bytes) -> None:
    async with serving() as stage, await stage.connect() as stream, trio.open_nursery() as nursery:

        async def send() -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(begin)
                while True:
                    await stream.send_all(drip)
                    await trio.sleep(0.05)

        nursery.start_soon(send)
        assert (await answer(stream)).startswith(reply)
        await stage.until(most=0)
        assert stage.metrics.refusals["slow_request"] == bool(reply)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("more", [b"", 3 * GET], ids=["", "and pipelines more"])
async def test_a_viewer_who_reads_nothing_is_closed(more: bytes) -> None:
    """Pipelined requests stop the reading of a connection, so that its end would go unnoticed."""
    async with serving(write_s=0.3) as stage, await stage.connect() as stream:
        await stream.send_all(ENDLESS + more)
        await stage.until(least=1)
        await stage.until(most=0)
        assert stage.metrics.refusals["slow_viewer"] == 1
        assert stage.ended == ["gone"]


async def test_an_application_that_misses_a_disconnect_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "DISCONNECT_TIMEOUT_S", 0.1)
    async with serving() as stage:
        async with await stage.connect() as stream:
            await stream.send_all(b"GET /blind HTTP/1.1\r\nHost: h\r\n\r\n")
            await stage.until(least=1)
        await stage.until(most=0)


async def test_a_viewer_who_leaves_ends_the_stream_and_stuck_viewers_block_no_others() -> None:
    async with serving() as stage, contextlib.AsyncExitStack() as stuck:
        async with await stage.connect() as stream:
            await response(stream, ENDLESS)
        await stage.until(most=0)
        assert stage.ended == ["gone"]
        for _ in range(20):
            stream = await stuck.enter_async_context(await stage.connect())
            await stream.send_all(ENDLESS)
        async with await stage.connect() as other:
            assert (await response(other)).startswith(b"HTTP/1.1 200")


UPLOAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nx"


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", GET[:-2], UPLOAD], ids=["nothing", "a", "a head", "a body"]
)
async def test_clients_without_a_complete_request_keep_out_no_others(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    async with serving() as stage, contextlib.AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(await stage.connect()) for _ in range(3)]
        for each in idle:
            await each.send_all(sent)
        await stage.until(least=3)
        for _ in range(5):
            async with await stage.connect() as other:
                assert (await response(other)).startswith(b"HTTP/1.1 200")
        assert (await answer(idle[0])).startswith(b"HTTP/1.1 503" if sent == UPLOAD else b"")
        assert stage.metrics.refusals["connections"] >= 1
        await stage.until(most=3)


async def test_a_request_that_is_answered_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    async with serving() as stage, contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await stage.connect()) for _ in range(3)]
        for each in streams:
            assert await response(each, ENDLESS)
        async with await stage.connect() as fourth:
            assert await answer(fourth) == b""
        assert stage.metrics.refusals["connections"] == 1
        assert stage.ended == []
        await stack.aclose()
        await stage.until(most=0)
        async with await stage.connect() as later:
            assert await response(later)


async def test_the_address_with_most_idle_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    async with serving() as stage, contextlib.AsyncExitStack() as stack:

        async def connect(host: str) -> trio.SocketStream:
            stream = await trio.open_tcp_stream(*stage.address, local_address=host)
            assert await response(await stack.enter_async_context(stream))
            return stream

        quiet = await connect("127.0.0.2")
        for _ in range(6):
            await connect("127.0.0.1")
        assert (await response(quiet)).startswith(b"HTTP/1.1 200")
        assert stage.metrics.refusals["connections"] == 4


WEB_SOCKET = b"Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
HTTP_2 = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(
    "asks",
    [WEB_SOCKET, WEB_SOCKET + KEY + b"Sec-WebSocket-Version: 13\r\n", WEB_SOCKET + b"Upgrade: x\r\n", HTTP_2],
)
async def test_a_request_to_upgrade_is_answered_and_closed_like_others(asks: bytes) -> None:
    async with serving() as stage, await stage.connect() as stream:
        for number in range(2):
            found = await response(stream, b"GET /%d HTTP/1.1\r\nHost: h\r\n" % number + asks + b"\r\n")
            assert found.startswith(b"HTTP/1.1 200")
            assert found.endswith(b"/%d" % number)
        assert await answer(stream) == b""
        await stage.until(most=0)


JUNK = b"\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 40_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("junk", JUNK)
async def test_invalid_requests_are_refused(junk: bytes) -> None:
    async with serving() as stage, await stage.connect() as stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(junk)
        assert (await answer(stream))[:10] in {b"HTTP/1.1 4", b"HTTP/1.1 5", b""}
        await stage.until(most=0)


async def test_an_error_of_the_application_is_a_response_and_a_log_line() -> None:
    with capture_logs() as lines:
        async with serving() as stage, await stage.connect() as stream:
            wrong = b"GET /wrong HTTP/1.1\r\nHost: h\r\n\r\n"
            assert (await response(stream, wrong)).startswith(b"HTTP/1.1 500")
    assert [line["log_level"] for line in lines] == ["error"]


async def test_many_errors_of_the_application_are_one_log_line() -> None:
    with capture_logs() as lines:
        async with serving() as stage:
            for _ in range(10):
                async with await stage.connect() as stream:
                    wrong = b"GET /wrong HTTP/1.1\r\nHost: h\r\n\r\n"
                    assert (await response(stream, wrong)).startswith(b"HTTP/1.1 500")
    assert [line["event"] for line in lines] == ["admin response failed"]


async def test_head_has_no_body_and_expect_100_is_answered() -> None:
    async with serving() as stage, await stage.connect() as stream:
        await stream.send_all(b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n")
        head = await stream.receive_some(65_536)
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-length: 2" in head
        assert head.endswith(b"\r\n\r\n")
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert (await stream.receive_some(65_536)).startswith(b"HTTP/1.1 100")
        assert (await response(stream, b"ab")).endswith(b"\r\n\r\nab")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as stage, await stage.connect() as stream:
        asked = [b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in (1, 2)]
        await stream.send_all(b"".join(asked) + b"GET /3 HTTP/1.0\r\n\r\n")
        found = await answer(stream)
        assert re.findall(rb"\r\n\r\n(/\d)", found) == [b"/1", b"/2", b"/3"]


async def test_requests_in_progress_are_answered_at_the_end() -> None:
    async with serving() as stage, await stage.connect() as stream:
        await stream.send_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
        await stage.until(least=1)
        await trio.sleep(0.02)
        stage.stop.set()
        assert (await answer(stream)).endswith(b"slow")


async def test_stopping_takes_a_bounded_time() -> None:
    async with serving() as stage, contextlib.AsyncExitStack() as stack:
        for request in (b"", GET, ENDLESS, b"POST / HTTP/1.1\r\n"):
            stream = await stack.enter_async_context(await stage.connect())
            await stream.send_all(request)
        await stage.until(least=4)
        started = trio.current_time()
        stage.stop.set()
        await stage.until(most=0)
        assert trio.current_time() - started < http.STOP_GRACE_S + 2.0
