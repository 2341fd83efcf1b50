"""The network between a client and a server of the same process, on trio: memory streams."""

import anyio
import trio
import trio.testing
from anyio.abc import ByteStream
from trio.abc import Stream

from presence.transports.trio_transport import StreamTransport
from tests.transports.harness import Harness


class Network:
    """Memory streams to a server; the server serves until the client closes them."""

    def __init__(self, server: Harness) -> None:
        self._server = server

    async def open(self) -> ByteStream:
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.memory_stream_pair()
        assert isinstance(self._server.transport, StreamTransport)
        self._server.nursery.start_soon(self._server.transport.serve, theirs)
        return _TrioStream(ours)


class _TrioStream(ByteStream):
    """A stream of trio, as the client takes it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def send(self, item: bytes) -> None:
        try:
            await self._stream.send_all(item)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        try:
            if data := await self._stream.receive_some(max_bytes):
                return bytes(data)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error
        raise anyio.EndOfStream

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._stream.aclose()
