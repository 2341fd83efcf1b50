"""The epoll transport: TCP connections in epoll sets, with the same few tasks for 1 or 100,000 of them.

Why not a task per connection: measured at 15,000 connections, such a server costs several times the
processor time per keepalive and ten times the memory. Here a ready batch is read in a plain loop. An idle
connection is a descriptor, a session and two bytes (see `connection_states.py`).

A wake-up costs more than a read: some 0.2 ms of processor time, as much as fifty keepalives. So after a batch
its set is left alone for its *window*, and what arrives meanwhile is the next batch. How long a connection
can wait depends on what it sends, hence three latency classes: connections that have not logged in or have
recently sent more than keepalives are served without a pause, keepalives that want an answer within 25 ms,
the rest within the batching window. That window shortens while some batched connections turn out to want
answers after all, and while batches have many packets that are more work than keepalives. Connections with
TLS or WebSocket are in the same sets once their handshakes are over (see `guests.py`). One trio task waits
for each set; tasks do not grow with connections.

The events of a set are handled without a checkpoint in between, and a descriptor closed meanwhile has no
client and no `Connection` any more; accepts run in turns of their own. So no event can reach the wrong
connection.

Tests: `tests/transports/test_epoll_transport.py`, `tests/system/transports/test_epoll.py`.
"""

import math
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import trio

from presence.common import networks
from presence.common.clock import Clock
from presence.core.admission import Admission
from presence.core.engine import Engine
from presence.core.registry import ConnectionInfo, Handle, Session
from presence.transports import sockets
from presence.transports.accept_rotation import AcceptRotation
from presence.transports.acceptor import Acceptor
from presence.transports.connection_states import (
    IMMEDIATE,
    LOGGED_IN,
    SERVED_CLASSES,
    SHORT,
    Connection,
    LatencyClass,
)
from presence.transports.connections import PLAIN, Connections, ListenerKind
from presence.transports.guests import Guests
from presence.transports.limits import (
    MAX_CONNECTIONS_PER_TURN,
    MAX_LOGINS_PER_TURN,
    MAX_TIMEOUTS_PER_TURN,
    Limits,
)
from presence.transports.reader import ConnectionReader
from presence.transports.tls import TlsListening
from presence.transports.transport_counters import TransportCounters
from presence.transports.websocket_head import WebSocketListening

ANSWER_WINDOW_S = 0.025  # between two batches that want answers: half of it at the median
# How many costly reads, of connections that sent more than keepalives, a batch should have: a millisecond of
# work, for which new connections wait.
BATCH_COSTLY_READS = 32
MIN_GATHERED_S = 0.004  # a batch after a shorter pause says little about how fast they come
SHORT_WINDOW_S = 10.0  # for so long the batched class has that window, too, after one of it wanted an answer

KERNEL_ERROR_S = 0.01  # of the times that it gives: its ticks

# When thousands of sessions end together, reporting them comes before their goodbyes: 8,000 per second.
MAX_CLOSES_PER_TURN = 32
CLOSE_PAUSE_S = 0.004


def pause_after(costly_reads: int, pause_s: float, window_s: float) -> float:
    """Return the seconds until the next batch: at most the window, less if batches have many costly reads.

    Args:
        costly_reads: connections of the last batch that sent more than a keepalive.
        pause_s: how long the last batch gathered.
        window_s: the window of the latency class.
    """
    return min(window_s, max(pause_s, MIN_GATHERED_S) * BATCH_COSTLY_READS / max(1, costly_reads))


class EpollTransport:
    """TCP on the given listeners.

    Args:
        engine: handles what is read.
        listeners: bound, listening sockets; owned by the transport from now on.
        admission: decides whether one more connection is accepted.
        window_s: the batching window of connections that send only keepalives, in seconds.
        clock: monotonic time.
        tls: listeners for TLS; None for none.
        websocket: listeners for WebSocket, over TLS if there is `tls`; None for none.
        proxies: networks whose connections must begin with a header of the PROXY protocol.
        rotation: of the workers that share the listeners' port; None: there are no others.
    """

    def __init__(
        self,
        engine: Engine,
        listeners: Sequence[socket.socket],
        limits: Limits,
        admission: Admission,
        *,
        window_s: float,
        clock: Clock,
        tls: TlsListening | None = None,
        websocket: WebSocketListening | None = None,
        proxies: tuple[networks.Network, ...] = (),
        rotation: AcceptRotation | None = None,
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._short_window_until = -math.inf
        self._connections = Connections(engine, limits, clock, admission)
        self._reader = ConnectionReader(engine, self._connections)
        self._guests = Guests(
            engine,
            self,
            self._connections,
            self._reader,
            admission=admission,
            tls=tls,
            proxies=proxies,
            origins=[] if websocket is None else websocket.origins,
        )
        self._acceptor = Acceptor(
            self._connections,
            self._guests,
            self._reader,
            _listener_kinds(listeners, tls, websocket),
            admission=admission,
            clock=clock,
            rotation=rotation,
        )
        self._closing: deque[Connection] = deque()  # disconnected by the core, the close packet not sent yet
        self._close_begun = trio.Event()

    # Tasks: ten here and in `Guests.run`, one per listener, and the rotation's; none per connection

    async def run(self) -> None:
        """Serve until cancelled; then close every descriptor."""
        try:
            async with trio.open_nursery() as nursery:
                for latency_class in SERVED_CLASSES:
                    nursery.start_soon(self._serve_set, latency_class)
                nursery.start_soon(self._run_timeouts)
                nursery.start_soon(self._send_closes)
                nursery.start_soon(self._reader.run_deferred)
                nursery.start_soon(self._guests.run)
                nursery.start_soon(self._acceptor.run)
        finally:
            self._acceptor.close()
            self._connections.close_all()

    async def _serve_set(self, latency_class: LatencyClass) -> None:
        epoll = self._connections.sets[latency_class]
        turn = MAX_LOGINS_PER_TURN if latency_class == IMMEDIATE else MAX_CONNECTIONS_PER_TURN
        pause_s, costly_reads = self._window_s, 0
        while True:
            events = epoll.poll(0, turn)
            if not events:
                await trio.lowlevel.wait_readable(epoll.fileno())
                continue
            begun = trio.current_time()
            is_whole, costly = self._reader.serve(events, latency_class)
            costly_reads += costly
            window_s = self._window_after(latency_class, begun)
            if is_whole and len(events) < turn and window_s:
                pause_s, costly_reads = pause_after(costly_reads, pause_s, window_s), 0
                await trio.sleep_until(begun + pause_s)
            else:
                await trio.lowlevel.checkpoint()

    def _window_after(self, latency_class: LatencyClass, now: float) -> float:
        """Return the seconds from the start of a batch to the start of the next."""
        if latency_class == IMMEDIATE:
            return 0.0
        if latency_class == SHORT:
            return min(ANSWER_WINDOW_S, self._window_s)
        if self._reader.take_batched_wanted_answer():
            self._short_window_until = now + SHORT_WINDOW_S
        return min(ANSWER_WINDOW_S, self._window_s) if now < self._short_window_until else self._window_s

    async def _run_timeouts(self) -> None:
        """Handle time-outs of logins, slow readers and drains; without any, nothing wakes up."""
        deadlines = self._connections.deadlines
        while True:
            await deadlines.wait()
            while connections := deadlines.pop_expired(MAX_TIMEOUTS_PER_TURN):
                for connection in connections:
                    with self._reader.contained(connection.fd):
                        self._timed_out(connection)
                await trio.lowlevel.checkpoint()

    async def _send_closes(self) -> None:
        """Send the close packets of connections that the core disconnects, paced: they come in crowds."""
        while True:
            if not self._closing:
                self._close_begun = trio.Event()
                await self._close_begun.wait()
            for _ in range(min(MAX_CLOSES_PER_TURN, len(self._closing))):
                connection = self._closing.popleft()
                with self._reader.contained(connection.fd):
                    self._connections.send_close(connection)
            await trio.sleep(CLOSE_PAUSE_S)

    async def stop_accepting(self) -> None:
        """Accept what the kernel has queued, and close the listeners; connections stay."""
        await self._acceptor.stop()

    def statistics(self) -> TransportCounters:
        connections = self._connections
        return replace(
            connections.counters,
            latency_classes=connections.count_by_latency_class(),
            handshakes_underway=len(connections.handshaking),
            addresses_kept=len(connections.addresses),
        )

    # Transport: called by the core

    def disconnect(self, handle: Handle, close_packet: bytes | bytearray) -> None:
        """Ignore input immediately; the last packet follows."""
        if (connection := self._connections.begin_close(handle, close_packet)) is not None:
            self._closing.append(connection)
            self._close_begun.set()

    def send(self, handle: Handle, data: bytes) -> None:
        self._connections.deliver(handle, data)

    def try_send(self, handle: Handle, data: bytes) -> bool:
        connection = self._connections.by_fd.get(handle)
        if connection is not None and connection.unsent is not None:
            return False
        self.send(handle, data)
        return True

    def poll_now(self, handle: Handle) -> bool:
        client = self._connections.clients[handle]
        if isinstance(client, Session):
            with self._reader.contained(handle):
                self._reader.poll(handle, client)
        return True

    def receive_queue_age_s(self, handle: Handle, now: float) -> float:
        """The kernel knows when the last data arrived, to about `KERNEL_ERROR_S`."""
        if now - self._acceptor.admits_since < KERNEL_ERROR_S:
            return 0.0
        with sockets.borrowed(handle) as sock:
            return sockets.receive_queue_age_s(sock, now, self._clock)

    def acknowledged_bytes(self, handle: Handle) -> tuple[int, int] | None:
        connection = self._connections.by_fd.get(handle)
        unsent_bytes = 0 if connection is None or connection.unsent is None else len(connection.unsent)
        with sockets.borrowed(handle) as sock:
            return sockets.acknowledged_bytes(sock, unsent_bytes)

    def certificate(self, handle: Handle) -> bytes | None:
        connection = self._connections.by_fd.get(handle)
        return None if connection is None or connection.tls is None else connection.tls.peer_certificate()

    def connected(self, handle: Handle) -> ConnectionInfo:
        """Return what operators are shown of a logged-in connection."""
        connection, address = self._connections.by_fd.get(handle), self._connections.address_of(handle)
        if connection is None:
            return ConnectionInfo("plain", address, 0)
        if connection.websocket is None:
            transport = "plain" if connection.tls is None else "tls"
        else:
            transport = "ws" if connection.tls is None else "wss"
        return ConnectionInfo(transport, address, len(connection.unsent or b""))

    def _timed_out(self, connection: Connection) -> None:
        if connection.is_guest:
            self._guests.timed_out(connection)
        elif connection.state is LOGGED_IN:
            self._connections.unsent_timed_out(connection)
        elif not connection.is_closed:
            self._connections.close(connection.fd)


def _listener_kinds(
    plain: Sequence[socket.socket], tls: TlsListening | None, websocket: WebSocketListening | None
) -> dict[socket.socket, ListenerKind]:
    kinds = dict.fromkeys(plain, PLAIN)
    if tls is not None:
        kinds |= dict.fromkeys(tls.listeners, ListenerKind(is_tls=True, is_websocket=False))
    if websocket is not None:
        kind = ListenerKind(is_tls=tls is not None, is_websocket=True)
        kinds |= dict.fromkeys(websocket.listeners, kind)
    return kinds
