"""A server in memory that does what the test says, for the client on trio."""

import trio
import trio.testing
from trio.abc import Stream

from presence import protocol
from presence.protocol import Kind, Packet
from tests.client.machine_driver import login_ok


class ScriptedServer:
    """Sends what the test says, and records what it receives."""

    def __init__(self, *greeting: Packet) -> None:
        self.received: list[Packet] = []
        self.connections = 0
        self.greeting = greeting or (login_ok(),)
        self.answers = True
        self.answer: dict[str, object] = {}
        self._streams: list[Stream] = []

    async def open(self) -> Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.memory_stream_pair()
        self.connections += 1
        self._streams.append(theirs)
        return _Served(ours, theirs, self)

    async def hang_up(self) -> None:
        await trio.aclose_forcefully(self._streams[-1])

    async def send(self, *packets: Packet) -> None:
        await self._streams[-1].send_all(b"".join(map(protocol.encode, packets)))


class _Served(trio.abc.Stream):
    """The client's end; the script answers each packet when it is sent."""

    def __init__(self, ours: Stream, theirs: Stream, script: ScriptedServer) -> None:
        self._ours, self._theirs, self._script = ours, theirs, script
        self._decoder = protocol.Decoder()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._decoder.feed(data)
        while (packet := self._decoder.next()) is not None:
            self._script.received.append(packet)
            if packet.kind == Kind.LOGIN:
                await self._script.send(*self._script.greeting)
            elif packet.kind == Kind.LOGOUT or (packet.id is not None and self._script.answers):
                await self._script.send(protocol.ok(packet.id, **self._script.answer))

    async def wait_send_all_might_not_block(self) -> None:
        await self._ours.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._ours.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._ours.aclose()
