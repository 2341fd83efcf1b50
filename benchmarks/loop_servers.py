"""Servers to be measured beside this one: each decodes the login and moves the uid in the same wheel.

``python -m benchmarks.loop_servers uvloop|asyncio|trio`` prints ``ready HOST:PORT`` on standard error and
serves until it is terminated. They leave out everything else that a presence server does.
"""

import asyncio
import socket
import sys
import time

import trio
import uvloop

from presence import protocol
from presence.core.slots import SlotClock
from presence.core.wheel import TimingWheel
from presence.protocol import KEEPALIVE, keepalive_answer
from presence.transports.sockets import open_listeners

IDLE_TIMEOUT_S = 30.0
SLOT_S = 0.5


class Presence:
    """What these servers share: the wheel, and the answer to a login."""

    def __init__(self) -> None:
        self.ticks = SlotClock(SLOT_S, time.monotonic())
        self.wheel: TimingWheel[str] = TimingWheel(128)

    def touch(self, uid: str) -> None:
        self.wheel.touch(uid, self.ticks.at_or_after(time.monotonic() + IDLE_TIMEOUT_S))

    def answer_keepalives(self, uid: str, data: bytes) -> bytes:
        """Return the answer to input other than a lone plain keepalive.

        Mostly it is one keepalive that asks for an answer; two may arrive together.
        """
        self.touch(uid)
        if answer := keepalive_answer(data):
            return answer
        answers, start = [], 0
        while end := protocol.frame_end(data, start, protocol.FRAME_LIMIT_BYTES):
            answers.append(keepalive_answer(data[start:end]))
            start = end
        return b"".join(answers)

    def log_in(self, data: bytes) -> tuple[str, bytes]:
        """Return the uid of a login, and the answer."""
        end = protocol.frame_end(data, 0, protocol.FRAME_LIMIT_BEFORE_LOGIN_BYTES)
        packet = protocol.decode(data[4:end])
        uid = packet.payload["uid"]
        self.touch(uid)
        return uid, protocol.encode(protocol.ok(packet.id, session=uid, idle_timeout=30, keepalive=12, v=1))

    def expire_due(self) -> None:
        while self.wheel.pop_due(self.ticks.at_or_before(time.monotonic()), 256):
            pass


class AsyncioConnection(asyncio.Protocol):
    """One connection of the asyncio server."""

    __slots__ = ("_presence", "_transport", "_uid")

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._uid: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._uid is None:
            self._uid, answer = self._presence.log_in(data)
            self._transport.write(answer)  # type: ignore[attr-defined]  # asyncio types it as a base class
        elif data == KEEPALIVE:
            self._presence.touch(self._uid)
        elif answer := self._presence.answer_keepalives(self._uid, data):
            self._transport.write(answer)  # type: ignore[attr-defined]  # as above


async def serve_asyncio(listener: socket.socket) -> None:
    """An asyncio server with a Protocol object per connection, on the loop that runs it."""
    presence = Presence()
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    await loop.create_server(lambda: AsyncioConnection(presence), sock=listener, backlog=4096)
    while True:
        await asyncio.sleep(SLOT_S)
        presence.expire_due()


async def serve_trio(listener: socket.socket) -> None:
    """A trio server with a task per connection."""
    presence = Presence()

    async def device(stream: trio.SocketStream) -> None:
        uid, answer = presence.log_in(bytes(await stream.receive_some(4096)))
        await stream.send_all(answer)
        while data := await stream.receive_some(4096):
            if data == KEEPALIVE:
                presence.touch(uid)
            elif answer := presence.answer_keepalives(uid, bytes(data)):
                await stream.send_all(answer)

    async def tick() -> None:
        while True:
            await trio.sleep(SLOT_S)
            presence.expire_due()

    sock = trio.socket.from_stdlib_socket(listener)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        await trio.serve_listeners(device, [trio.SocketListener(sock)])


def main() -> None:
    (listener,) = open_listeners("127.0.0.1", 0)
    print(f"ready 127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    if sys.argv[1] == "trio":
        trio.run(serve_trio, listener)
        return
    if sys.argv[1] == "uvloop":
        uvloop.run(serve_asyncio(listener))
    else:
        asyncio.run(serve_asyncio(listener))


if __name__ == "__main__":
    main()
