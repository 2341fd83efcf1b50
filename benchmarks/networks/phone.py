"""A phone: the client library behind a `LossyLink`, until it dies."""

import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import anyio
from anyio.abc import ByteStream, TaskGroup

from benchmarks.networks.lossy_link import LossyLink, Network, Way
from presence.client import ClientOptions, Connected, connect

READ_BYTES = 65_536
HALF_OPEN_S = 300.0  # how long the server's side of a lost connection stays open, unless the server closes it
BUFFERED_PIECES = 1000  # of one connection and way; a client waits for answers long before


@dataclass
class PhoneRecord:
    """What became of one phone; moments are monotonic seconds.

    Attributes:
        network: the name of its network.
        ended_at: when it died, or when the run ended.
        is_dead: whether it died.
        logins: how often it came online.
        blackouts: of its network, begin and end.
    """

    uid: str
    network: str
    born_at: float
    ended_at: float = math.inf
    is_dead: bool = False
    logins: int = 0
    blackouts: list[tuple[float, float]] = field(default_factory=list)


class PhoneStream(ByteStream):
    """A connection through a link.

    Args:
        raw: the connection to the server; nothing of the network is between.
        tasks: run its two ways, also for some time after the client has closed it.
    """

    def __init__(self, raw: ByteStream, link: LossyLink, tasks: TaskGroup) -> None:
        self._raw, self._link = raw, link
        self._up: deque[tuple[float, bytes]] = deque()  # b"": the end
        self._up_due = self._down_due = self._last_packet = anyio.current_time()
        self._up_ready = anyio.Event()
        self._down, self._received = anyio.create_memory_object_stream[tuple[float, bytes]](BUFFERED_PIECES)
        self._is_closed = False  # by the phone, or because it has lost it
        self._is_lost = False  # nothing passes any more
        tasks.start_soon(self._send_all)
        tasks.start_soon(self._receive_all)

    def lose(self) -> None:
        """Break the connection for the phone; the server does not notice."""
        self._is_lost = True
        self._down.close()
        self._end()

    async def send(self, item: bytes) -> None:
        """Send; it arrives later."""
        if self._is_closed:
            raise anyio.BrokenResourceError
        self._put_up(item)

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Return the next piece once it has arrived."""
        try:
            due, data = await self._received.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise anyio.BrokenResourceError from None
        await anyio.sleep_until(due)
        if not data:
            raise anyio.EndOfStream
        return data

    async def send_eof(self) -> None:
        """Unused by clients."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close; the server sees the end after everything that was sent before."""
        self._end()
        self._received.close()

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._put_up(b"")

    def _put_up(self, data: bytes) -> None:
        now = anyio.current_time()
        self._forget_if_idle(now)
        self._up_due = self._link.arrives_at(Way.UP, now, len(data), self._up_due)
        self._up.append((self._up_due, data))
        self._up_ready.set()

    def _forget_if_idle(self, now: float) -> None:
        limit_s = self._link.network.forgotten_after_s
        if limit_s and now - self._last_packet > limit_s:
            self._is_lost = True
        self._last_packet = now

    async def _send_all(self) -> None:
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                while not self._up:
                    self._up_ready = anyio.Event()
                    await self._up_ready.wait()
                due, data = self._up.popleft()
                await anyio.sleep_until(due)
                if self._is_lost:
                    await anyio.sleep(HALF_OPEN_S)
                    break
                if not data:
                    break
                await self._raw.send(data)
        await self._raw.aclose()

    async def _receive_all(self) -> None:
        while True:
            try:
                data = await self._raw.receive(READ_BYTES)
            except (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                data = b""
            now = anyio.current_time()
            self._forget_if_idle(now)
            if not self._is_lost:
                self._down_due = self._link.arrives_at(Way.DOWN, now, len(data), self._down_due)
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    try:
                        self._down.send_nowait((self._down_due, data))
                    except anyio.WouldBlock:
                        self.lose()  # TCP loses no bytes in the middle
            if not data:
                return


class Phone:
    """Is online from its birth until it dies without a word, or until the run ends."""

    def __init__(
        self, address: tuple[str, int], uid: str, network: Network, chance: Random, tasks: TaskGroup
    ) -> None:
        now = anyio.current_time()
        self.record = PhoneRecord(uid, network.name, now)
        self._address, self._tasks, self._link = address, tasks, LossyLink(network, now, chance)
        self.record.blackouts = self._link.blackouts
        self._stream: PhoneStream | None = None
        self._dies = anyio.CancelScope()

    async def run(self, lives_s: float) -> None:
        """Live for so long; cancelled: until then."""
        with self._dies:
            async with anyio.create_task_group() as own:
                own.start_soon(self._change_addresses)
                own.start_soon(self._be_online)
                await anyio.sleep(lives_s)
                self._die()

    def _die(self) -> None:
        self.record.ended_at, self.record.is_dead = anyio.current_time(), True
        if self._stream is not None:
            self._stream.lose()
        self._dies.cancel()

    async def _be_online(self) -> None:
        host, port = self._address
        async with connect(
            host, port, uid=self.record.uid, wait=False, options=ClientOptions(open_stream=self._open_stream)
        ) as client:
            async for push in client:
                self.record.logins += isinstance(push, Connected)

    async def _open_stream(self) -> ByteStream:
        await anyio.sleep_until(self._link.connects_at(anyio.current_time()))
        raw = await anyio.connect_tcp(*self._address)
        self._stream = PhoneStream(raw, self._link, self._tasks)
        return self._stream

    async def _change_addresses(self) -> None:
        while True:
            await anyio.sleep_until(self._link.next_address_after(anyio.current_time()))
            if self._stream is not None:
                self._stream.lose()
