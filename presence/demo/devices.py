"""The demo's clients: small devices that know exactly what they did when.

The client library would come back after every loss; these must be able to misbehave on purpose.
"""

import random
import time

import trio

import protocol
from presence.demo.truth import Client, Deed
from protocol import Kind


class Device:
    """One client over TCP.

    Args:
        client: its record, kept up to date.
        acts_at: trio time at which it does its deed; infinity: it beats to the end.
    """

    def __init__(self, client: Client, acts_at: float) -> None:
        self._client = client
        self._acts_at = acts_at

    async def run(self, host: str, port: int) -> None:
        """Log in, beat, do the deed; silent devices keep their connection until they are cancelled."""
        async with await trio.open_tcp_stream(host, port) as stream:
            await self._send(stream, protocol.encode(protocol.login(self._client.uid, id=1)))
            answer = await self._receive(stream)
            self._client.logged_in = answer.kind == Kind.OK
            if not self._client.logged_in:
                return
            await self._beat(stream, answer.payload["keepalive"])
            if self._client.deed is Deed.LOGS_OUT:
                await self._send(stream, protocol.encode(protocol.logout()))
            elif self._client.deed is Deed.CLOSES:
                self._client.last_act = time.time()
            self._client.done = True
            if self._client.deed is Deed.FALLS_SILENT:
                await trio.sleep_forever()

    async def _beat(self, stream: trio.SocketStream, interval_s: float) -> None:
        """Beat until it is time for the deed; the first beat comes at a random moment."""
        due = trio.current_time() + random.uniform(0, interval_s)  # noqa: S311 - spreads load
        while due < self._acts_at:
            await trio.sleep_until(due)
            await self._send(stream, protocol.KEEPALIVE)
            due += interval_s * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
        await trio.sleep_until(self._acts_at)

    async def _send(self, stream: trio.SocketStream, frame: bytes) -> None:
        self._client.last_act = time.time()
        await stream.send_all(frame)

    async def _receive(self, stream: trio.SocketStream) -> protocol.Packet:
        decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        while (packet := decoder.next()) is None:
            data = await stream.receive_some(4096)
            if not data:
                return protocol.error(None, protocol.Code.CLOSED, "the server closed the connection")
            decoder.feed(data)
        return packet
