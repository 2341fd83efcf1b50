"""The network between a client and a server of the same process: memory streams."""

import trio
import trio.testing
from trio.abc import Stream

from presence.transports.stream import StreamTransport
from tests.transports.harness import Harness


class Network:
    """Memory streams to a server; it can break connections and refuse new ones.

    Attributes:
        streams: the client's ends, in the order in which they were made.
        up: False: no connection can be made.
    """

    def __init__(self, server: Harness) -> None:
        self.streams: list[Stream] = []
        self.up = True
        self._server = server

    async def open(self) -> Stream:
        await trio.lowlevel.checkpoint()
        if not self.up:
            raise OSError("no route to host")
        ours, theirs = trio.testing.memory_stream_pair()
        assert isinstance(self._server.transport, StreamTransport)
        self._server.nursery.start_soon(self._server.transport.serve, theirs)
        self.streams.append(ours)
        return ours

    async def cut(self) -> None:
        await trio.aclose_forcefully(self.streams[-1])
