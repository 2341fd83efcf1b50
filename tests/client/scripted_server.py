"""A server in memory that does what the test says."""

import math

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from presence import protocol
from presence.protocol import Kind, Packet
from tests.client.machine_driver import login_ok


class ScriptedServer:
    """Sends what the test says, and records what it receives.

    Attributes:
        received: packets of all connections, in order.
        ends: how each connection that has ended did so: ``client`` or ``server``.
        unanswered: kinds of packets without an answer.
        reads: whether the server reads; else the client's writes wait.
    """

    def __init__(self, *greeting: Packet) -> None:
        self.received: list[Packet] = []
        self.ends: list[str] = []
        self.connections = 0
        self.greeting = greeting or (login_ok(),)
        self.answers = self.reads = True
        self.unanswered: set[Kind] = set()
        self.answer: dict[str, object] = {}
        self._last: _Served | None = None

    async def open(self) -> ByteStream:
        await checkpoint()
        self.connections += 1
        self._last = _Served(self)
        return self._last

    async def hang_up(self) -> None:
        assert self._last is not None
        await self._last.hang_up()

    async def send(self, *packets: Packet) -> None:
        assert self._last is not None
        await self._last.to_client.send(b"".join(map(protocol.encode, packets)))


class _Served(ByteStream):
    """The client's end; the script answers each packet when it is sent."""

    def __init__(self, script: ScriptedServer) -> None:
        self.to_client: MemoryObjectSendStream[bytes]
        self._from_server: MemoryObjectReceiveStream[bytes]
        self.to_client, self._from_server = anyio.create_memory_object_stream[bytes](math.inf)
        self._script = script
        self._has_ended = False
        self._decoder = protocol.Decoder()

    async def send(self, item: bytes) -> None:
        await checkpoint()
        if not self._script.reads:
            await anyio.sleep_forever()
        if self._has_ended:
            raise anyio.BrokenResourceError
        self._decoder.feed(item)
        while (packet := self._decoder.next()) is not None:
            self._script.received.append(packet)
            if packet.kind == Kind.LOGIN:
                await self._script.send(*self._script.greeting)
            elif packet.kind == Kind.LOGOUT or (
                packet.id is not None and self._script.answers and packet.kind not in self._script.unanswered
            ):
                await self._script.send(protocol.ok(packet.id, **self._script.answer))

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return await self._from_server.receive()

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self._end("client")
        self.to_client.close()
        self._from_server.close()
        await checkpoint()

    async def hang_up(self) -> None:
        self._end("server")
        self.to_client.close()
        await checkpoint()

    def _end(self, by: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._script.ends.append(by)
