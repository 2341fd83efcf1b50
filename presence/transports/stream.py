"""Connections over any trio stream: two tasks each, one that reads and one that writes.

For TLS, for memory streams in tests, and for plain TCP where the system has no epoll. It keeps the same
bounds as the epoll transport and drives the same core.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog
import trio
from trio.abc import HalfCloseableStream, Stream

from presence.common import networks
from presence.common.logs import RateLimited
from presence.core.admission import Admission, Refusal
from presence.core.engine import Engine
from presence.core.registry import ConnectionInfo, Guest, Peer, Session
from presence.protocol import Code
from presence.transports import sockets
from presence.transports.limits import (
    DRAIN_BYTES,
    DRAIN_S,
    LOGIN_TIMED_OUT,
    PACKET_MAX_BYTES,
    PACKETS_A_SLICE,
    PROGRESS_BYTES,
    READ_BYTES,
    TOO_MANY_CONNECTIONS,
    Limits,
    TransportStatistics,
    told,
)
from presence.transports.tls import TlsListening


class _Connection:
    """One stream: its peer, what waits to be sent, and how far its end has come.

    Attributes:
        reading: cancelled to make the reader stop; its deadline is the login time-out until the login.
        whole: cancelled to drop the connection at once.
        counted: the address that it counts for; "": none.
        largest: the size of the largest packet of those that wait.
        read_out: set when the reader has ended.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.reading = trio.CancelScope()
        self.whole = trio.CancelScope()
        self.read_out = trio.Event()
        self.peer: Peer | None = None
        self.unsent = bytearray()
        self.counted = ""
        self.largest = 0
        self.wake = trio.Event()
        self.hung_up = False

    def send(self, data: bytes | bytearray) -> None:
        """Queue bytes for the writer."""
        self.unsent += data
        self.wake.set()


class StreamTransport:
    """A task per connection.

    Args:
        core: what the bytes mean.
        limits: see `Limits`.
        admission: says whether one more connection is welcome.
        tls: where TLS is served, too; None: nowhere.
    """

    def __init__(
        self, core: Engine, limits: Limits, admission: Admission, tls: TlsListening | None = None
    ) -> None:
        self._core = core
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self._limits = limits
        self._admission = admission
        self._counted = TransportStatistics()
        self._accepting = trio.CancelScope()
        self._tls = tls

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve connections from listeners until cancelled or told to stop accepting and all are gone."""
        async with trio.open_nursery() as connections:
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    accept = partial(trio.serve_listeners, handler_nursery=connections)
                    if listeners:
                        accepting.start_soon(accept, self.serve, list(listeners))
                    if self._tls is not None:
                        listening = map(trio.socket.from_stdlib_socket, self._tls.listeners)
                        secured = [trio.SocketListener(each) for each in listening]
                        accepting.start_soon(accept, self._serve_secured, secured)

    async def stop_accepting(self) -> None:
        """Close the listeners; connections stay."""
        self._accepting.cancel()

    def statistics(self) -> TransportStatistics:
        """Return connections and counters."""
        return replace(self._counted)

    async def _serve_secured(self, stream: trio.SocketStream) -> None:
        deadline = trio.current_time() + self._limits.login_timeout
        try:
            if (secured := await self._shake(stream, deadline)) is not None:
                await self.serve(secured, deadline)
            elif trio.current_time() >= deadline:
                self._counted.login_timeouts += 1
                self._core.note_refusal(Code.LOGIN_TIMEOUT)
        except Exception as error:
            self._note_failure(error)
        finally:
            await trio.aclose_forcefully(stream)

    async def _shake(self, stream: Stream, deadline: float) -> "trio.SSLStream[Stream] | None":
        """Return the stream with TLS around it; None: it is none, or not in time, or too many shake hands."""
        counted = self._counted
        if self._tls is None or counted.handshakes_underway >= self._tls.handshakes:
            counted.handshakes_refused += 1
            return None
        counted.handshakes_underway += 1
        try:
            secured = trio.SSLStream(stream, self._tls.certificate.context, server_side=True)
            with trio.move_on_at(deadline):
                await secured.do_handshake()
                counted.handshakes += 1
                return secured
        except trio.BrokenResourceError:
            pass
        finally:
            counted.handshakes_underway -= 1
        counted.handshakes_failed += 1
        return None

    async def serve(self, stream: Stream, login_until: float | None = None) -> None:
        """Serve one connection to its end; never raises for what the peer does or a handler fails at.

        Args:
            stream: is closed at the end.
            login_until: when the time for its login is over, on trio's clock; None: it begins now.
        """
        if not self._admission.has_room(self._counted.connections):
            await trio.aclose_forcefully(stream)
            return
        connection = _Connection(stream)
        refusal = self._welcome(connection)
        self._counted.accepted += 1
        self._counted.connections += 1
        connection.peer = self._core.opened(self, connection)
        connection.reading.deadline = login_until or trio.current_time() + self._limits.login_timeout
        try:
            with connection.whole:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, connection)
                    if refusal is not None:
                        self._core.note_refusal(refusal.code)
                        self.hang_up(connection, told(refusal))
                    await self._read_to_the_end(connection)
        except Exception as error:
            self._note_failure(error)
        finally:
            self._counted.connections -= 1
            self._counted.closed += 1
            if connection.counted:
                self._admission.leave(connection.counted)
            if connection.peer is not None:
                self._core.closed(connection.peer)
            await trio.aclose_forcefully(stream)

    def _welcome(self, connection: _Connection) -> Refusal | None:
        """Return what one more connection is told if it is not welcome."""
        retry_after = self._admission.connection(self._counted.connections, trio.current_time())
        if retry_after is not None:
            return Refusal(Code.BUSY, TOO_MANY_CONNECTIONS, retry_after)
        address = self.address(connection) if self._admission.counts_connections else ""
        refusal = self._admission.enter(address) if address else None
        connection.counted = address if refusal is None else ""
        return refusal

    # Link

    def hang_up(self, handle: _Connection, farewell: bytes | bytearray) -> None:
        """See `Link`."""
        if handle.hung_up:
            return
        handle.hung_up = True
        handle.peer = None
        handle.send(farewell)
        handle.reading.cancel()

    def send(self, handle: _Connection, data: bytes) -> None:
        """See `Link`."""
        handle.largest = max(handle.largest, min(len(data), PACKET_MAX_BYTES))
        self._send(handle, data)

    def _send(self, connection: _Connection, data: bytes | bytearray) -> None:
        if connection.hung_up:
            return
        connection.send(data)
        if len(connection.unsent) > self._limits.unsent_bytes + connection.largest:
            self._cut_off(connection)

    def offer(self, handle: _Connection, data: bytes) -> bool:
        """See `Link`."""
        if handle.unsent:
            return False
        self.send(handle, data)
        return True

    def look(self, handle: _Connection) -> bool:
        """See `Link`: a stream cannot be read without waiting, so its reader must have a turn."""
        return False

    def unread_s(self, handle: _Connection, now: float) -> float:
        """See `Link`: known for TCP, also below TLS; other streams are taken to be read at once."""
        stream = getattr(handle.stream, "transport_stream", handle.stream)
        return (
            sockets.unread_s(stream.socket, now, self._core.clock)
            if isinstance(stream, trio.SocketStream)
            else 0.0
        )

    def address(self, handle: _Connection) -> str:
        """See `Link`: as `unread_s`."""
        stream = getattr(handle.stream, "transport_stream", handle.stream)
        if not isinstance(stream, trio.SocketStream):
            return ""
        return networks.client_of(sockets.peer_address(stream.socket))

    def connected(self, handle: _Connection) -> ConnectionInfo:
        """Return what is told of a logged-in connection to operators."""
        return ConnectionInfo("stream", self.address(handle), len(handle.unsent))

    # The two tasks

    async def _read_to_the_end(self, connection: _Connection) -> None:
        while connection.peer is not None:
            with connection.reading:
                await self._read(connection)
            self._after_reading(connection)
        connection.read_out.set()

    async def _read(self, connection: _Connection) -> None:
        """Read until the peer leaves, or the connection is hung up."""
        while (peer := connection.peer) is not None:
            try:
                data = await connection.stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                connection.peer = None
                self._core.closed(peer)
                connection.whole.cancel()
                return
            if not data:
                connection.peer = None
                self._core.closed(peer)
                connection.hung_up = True
                connection.wake.set()
                return
            if connection.peer is not None:
                is_unfinished = self._take(connection, peer, bytes(data))
                while is_unfinished and connection.peer is not None:
                    await trio.lowlevel.checkpoint()
                    if connection.peer is not None:
                        is_unfinished = self._take(connection, connection.peer, b"")

    def _take(self, connection: _Connection, peer: Peer, data: bytes) -> bool:
        """Hand bytes to the core; return whether packets are left for another call."""
        outcome = self._core.received(peer, data, PACKETS_A_SLICE)
        if outcome.failure is not None:
            self._note_failure(outcome.failure)
        if outcome.peer is not peer:
            connection.reading.deadline = math.inf
            connection.peer = outcome.peer
        if outcome.end_code is not None:
            self.hang_up(connection, outcome.reply)
        elif outcome.reply:
            self._send(connection, outcome.reply)
        if outcome.requests and (failure := self._core.attend(outcome)) is not None:
            self._note_failure(failure)
        return outcome.unfinished

    def _note_failure(self, error: Exception) -> None:
        self._counted.failures += 1
        self._log.error("connection failed", failures=self._counted.failures, exc_info=error)

    def _after_reading(self, connection: _Connection) -> None:
        """The reader has stopped; if nobody hung up and nobody left, the time for the login is over."""
        if isinstance(connection.peer, Guest):
            self._counted.login_timeouts += 1
            self._core.note_refusal(Code.LOGIN_TIMEOUT)
            self.hang_up(connection, LOGIN_TIMED_OUT)
        else:
            # After a pause a login can be read in the very turn in which its time ends: it counts.
            connection.reading = trio.CancelScope()

    async def _write(self, connection: _Connection) -> None:
        """Send what is queued; after the farewell half-close, drain, and end the connection."""
        try:
            while True:
                while connection.unsent:
                    data = bytes(connection.unsent[:PROGRESS_BYTES])
                    with trio.move_on_after(self._limits.unsent_timeout) as patience:
                        await connection.stream.send_all(data)
                    if patience.cancelled_caught:
                        self._cut_off(connection)
                        return
                    del connection.unsent[: len(data)]
                    if not connection.unsent:
                        connection.largest = 0
                        if isinstance(connection.peer, Session):
                            self._core.drained(connection.peer)
                if connection.hung_up:
                    break
                connection.wake = trio.Event()
                await connection.wake.wait()
            await self._drain(connection)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the peer is gone: nothing more can be said to it
        connection.whole.cancel()

    async def _drain(self, connection: _Connection) -> None:
        """Read and drop a bounded rest, so that closing resets nothing away."""
        stream, drained = connection.stream, 0
        with trio.move_on_after(DRAIN_S):
            await connection.read_out.wait()
            if isinstance(stream, trio.SSLStream):
                stream = await _say_goodbye(stream)
            if isinstance(stream, HalfCloseableStream):
                await stream.send_eof()
            while drained <= DRAIN_BYTES and (data := await stream.receive_some(READ_BYTES)):
                drained += len(data)

    def _cut_off(self, connection: _Connection) -> None:
        """A slow reader: what waits for it is dropped with the connection."""
        self._counted.slow_readers += 1
        if isinstance(connection.peer, Session):
            self._core.closed(connection.peer, Code.SLOW_CONSUMER)
        connection.peer = None
        connection.whole.cancel()


async def _say_goodbye(secured: "trio.SSLStream[Stream]") -> Stream:
    """End the sending side of TLS; return the stream below it, of which nothing more is of interest.

    To a peer that had more to say, only the stream below says goodbye: trio gives up before it sends TLS's.
    """
    with suppress(trio.BrokenResourceError):
        await secured.unwrap()  # returns when the peer has said goodbye, too
    return secured.transport_stream
