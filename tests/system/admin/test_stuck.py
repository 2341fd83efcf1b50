"""A viewer who takes nothing, over a real socket: he is closed, and the others see what they saw."""

import contextlib
import itertools
import json
import socket

import pytest
import trio

from presence.admin import sampler
from presence.admin.http import serve_http
from presence.embedded import EmbeddedRedis
from tests.admin.asking import Operators, operators, until

WRITE_S = 1.5
GET = b"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
FILLING = "x" * 20_000  # a larger picture, so that what the kernel keeps for a viewer is full soon


async def pictures(stream: trio.SocketStream) -> list[int]:
    """Take what comes until somebody closes the stream; return the moments of the pictures."""
    found, rest = [], b""
    with contextlib.suppress(trio.BrokenResourceError):
        async for piece in stream:
            rest += piece
            while b"\n\n" in rest:
                text, _, rest = rest.partition(b"\n\n")
                if b"event: sample\ndata: " in text:
                    found.append(moment(text))
    return found


def moment(text: bytes) -> int:
    data = text.partition(b"data: ")[2].split(b"\r\n")[0]
    return int(json.JSONDecoder().raw_decode(data.decode())[0]["at_ms"])


def stuck_client(port: int) -> socket.socket:
    """Somebody who asks, and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(GET)
    return client


async def test_a_stuck_viewer_is_closed_and_others_are_not_disturbed(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "SAMPLE_S", 0.02)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    stop = trio.Event()
    async with operators(redis_server.url) as running, trio.open_nursery() as nursery:
        enlarge(running)
        figures = running.context.http

        async def serve() -> None:
            await serve_http(running.app.asgi, [listener], figures, stop, write_s=WRITE_S)

        nursery.start_soon(serve)
        seen: list[int] = []
        stuck = await trio.to_thread.run_sync(stuck_client, port)
        other = await trio.open_tcp_stream("127.0.0.1", port)

        async def look() -> None:
            seen.extend(await pictures(other))

        with stuck:
            async with other:
                await other.send_all(GET)
                async with trio.open_nursery() as looking:
                    looking.start_soon(look)
                    await until(lambda: figures.viewers["live"] == 2)
                    begun = trio.current_time()
                    await until(lambda: figures.viewers["live"] == 1)
                    closed_s = trio.current_time() - begun
                    assert figures.refusals["slow_viewer"] == 1
                    await trio.sleep(0.5)
                    stop.set()
    apart_ms = max(later - earlier for earlier, later in itertools.pairwise(seen))
    print(f"closed after {closed_s:.1f} s; the other had {len(seen)} pictures, {apart_ms} ms apart at most")
    assert len(seen) > 10
    assert apart_ms < 1000 * WRITE_S


def enlarge(running: Operators) -> None:
    said = running.samples[0]
    assert said is not None
    running.samples[0] = {**said, "node": FILLING}
