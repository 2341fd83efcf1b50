"""All TCP connections over epoll sets of their own, in as many tasks for one as for 100,000.

Why not a task per connection: measured at 15,000 connections, such a server costs several times the
processor time per keepalive and ten times the memory. Here a ready batch is read in a plain loop. A
connection is a descriptor and a record, and has a buffer only while a frame is unfinished.

Waking up costs more than reading: some 0.2 ms of processor time, the price of fifty keepalives. So after a
batch a set *rests* for its window, and what arrives meanwhile is the next batch. How long a connection can
wait for that depends on what it sends, hence three sets (see `connections.py`): those who have not logged in
or who lately sent more than keepalives are served at once, keepalives that want an answer within 25 ms, the
rest within the batching window, which shortens while some of the patient turn out to want answers after
all. TLS connections are in the same sets once their handshakes are over (see `handshakes.py`). One trio task
waits for each set; tasks do not grow with connections.

A set's events are handled to the end without a pause in between, and a descriptor that is closed meanwhile
has no occupant any more; accepts come in turns of their own. So no event can meet the wrong connection.
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
from presence.core.registry import ConnectionInfo, Guest, Session
from presence.transports import sockets
from presence.transports.acceptor import Acceptor
from presence.transports.connections import (
    ATTENTIVE,
    PACES,
    PROMPT,
    Connections,
)
from presence.transports.limits import (
    TURN_CHORES,
    TURN_CONNECTIONS,
    TURN_LOGINS,
    Limits,
    TransportStatistics,
)
from presence.transports.reader import Reading
from presence.transports.tls import TlsListening

ANSWER_WINDOW_S = 0.025  # between two batches for whoever waits for answers: half of it at the median
SURPRISE_S = 10.0  # how long the patient have no longer one either after one of them wanted an answer

# When thousands end together, what is told of them goes before what is told to them: 8,000 goodbyes a second.
PARTINGS_A_TURN = 32
PARTING_PAUSE_S = 0.004


class EpollTransport:
    """TCP on the given listeners.

    Args:
        engine: what the bytes mean.
        listeners: bound, listening sockets; owned by the transport from now on.
        limits: see `Limits`.
        admission: says whether one more connection is welcome.
        window_s: seconds that connections which only send keepalives rest after a batch.
        clock: monotonic time.
        tls: where TLS is served, too; None: nowhere.
        proxies: networks from which each connection must begin with a header of the PROXY protocol.
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
        proxies: tuple[networks.Network, ...] = (),
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._surprised_until = -math.inf
        self._connections = Connections(engine, limits, clock, admission)
        self._reading = Reading(engine, self._connections)
        self._acceptor = Acceptor(
            engine,
            self,
            self._connections,
            self._reading,
            listeners,
            tls=tls,
            proxies=proxies,
            admission=admission,
            clock=clock,
        )
        self._parting: deque[int] = deque()
        self._parting_begun = trio.Event()

    # Tasks: nine and one per listener, whatever the number of connections

    async def run(self) -> None:
        """Serve until cancelled; then close every descriptor."""
        try:
            async with trio.open_nursery() as nursery:
                for pace in PACES:
                    nursery.start_soon(self._serve_set, pace)
                nursery.start_soon(self._do_chores)
                nursery.start_soon(self._part)
                nursery.start_soon(self._reading.finish)
                nursery.start_soon(self._acceptor.run)
        finally:
            self._acceptor.close()
            self._connections.close_all()

    async def _serve_set(self, pace: int) -> None:
        epoll = self._connections.sets[pace]
        turn = TURN_LOGINS if pace == ATTENTIVE else TURN_CONNECTIONS
        while True:
            events = epoll.poll(0, turn)
            if not events:
                await trio.lowlevel.wait_readable(epoll.fileno())
                continue
            begun = trio.current_time()
            is_whole = self._reading.serve(events, pace)
            window_s = self._rest_s(pace, begun)
            if is_whole and len(events) < turn and window_s:
                await trio.sleep_until(begun + window_s)
            else:
                await trio.lowlevel.checkpoint()

    def _rest_s(self, pace: int, now: float) -> float:
        """Return the seconds between the begin of a batch and of the next."""
        if pace == ATTENTIVE:
            return 0.0
        if pace == PROMPT:
            return min(ANSWER_WINDOW_S, self._window_s)
        if self._reading.surprised:
            self._reading.surprised = False
            self._surprised_until = now + SURPRISE_S
        return min(ANSWER_WINDOW_S, self._window_s) if now < self._surprised_until else self._window_s

    async def _do_chores(self) -> None:
        """Login time-outs, slow readers, ends of drains; nothing to do wakes nobody."""
        deadlines = self._connections.deadlines
        while True:
            await deadlines.wait()
            while fds := deadlines.take_overdue(TURN_CHORES):
                for fd in fds:
                    with self._acceptor.contained(fd):
                        self._time_is_up(fd)
                await trio.lowlevel.checkpoint()

    async def _part(self) -> None:
        """Say farewell to those whom the core lets go, paced: they can wait, and come in crowds."""
        while True:
            if not self._parting:
                self._parting_begun = trio.Event()
                await self._parting_begun.wait()
            for _ in range(min(PARTINGS_A_TURN, len(self._parting))):
                with self._acceptor.contained(fd := self._parting.popleft()):
                    self._connections.part(fd)
            await trio.sleep(PARTING_PAUSE_S)

    async def stop_accepting(self) -> None:
        """Take in what waits already, and close the listeners; connections stay."""
        await self._acceptor.stop()

    def statistics(self) -> TransportStatistics:
        """Return connections and counters."""
        connections = self._connections
        return replace(
            connections.counted,
            unsent_connections=len(connections.unsent),
            paces=connections.watched_by(),
            tls_connections=len(connections.wires),
            handshakes_underway=len(connections.shaking),
            awaiting_proxy_headers=len(self._acceptor.headers.awaited),
            addresses_kept=len(connections.addresses.told),
        )

    # Link: what the core asks for

    def hang_up(self, handle: int, farewell: bytes | bytearray) -> None:
        """See `Link`: listen no more at once; the last packet follows."""
        if self._connections.begin_parting(handle, farewell):
            self._parting.append(handle)
            self._parting_begun.set()

    def send(self, handle: int, data: bytes) -> None:
        """See `Link`."""
        self._connections.deliver(handle, data)

    def try_send(self, handle: int, data: bytes) -> bool:
        """See `Link`."""
        if handle in self._connections.unsent:
            return False
        self.send(handle, data)
        return True

    def poll_now(self, handle: int) -> bool:
        """See `Link`: read the connection now."""
        peer = self._connections.occupants[handle]
        if isinstance(peer, Session):
            self._reading.poll_now(handle, peer)
        return True

    def receive_queue_age_s(self, handle: int, now: float) -> float:
        """See `Link`: the kernel knows when the last data arrived."""
        with sockets.borrowed(handle) as sock:
            return sockets.receive_queue_age_s(sock, now, self._clock)

    def address(self, handle: int) -> str:
        """See `Link`."""
        return self._connections.addresses.of(handle)

    def connected(self, handle: int) -> ConnectionInfo:
        """Return what is told of a logged-in connection to operators."""
        connections = self._connections
        transport = "tls" if handle in connections.wires else "plain"
        return ConnectionInfo(transport, self.address(handle), len(connections.unsent.get(handle, b"")))

    def _time_is_up(self, fd: int) -> None:
        peer = self._connections.occupants[fd]
        if isinstance(peer, Guest):
            self._acceptor.time_is_up(fd, peer)
        elif isinstance(peer, Session):
            self._connections.lose_patience(fd)
        elif peer is not None:
            self._connections.close(fd)
