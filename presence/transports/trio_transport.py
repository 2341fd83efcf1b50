"""Connections over any trio stream, with two tasks each: one reads, one writes.

For plain TCP, TLS and WebSocket on systems without epoll, and for memory streams in tests. It keeps the same
limits as the epoll transport and drives the same core.
"""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from socket import socket

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
from presence.transports.websocket import WebSocket
from presence.transports.websocket_connection import PIECE_BYTES
from presence.transports.websocket_head import (
    HEAD_END,
    MAX_HEAD_BYTES,
    Origins,
    WebSocketListening,
    refused_as,
    respond_to_part,
)


class _Connection:
    """One stream: its client, its unsent bytes, and the state of its close.

    Attributes:
        address: what limits count the client's address by; "" if the stream has no addresses.
        read_scope: cancelled to stop the reader; until the login its deadline is the login time-out.
        lifetime: cancelled to drop the connection immediately.
        counted_address: the address that it is counted by; "" if none.
        largest_packet: the size of the largest unsent packet.
        read_done: set when the reader has ended.
        websocket: what turns its bytes into frames and back; None if they are frames.
    """

    def __init__(
        self, handle: Handle, stream: Stream, address: str, websocket: WebSocket | None = None
    ) -> None:
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
        self.websocket = websocket
        self.received = b""  # behind a request of WebSocket

    def send(self, frames: bytes | bytearray) -> int:
        """Queue frames for the writer; return the bytes that they take."""
        data = frames if self.websocket is None else self.websocket.encode(frames)
        self.unsent += data
        self.wake.set()
        return len(data)

    def end(self, close_packet: bytes | bytearray = b"") -> None:
        """Queue the last packet, and let the writer close the connection behind it."""
        self.is_closing = True
        if close_packet:
            if self.websocket is not None:
                self.websocket.note_last_packet(close_packet)
            self.send(close_packet)
        if self.websocket is not None:
            self.unsent += self.websocket.end()
        self.wake.set()


class StreamTransport:
    """A task per connection.

    Args:
        engine: handles what is read.
        admission: decides whether one more connection is accepted.
        tls: listeners for TLS; None for none.
        websocket: listeners for WebSocket, over TLS if there is `tls`; None for none.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        admission: Admission,
        tls: TlsListening | None = None,
        websocket: WebSocketListening | None = None,
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
        self._websocket = websocket

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve connections until cancelled, or until accepting was stopped and all have ended."""
        async with trio.open_nursery() as connections:
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    accept = partial(trio.serve_listeners, handler_nursery=connections)
                    if listeners:
                        accepting.start_soon(accept, self.serve, list(listeners))
                    if self._tls is not None and self._tls.listeners:
                        accepting.start_soon(accept, self._serve_layers, listening(self._tls.listeners))
                    if self._websocket is not None:
                        upgrade = partial(self._serve_layers, origins=self._websocket.origins)
                        accepting.start_soon(accept, upgrade, listening(self._websocket.listeners))

    async def stop_accepting(self) -> None:
        """Close the listeners; connections stay."""
        self._accepting.cancel()

    def statistics(self) -> TransportCounters:
        return replace(self._counters)

    async def _serve_layers(self, tcp_stream: trio.SocketStream, origins: Origins | None = None) -> None:
        """Serve a connection over TLS, WebSocket or both; `origins`: None without WebSocket."""
        deadline = trio.current_time() + self._limits.login_timeout
        stream: Stream | None = tcp_stream
        try:
            address = sockets.peer_address(tcp_stream.socket)  # now: a reset in the handshake would lose it
            if self._tls is not None:
                stream = await self._handshake(tcp_stream, deadline)
            if stream is not None and origins is None:
                await self.serve(stream, deadline, address)
            elif stream is not None and origins is not None:
                await self._upgrade(stream, origins, deadline, address)
            elif trio.current_time() >= deadline:
                self._failures.login_timed_out(networks.limit_key(address))
        except Exception as error:
            self._failures.connection_failed(error)
        finally:
            await trio.aclose_forcefully(tcp_stream)

    async def _upgrade(self, stream: Stream, origins: Origins, deadline: float, address: str) -> None:
        """Answer a request of WebSocket, and serve the connection if it is accepted."""
        head, answer = bytearray(), None
        with trio.move_on_at(deadline) as timeout, suppress(trio.BrokenResourceError):
            while answer is None and (data := await stream.receive_some(MAX_HEAD_BYTES)):
                head += data
                answer = respond_to_part(head, origins)
        if timeout.cancelled_caught:
            self._failures.login_timed_out(networks.limit_key(address))
            answer = refused_as(LOGIN_TIMED_OUT)
        if answer is None:
            return
        with trio.move_on_after(DRAIN_TIMEOUT_S), suppress(trio.BrokenResourceError):
            await stream.send_all(answer.data)
        if answer.status is HTTPStatus.SWITCHING_PROTOCOLS:
            self._counters.upgrades += 1
            self._counters.websocket_connections += 1
            try:
                websocket = WebSocket(is_json=answer.is_json)
                await self.serve(stream, deadline, address, websocket, bytes(head.partition(HEAD_END)[2]))
            finally:
                self._counters.websocket_connections -= 1
        elif not timeout.cancelled_caught:
            self._failures.upgrade_refused(answer.status)

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
        self,
        stream: Stream,
        login_until: float | None = None,
        address: str | None = None,
        websocket: WebSocket | None = None,
        received: bytes = b"",
    ) -> None:
        """Serve one connection to its end; never raises for what the client does or a handler raises.

        Args:
            stream: is closed at the end.
            login_until: when the login times out, on trio's clock; None for a full time-out from now.
            address: of the client, as the kernel writes it; None: ask the kernel, if it is a TCP connection.
            websocket: turns its bytes into frames and back; None: they are frames.
            received: bytes that were read already.
        """
        if address is None:
            address = sockets.peer_address(stream.socket) if isinstance(stream, trio.SocketStream) else None
        if address == "" or not self._admission.room(self._counters.connections):  # "": reset already
            await trio.aclose_forcefully(stream)
            return
        connection = _Connection(next(self._numbers), stream, networks.limit_key(address or ""), websocket)
        connection.received = received
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
        self._send(connection, data, is_packet=True)

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
        transport = "stream" if connection.websocket is None else "ws"
        return ConnectionInfo(transport, connection.address, len(connection.unsent))

    # Sending and closing

    def _send(self, connection: _Connection, data: bytes | bytearray, *, is_packet: bool = False) -> None:
        """Queue frames; the size of a single packet alone makes no slow reader of the client."""
        if connection.is_closing:
            return
        size = connection.send(data)
        if is_packet:
            largest = size if len(data) <= MAX_PACKET_BYTES else MAX_PACKET_BYTES
            connection.largest_packet = max(connection.largest_packet, largest)
        if len(connection.unsent) > self._limits.unsent_bytes + connection.largest_packet:
            self._close_slow_reader(connection)

    def _begin_close(self, connection: _Connection, close_packet: bytes | bytearray) -> None:
        """Ignore the input of a connection from now on; the last packet follows."""
        if connection.is_closing:
            return
        connection.client = None
        connection.end(close_packet)
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
        websocket = connection.websocket
        while (client := connection.client) is not None:
            data, connection.received = connection.received, b""
            try:
                limit = READ_BYTES if websocket is None else PIECE_BYTES
                data = data or bytes(await connection.stream.receive_some(limit))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                connection.client = None
                self._engine.disconnected(client)
                connection.lifetime.cancel()
                return
            if not data:
                self._input_ended(connection, client)
            elif websocket is None:
                await self._handle(connection, client, data)
            else:
                await self._handle(connection, client, websocket.receive(data))
                self._after_messages(connection, websocket)

    def _input_ended(self, connection: _Connection, client: Client) -> None:
        connection.client = None
        self._engine.disconnected(client)
        connection.end()

    def _after_messages(self, connection: _Connection, websocket: WebSocket) -> None:
        """Send pongs, and close a connection whose client has closed it or broken a rule of WebSocket."""
        output, websocket.output = websocket.output, b""
        connection.unsent += output
        connection.wake.set()
        if (client := connection.client) is None:
            return
        if refusal := websocket.refusal or websocket.excess(self._engine, client):
            self._begin_close(connection, self._engine.refuse_input(client, refusal))
        elif websocket.has_ended:
            self._input_ended(connection, client)

    async def _handle(self, connection: _Connection, client: Client, data: bytes) -> None:
        """Handle what was read, in slices."""
        if connection.client is None or not data:
            return
        outcome = self._engine.received(client, data, MAX_PACKETS_PER_SLICE)
        if connection.websocket is None:
            answer_http(outcome, data)
        self._apply(connection, client, outcome)
        while outcome.unfinished and connection.client is not None:
            await trio.lowlevel.checkpoint()
            if (unfinished := connection.client) is not None:
                outcome = self._engine.resume(unfinished, MAX_PACKETS_PER_SLICE)
                self._apply(connection, unfinished, outcome)

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


def listening(listeners: Sequence[socket]) -> list[trio.SocketListener]:
    """Return sockets as trio's listeners."""
    return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in listeners]
