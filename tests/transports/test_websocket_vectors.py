"""The test vectors, sent over both subprotocols of WebSocket: the server reacts as it does over TCP."""

from collections import Counter

import msgpack
import pytest
import trio

from presence import protocol
from presence.protocol import (
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    HEADER_BYTES,
    Packet,
)
from presence.transports.websocket import MAX_MESSAGE_BYTES
from presence.transports.websocket_text import to_frame, to_text
from tests.protocol.vectors import BAD, GOOD
from tests.support.websocket_client import WebSocketStream
from tests.transports.harness import PATIENCE_S, Client, Harness, serving

SUBPROTOCOLS = ("presence.v1", "presence.v1.json")
LAST = 4_000_000  # the id of the keepalive behind each vector
HTTP = b"GET "  # over TCP this vector has an answer in HTTP
LOGIN = protocol.encode(protocol.login("ada", id=1))


def as_json(frame: bytes) -> str | None:
    """Return the packet of a frame as JSON; None if there is none, as for malformed MessagePack."""
    body = frame[HEADER_BYTES:]
    if int.from_bytes(frame[:HEADER_BYTES], "big") != len(body):
        return None
    try:
        text = to_text(body)
        again = to_frame(text)[HEADER_BYTES:]
        is_exact = repr(msgpack.unpackb(again)) == repr(msgpack.unpackb(body))
        return text if is_exact and len(text) <= MAX_MESSAGE_BYTES else None
    except Exception:  # any: of MessagePack, or of values that JSON lacks
        return None


async def send(client: Client, frame: bytes) -> None:
    stream = client.stream
    if isinstance(stream, WebSocketStream) and stream.subprotocol != "presence.v1":
        await stream.send_text(as_json(frame) or "")
    else:
        await stream.send_all(frame)


async def received(client: Client) -> Packet | None:
    stream = client.stream
    if isinstance(stream, WebSocketStream) and stream.subprotocol != "presence.v1":
        text = await stream.receive_text()
        return protocol.decode(to_frame(text)[HEADER_BYTES:]) if text else None
    return await client.receive()


async def reaction(server: Harness, frame: bytes, *, logs_in: bool, subprotocol: str = "") -> list[Packet]:
    """Return the answers to a frame up to that to a keepalive behind it, or to the end of the connection."""
    client = await server.connect(subprotocol=subprotocol)
    for each in (*([LOGIN] if logs_in else []), frame, protocol.encode(protocol.keepalive(LAST))):
        try:
            await send(client, each)
        except trio.BrokenResourceError:  # it has ended
            break
    answers = []
    with trio.fail_after(PATIENCE_S):
        while (packet := await received(client)) is not None:
            payload = {
                key: value for key, value in packet.payload.items() if key not in {"session", "time_ms"}
            }
            answers.append(packet._replace(payload=payload))
            if packet.id == LAST:
                break
    client.close()
    return answers


@pytest.mark.parametrize("logs_in", [True, False], ids=["logged in", "not logged in"])
async def test_every_vector_has_the_reaction_that_it_has_over_tcp(logs_in: bool) -> None:
    compared, ended = Counter[str](), Counter[str]()
    limits = [FRAME_LIMIT_BYTES] if logs_in else [FRAME_LIMIT_BEFORE_LOGIN_BYTES, FRAME_LIMIT_BYTES]
    async with serving("epoll", grace=0) as tcp, serving("ws", grace=0) as websocket:
        for name, frame, limit_bytes in [each[:3] for each in GOOD] + [each[:3] for each in BAD]:
            if limit_bytes not in limits or len(frame) > HEADER_BYTES + limits[0] or frame.startswith(HTTP):
                continue
            expected = await reaction(tcp, frame, logs_in=logs_in)
            for subprotocol in SUBPROTOCOLS if as_json(frame) is not None else SUBPROTOCOLS[:1]:
                found = await reaction(websocket, frame, logs_in=logs_in, subprotocol=subprotocol)
                assert found == expected, (name, subprotocol)
                compared[subprotocol] += 1
                ended[subprotocol] += not expected or expected[-1].id != LAST
    assert all(compared[each] > 100 and ended[each] > 20 for each in SUBPROTOCOLS)
    assert websocket.counted.failures == tcp.counted.failures == 0
