"""Connections over any trio stream, with two tasks each: one reads, one writes.

For TLS and plain TCP on systems without epoll, and for memory streams in tests. It keeps the same limits as
the epoll transport and drives the same core.
"""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import trio
from trio.abc import HalfCloseableStream, Stream

from presence.common import networks
from presence.core.admission import Admission
from presence.core.authenticator import Refusal
from presence.core.engine import Engine
from presence.core.registry import Client, ConnectionInfo, Guest, Handle, Session
from presence.core.server_protocol import ReadOutcome
from presence.protocol import Code
from presence.transports import sockets
from presence.transports.connection_failures import ConnectionFailures
from presence.transports.limits import (
    DRAIN_TIMEOUT_S,
    LOGIN_TIMED_OUT,
    MAX_DRAIN_BYTES,
    MAX_PACKET_BYTES,
    MAX_PACKETS_PER_SLICE,
    MIN_PROGRESS_BYTES,
    READ_BYTES,
    Limits,
    answer_http,
    too_many_connections,
)
from presence.transports.tls import TlsListening
from presence.transports.transport_counters import TransportCounters


class _Connection:
    """One stream: its client, its unsent bytes, and the state of its close.

    Attributes:
        address: what limits count the client's address by; "" if the stream has no addresses.
        read_scope: cancelled to stop the reader; until the login its deadline is the login time-out.
        lifetime: cancelled to drop the connection immediately.
        counted_address: the address that it is counted by; "" if none.
        largest_packet: the size of the largest unsent packet.
        read_done: set when the reader has ended.
    """

    def __init__(self, handle: Handle, stream: Stream, address: str) -> None:
        self.handle = handle
        self.stream = stream
        self.address = address
        self.read_scope = trio.CancelScope()
        self.lifetime = trio.CancelScope()
        self.read_done = trio.Event()
        self.client: Client | None = None
        self.unsent = bytearray()
        self.counted_address = ""
        self.largest_packet = 0
        self.wake = trio.Event()
        self.is_closing = False

    def send(self, data: bytes | bytearray) -> None:
        """Queue bytes for the writer."""
        self.unsent += data
        self.wake.set()


class StreamTransport:
    """A task per connection.

    Args:
        engine: handles what is read.
        admission: decides whether one more connection is accepted.
        tls: listeners for TLS; None for none.
    """

    def __init__(
        self, engine: Engine, limits: Limits, admission: Admission, tls: TlsListening | None = None
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._admission = admission
        self._counters = TransportCounters()
        self._failures = ConnectionFailures(engine, self._counters)
        self._numbers = itertools.count()
        self._connections: dict[Handle, _Connection] = {}
        self._accepting = trio.CancelScope()
        self._tls = tls

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve connections until cancelled, or until accepting was stopped and all have ended."""
        async with trio.open_nursery() as connections:
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    accept = partial(trio.serve_listeners, handler_nursery=connections)
                    if listeners:
                        accepting.start_soon(accept, self.serve, list(listeners))
                    if self._tls is not None:
                        listening = map(trio.socket.from_stdlib_socket, self._tls.listeners)
                        tls_listeners = [trio.SocketListener(each) for each in listening]
                        accepting.start_soon(accept, self._serve_tls, tls_listeners)

    async def stop_accepting(self) -> None:
        """Close the listeners; connections stay."""
        self._accepting.cancel()

    def statistics(self) -> TransportCounters:
        return replace(self._counters)

    async def _serve_tls(self, stream: trio.SocketStream) -> None:
        deadline = trio.current_time() + self._limits.login_timeout
        try:
            address = sockets.peer_address(stream.socket)  # now: a reset in the handshake would lose it
            if (tls_stream := await self._handshake(stream, deadline)) is not None:
                await self.serve(tls_stream, deadline, address)
            elif trio.current_time() >= deadline:
                self._failures.login_timed_out(networks.limit_key(address))
        except Exception as error:
            self._failures.connection_failed(error)
        finally:
            await trio.aclose_forcefully(stream)

    async def _handshake(self, stream: Stream, deadline: float) -> "trio.SSLStream[Stream] | None":
        """Return the TLS stream; None if the handshake fails, times out, or too many are under way."""
        counters = self._counters
        if self._tls is None or counters.handshakes_underway >= self._tls.handshakes:
            counters.handshakes_refused += 1
            return None
        counters.handshakes_underway += 1
        cause = None
        try:
            certificate = self._tls.certificate
            tls_stream = trio.SSLStream(stream, certificate.ticket_context, server_side=True)
            tls_stream.context = certificate.context
            with trio.move_on_at(deadline):
                await tls_stream.do_handshake()
                counters.handshakes += 1
                counters.handshakes_resumed += tls_stream.session_reused is True
                return tls_stream
        except trio.BrokenResourceError as error:
            cause = error.__cause__
        finally:
            counters.handshakes_underway -= 1
        self._failures.handshake_failed(cause)
        return None

    async def serve(
        self, stream: Stream, login_until: float | None = None, address: str | None = None
    ) -> None:
        """Serve one connection to its end; never raises for what the client does or a handler raises.

        Args:
            stream: is closed at the end.
            login_until: when the login times out, on trio's clock; None for a full time-out from now.
            address: of the client, as the kernel writes it; None: ask the kernel, if it is a TCP connection.
        """
        if address is None:
            address = sockets.peer_address(stream.socket) if isinstance(stream, trio.SocketStream) else None
        if address == "" or not self._admission.room(self._counters.connections):  # "": reset already
            await trio.aclose_forcefully(stream)
            return
        connection = _Connection(next(self._numbers), stream, networks.limit_key(address or ""))
        self._connections[connection.handle] = connection
        refusal = self._admit(connection)
        self._counters.accepted += 1
        self._counters.connections += 1
        connection.client = self._engine.opened(self, connection.handle, connection.address)
        connection.read_scope.deadline = login_until or trio.current_time() + self._limits.login_timeout
        try:
            with connection.lifetime:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, connection)
                    if refusal is not None:
                        self._begin_close(connection, self._failures.refused(refusal, connection.address))
                    await self._read_to_the_end(connection)
        except Exception as error:
            self._failures.connection_failed(error)
        finally:
            del self._connections[connection.handle]
            self._counters.connections -= 1
            self._counters.closed += 1
            if connection.counted_address:
                self._admission.remove_connection(connection.counted_address)
            if connection.client is not None:
                self._engine.disconnected(connection.client)
            await trio.aclose_forcefully(stream)

    def _admit(self, connection: _Connection) -> Refusal | None:
        retry_after = self._admission.admit_connection(self._counters.connections)
        if retry_after is not None:
            return too_many_connections(retry_after)
        if (refusal := self._engine.refuse_address(connection.address)) is not None:
            return refusal
        address = connection.address if self._admission.counts_connections else ""
        refusal = self._admission.add_connection(address) if address else None
        connection.counted_address = address if refusal is None else ""
        return refusal

    # Transport

    def disconnect(self, handle: Handle, close_packet: bytes | bytearray) -> None:
        self._begin_close(self._connections[handle], close_packet)

    def send(self, handle: Handle, data: bytes) -> None:
        connection = self._connections[handle]
        connection.largest_packet = max(connection.largest_packet, min(len(data), MAX_PACKET_BYTES))
        self._send(connection, data)

    def try_send(self, handle: Handle, data: bytes) -> bool:
        if self._connections[handle].unsent:
            return False
        self.send(handle, data)
        return True

    def poll_now(self, handle: Handle) -> bool:
        """A stream cannot be read without waiting, so its reader needs a turn."""
        return False

    def receive_queue_age_s(self, handle: Handle, now: float) -> float:
        """Known for TCP, also below TLS; 0.0 for other streams."""
        stream = self._connections[handle].stream
        stream = getattr(stream, "transport_stream", stream)
        return (
            sockets.receive_queue_age_s(stream.socket, now, self._engine.clock)
            if isinstance(stream, trio.SocketStream)
            else 0.0
        )

    def acknowledged_bytes(self, handle: Handle) -> tuple[int, int] | None:
        """Not known: how many of the unsent bytes the kernel has is not, while they are being sent."""
        return None

    def certificate(self, handle: Handle) -> bytes | None:
        stream = self._connections[handle].stream
        if not isinstance(stream, trio.SSLStream):
            return None
        certificate: bytes | None = stream.getpeercert(binary_form=True)
        return certificate

    def connected(self, handle: Handle) -> ConnectionInfo:
        """Return what operators are shown of a logged-in connection."""
        connection = self._connections[handle]
        return ConnectionInfo("stream", connection.address, len(connection.unsent))

    # Sending and closing

    def _send(self, connection: _Connection, data: bytes | bytearray) -> None:
        if connection.is_closing:
            return
        connection.send(data)
        if len(connection.unsent) > self._limits.unsent_bytes + connection.largest_packet:
            self._close_slow_reader(connection)

    def _begin_close(self, connection: _Connection, close_packet: bytes | bytearray) -> None:
        """Ignore the input of a connection from now on; the last packet follows."""
        if connection.is_closing:
            return
        connection.is_closing = True
        connection.client = None
        connection.send(close_packet)
        connection.read_scope.cancel()

    # The two tasks

    async def _read_to_the_end(self, connection: _Connection) -> None:
        while connection.client is not None:
            with connection.read_scope:
                await self._read(connection)
            self._after_reading(connection)
        connection.read_done.set()

    async def _read(self, connection: _Connection) -> None:
        """Read until the client closes, or the connection is being closed."""
        while (client := connection.client) is not None:
            try:
                data = await connection.stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                connection.client = None
                self._engine.disconnected(client)
                connection.lifetime.cancel()
                return
            if not data:
                connection.client = None
                self._engine.disconnected(client)
                connection.is_closing = True
                connection.wake.set()
                return
            if connection.client is not None:
                outcome = self._engine.received(client, bytes(data), MAX_PACKETS_PER_SLICE)
                answer_http(outcome, bytes(data))
                self._apply(connection, client, outcome)
                while outcome.unfinished and connection.client is not None:
                    await trio.lowlevel.checkpoint()
                    if (client := connection.client) is not None:
                        outcome = self._engine.resume(client, MAX_PACKETS_PER_SLICE)
                        self._apply(connection, client, outcome)

    def _apply(self, connection: _Connection, client: Client, outcome: ReadOutcome) -> None:
        """Apply the effects of what was read."""
        if outcome.failure is not None:
            self._failures.connection_failed(outcome.failure)
        if outcome.client is not client:
            connection.read_scope.deadline = math.inf
            connection.client = outcome.client
        if outcome.end_code is not None:
            self._begin_close(connection, outcome.reply)
        elif outcome.reply:
            self._send(connection, outcome.reply)
        if (outcome.requests or outcome.sight_changed) and (
            failure := self._engine.dispatch_requests(outcome)
        ) is not None:
            self._failures.connection_failed(failure)

    def _after_reading(self, connection: _Connection) -> None:
        """Handle the end of the reader: a guest that is neither lost nor being closed has timed out."""
        if isinstance(connection.client, Guest):
            self._failures.login_timed_out(connection.address)
            self._begin_close(connection, LOGIN_TIMED_OUT)
        else:
            # After a pause a login can be read in the turn in which it times out: it counts.
            connection.read_scope = trio.CancelScope()

    async def _write(self, connection: _Connection) -> None:
        """Send what is queued; after the close packet half-close, drain, and end the connection."""
        try:
            while True:
                while connection.unsent:
                    data = bytes(connection.unsent[:MIN_PROGRESS_BYTES])
                    with trio.move_on_after(self._limits.unsent_timeout) as timeout:
                        await connection.stream.send_all(data)
                    if timeout.cancelled_caught:
                        self._close_slow_reader(connection)
                        return
                    del connection.unsent[: len(data)]
                    if not connection.unsent:
                        connection.largest_packet = 0
                        if isinstance(connection.client, Session):
                            self._engine.all_sent(connection.client)
                if connection.is_closing:
                    break
                connection.wake = trio.Event()
                await connection.wake.wait()
            await self._drain(connection)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the connection is lost
        connection.lifetime.cancel()

    async def _drain(self, connection: _Connection) -> None:
        """Read and drop a bounded amount of input, so that closing does not reset the connection."""
        stream, drained = connection.stream, 0
        with trio.move_on_after(DRAIN_TIMEOUT_S):
            await connection.read_done.wait()
            if isinstance(stream, trio.SSLStream):
                stream = await _say_goodbye(stream)
            if isinstance(stream, HalfCloseableStream):
                await stream.send_eof()
            while drained <= MAX_DRAIN_BYTES and (data := await stream.receive_some(READ_BYTES)):
                drained += len(data)

    def _close_slow_reader(self, connection: _Connection) -> None:
        """Drop the connection of a slow reader; its unsent bytes are lost."""
        self._counters.slow_readers += 1
        if isinstance(connection.client, Session):
            self._engine.disconnected(connection.client, Code.SLOW_CONSUMER)
        connection.client = None
        connection.lifetime.cancel()


async def _say_goodbye(tls_stream: "trio.SSLStream[Stream]") -> Stream:
    """End the sending side of TLS; return the stream below it, whose input is dropped.

    If the client had more to send, trio gives up before it sends TLS's close notification.
    """
    with suppress(trio.BrokenResourceError):
        await tls_stream.unwrap()  # returns when the client has closed its side, too
    return tls_stream.transport_stream
