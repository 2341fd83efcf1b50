"""``python -m tests.fuzz.websocket --inputs N``: mutated requests and frames to a listener.

Each connection sends a request, sometimes mutated, and then frames: logins, packets of the test vectors,
control frames, fragments; some with flipped, lost, doubled or invented bytes, all cut anywhere. Then it ends
its side, and everything that the server has sent must be an HTTP answer, or valid WebSocket messages of whole
packets. At the end no connection and no session may be left, nothing may have failed inside the server, and
its memory may not have grown. A finding is raised; the seed repeats it.

Tests: `tests/fuzz/test_websocket.py`.
"""

import argparse
import gc
import json
import random
import sys
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from presence import protocol
from presence.core.admission import PacketRate
from presence.protocol import Decoder
from presence.transports.limits import Limits
from presence.transports.websocket_text import to_frame, to_text
from tests.protocol.vectors import BAD, GOOD
from tests.support.websocket_client import masked
from tests.transports.harness import Harness, serving

AT_ONCE = 20  # connections
FRAMES_PER_CONNECTION = 12  # on average; a violation ends it earlier
USERS = 50
GROWTH_BYTES = 400_000  # of memory that Python has allocated, from a fifth of the inputs to the end
SUBPROTOCOLS = ("presence.v1", "presence.v1.json", None)
WORDS = (
    b"\r\n",
    b"\0",
    b": ",
    b"Host: x\r\n",
    b"Upgrade: websocket\r\n",
    b"Content-Length: 99\r\n",
    b"\xff" * 9,
)
_PACKETS = [each.frame for each in GOOD if each.packet.kind < 64]
_BROKEN = [each.frame for each in BAD]


@dataclass
class Fuzzing:
    """What was tried, and what came back."""

    inputs: int = 0  # requests and WebSocket frames
    connections: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    close_codes: Counter[int | None] = field(default_factory=Counter)  # None: no close frame
    growth_bytes: int = 0


class Finding(AssertionError):
    """The server broke a promise."""


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return data with one to three changes."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at : at + chance.randint(1, 8)]
            case 2:
                changed[at:at] = changed[at : at + chance.randint(1, 40)]
            case 3:
                changed[at:at] = chance.choice(WORDS)
            case _:
                changed[at:at] = chance.randbytes(chance.randint(1, 20))
    return bytes(changed)


def frames_of(payload: bytes, opcode: int, chance: random.Random) -> list[bytes]:
    """Return a message, sometimes in fragments with control frames between them."""
    if chance.random() < 0.7:
        return [masked(opcode, payload)]
    parts = []
    while payload:
        size = chance.randint(1, len(payload))
        parts.append(payload[:size])
        payload = payload[size:]
    wire = []
    for number, part in enumerate(parts or [b""]):
        wire.append(masked(0 if number else opcode, part, fin=number == len(parts or [b""]) - 1))
        if chance.random() < 0.2:
            wire.append(control(chance))
    return wire


def control(chance: random.Random) -> bytes:
    return masked(chance.choice((9, 9, 10)), chance.randbytes(chance.choice((0, 4, 125))))


def one_message(is_json: bool, chance: random.Random) -> list[bytes]:
    frame = chance.choice(_PACKETS if chance.random() < 0.9 else _BROKEN)
    if not is_json:
        return frames_of(frame, 2, chance)
    try:
        text = to_text(frame[4:]).encode()
    except Exception:  # a broken body: the server has none to write
        text = b'["\\ud800"]'
    return frames_of(text if chance.random() < 0.97 else mutated(text, chance), 1, chance)


def conversation(is_json: bool, chance: random.Random) -> list[bytes]:
    """Return the frames of a connection."""
    login = protocol.encode(protocol.login(f"user-{chance.randrange(USERS)}", id=1, idle_timeout=60))
    messages = [frames_of(to_text(login[4:]).encode() if is_json else login, 1 if is_json else 2, chance)]
    messages += [
        [control(chance)] if chance.random() < 0.2 else one_message(is_json, chance)
        for _ in range(chance.randint(0, 2 * FRAMES_PER_CONNECTION))
    ]
    if chance.random() < 0.2:
        code = chance.choice(
            (b"", b"\x03\xe8", b"\x0f\xa0bye", b"\x03", b"\x03\xed", b"\xff\xff", b"\x03\xe8\xff")
        )
        messages.append([masked(8, code)])
    wire = [each for message in messages for each in message]
    for number, each in enumerate(wire):
        if chance.random() < 0.03:
            wire[number] = mutated(each, chance)
    return wire


def request(subprotocol: str | None) -> bytes:
    offered = "" if subprotocol is None else f"Sec-WebSocket-Protocol: {subprotocol}\r\n"
    return (
        "GET /presence HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{offered}\r\n"
    ).encode()


def check(answer: bytes, found: Fuzzing) -> None:
    """Check everything that one connection was sent; raise anything if it is not what clients may expect."""
    if not answer.startswith(b"HTTP/1.1 101 "):
        if answer.startswith(b"HTTP/1.1 "):
            found.statuses[int(answer.split(b" ", 2)[1])] += 1
        elif answer and b"this port is for WebSocket" not in answer:
            raise Finding("neither HTTP nor a packet")
        return
    found.statuses[101] += 1
    client = Protocol(CLIENT, max_size=None)
    wire = answer.partition(b"\r\n\r\n")[2]
    client.receive_data(wire)
    decoder, parsed = Decoder(), 0
    for frame in client.events_received():
        assert isinstance(frame, Frame)
        parsed += len(frame.serialize(mask=False))
        if frame.opcode is Opcode.BINARY:
            decoder.feed(bytes(frame.data))
            while decoder.next() is not None:
                pass
        elif frame.opcode is Opcode.TEXT:
            protocol.decode(to_frame(bytes(frame.data).decode())[4:])
            json.loads(bytes(frame.data))
    if client.parser_exc is not None:
        raise client.parser_exc
    if parsed != len(wire):
        raise Finding(f"{len(wire) - parsed} bytes behind the close frame")
    found.close_codes[client.close_rcvd.code if client.close_rcvd else None] += 1


async def read_into(answer: bytearray, stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):  # closed before the server read all
        async for data in stream:
            answer.extend(data)


async def one_connection(server: Harness, found: Fuzzing, chance: random.Random) -> None:
    subprotocol = chance.choice(SUBPROTOCOLS)
    head = request(subprotocol)
    frames = conversation(subprotocol != "presence.v1", chance)
    if chance.random() < 0.1:
        head = mutated(head, chance)
        frames = frames[:2]
    wire = head + b"".join(frames)
    found.inputs += 1 + len(frames)
    found.connections += 1
    answer = bytearray()
    async with await trio.open_tcp_stream(*server.address) as stream:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_into, answer, stream)
                with suppress(trio.BrokenResourceError):  # refused before it was all sent
                    for _ in range(chance.choice((0, 0, 1, 3))):
                        size = chance.randrange(len(wire) + 1)
                        await stream.send_all(wire[:size])
                        wire = wire[size:]
                        await trio.lowlevel.checkpoint()
                    await stream.send_all(wire)
                    await stream.send_eof()
    try:
        check(bytes(answer), found)
    except Exception as error:
        raise Finding(f"{error!r} in {bytes(answer)!r}") from error


async def fuzz(inputs: int, seed: int) -> Fuzzing:
    """Try so many inputs.

    Raises:
        Finding: the server broke a promise.
    """
    found, settled = Fuzzing(), 0
    rate = PacketRate(1e6, 1e6)
    async with serving("ws", Limits(login_timeout=2.0), grace=0.05, packet_rate=rate) as server:

        async def work() -> None:
            while found.inputs < inputs:  # each draws for itself, so their order does not matter
                await one_connection(server, found, random.Random(f"{seed} {found.connections}"))
                server.changes.clear()

        for goal in (inputs // 5, inputs):
            inputs = goal
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(work)
            await server.remain(0)
            await server.until(lambda: not len(server.registry))
            gc.collect()
            found.growth_bytes = (
                tracemalloc.get_traced_memory()[0] - settled if tracemalloc.is_tracing() else 0
            )
            settled = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
        counted = server.counted
    if counted.failures or counted.websocket_connections or counted.unsent_connections:
        raise Finding(f"left behind: {counted}")
    if found.growth_bytes > GROWTH_BYTES:
        raise Finding(f"memory grew by {found.growth_bytes:,} bytes")
    return found


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.websocket", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="requests and frames (100,000)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    tracemalloc.start()
    found = trio.run(fuzz, given.inputs, given.seed)
    print(f"{found.inputs:,} inputs on {found.connections:,} connections, seed {given.seed}")
    print(f"internal errors 0, growth {found.growth_bytes:,} bytes")
    print(f"HTTP: {dict(found.statuses)}; close codes: {dict(found.close_codes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
