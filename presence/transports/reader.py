"""Reading ready connections: their bytes go to the core, its outcome is applied.

`ConnectionReader.serve` is the hot path of the server: a keepalive costs one read, two comparisons and its
place in the batch's list. Everything else goes through `Engine.received`.

Tests: `tests/transports/test_requests.py`, `tests/transports/test_epoll_transport.py`.
"""

import errno
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import trio

from presence.core.engine import Engine
from presence.core.registry import Client, Session
from presence.core.server_protocol import ReadOutcome
from presence.protocol import KEEPALIVE, Code, keepalive_answer
from presence.transports.connection_states import (
    BATCHED,
    DEMOTE_AFTER_KEEPALIVES,
    IMMEDIATE,
    LOGGED_IN,
    SHORT,
    Connection,
    LatencyClass,
)
from presence.transports.connections import LAYERED_READ, READ, WRITE, Connections
from presence.transports.limits import (
    GUEST_READ_BYTES,
    MAX_PACKETS_PER_SLICE,
    MAX_READS_PER_POLL,
    READ_BYTES,
    TURN_BUDGET_S,
    answer_http,
)
from presence.transports.websocket_connection import InputRefused

QUICK_READ_BYTES = 64  # any keepalive; such a small object costs no system allocation
_LOGOUTS = (Code.LOGOUT, Code.BACKGROUND)


class ConnectionReader:
    """Reads the connections of one transport.

    Args:
        engine: handles what is read.
        connections: their state.
    """

    def __init__(self, engine: Engine, connections: Connections) -> None:
        self._engine = engine
        self._connections = connections
        self._failures = connections.failures
        # Connections with packets left for another turn. `poll` handles such packets without a look in here,
        # so one may be here twice or in vain: `Connection.is_deferred` decides.
        self._deferred: deque[Connection] = deque()
        self._has_deferred = trio.Event()
        connections.defer = self._defer
        self._batched_wanted_answer = False  # since it was last asked for; also by deferred packets and polls

    @contextmanager
    def contained(self, fd: int) -> Iterator[None]:
        """Let an error in the handling of a connection close only that connection."""
        try:
            yield
        except Exception as error:
            self.connection_failed(fd, error)

    def serve(self, events: list[tuple[int, int]], latency_class: LatencyClass) -> tuple[bool, int]:
        """Read ready connections once each. The first lines of the loop are the hot path of the server.

        Returns:
            Whether all were read; if not, the time for a turn was used up, and epoll reports the others
            again. And how many were costly: of these, an event was anything but a keepalive of a session.
        """
        ends_at, is_whole = perf_counter() + TURN_BUDGET_S, False
        connections, read_plain = self._connections, os.read
        clients, send, read = connections.clients, connections.send, connections.read
        unanswered: list[Session] = []
        answered: list[Session] = []
        costly_reads = 0
        fd = -1
        try:
            for fd, mask in events:
                client = clients[fd]
                input_only = mask == READ or mask == LAYERED_READ  # noqa: PLR1714 - a tuple would cost more
                if input_only and isinstance(client, Session) and not client.unhandled:
                    try:
                        data = read_plain(fd, QUICK_READ_BYTES) if mask == READ else read(fd, READ_BYTES)
                    except OSError as error:
                        self._read_failed(fd, client, error)
                        continue
                    if data == KEEPALIVE:
                        unanswered.append(client)
                        continue
                    if answer := keepalive_answer(data):
                        send(fd, answer)
                        if clients[fd] is client:  # not dropped as a slow reader
                            answered.append(client)
                        continue
                    costly_reads += 1
                    # There may be more. Left to the next batch it would be another costly read, and outside
                    # `IMMEDIATE` it would wait for the window.
                    if mask == READ and len(data) == QUICK_READ_BYTES:
                        data += _read_rest(fd)
                    self._receive(fd, client, data)
                else:
                    costly_reads += 1
                    self.serve_other(fd, mask)
                if perf_counter() > ends_at:
                    break
            else:
                is_whole = True
        except Exception as error:  # the connections after this one are ready in the next turn, too
            self.connection_failed(fd, error)
        connections.flush_replies()
        connections.counters.batches += 1
        # Last, with the time after all of it was read.
        self._engine.connections_read(unanswered + answered if answered else unanswered)
        if answered or latency_class != BATCHED:
            self._adapt_latency_classes(latency_class, unanswered, answered)
        return is_whole, costly_reads

    def take_batched_wanted_answer(self) -> bool:
        """Return whether a batched connection has wanted an answer since the last call."""
        wanted, self._batched_wanted_answer = self._batched_wanted_answer, False
        return wanted

    async def run_deferred(self) -> None:
        """Handle deferred packets, a few per connection in turn; runs until cancelled."""
        while True:
            if not self._deferred:
                self._has_deferred = trio.Event()
                await self._has_deferred.wait()
            ends_at = perf_counter() + TURN_BUDGET_S
            while self._deferred and perf_counter() < ends_at:
                connection = self._deferred.popleft()
                with self.contained(connection.fd):
                    self._resume(connection)
            self._connections.flush_replies()
            await trio.lowlevel.checkpoint()

    def _resume(self, connection: Connection) -> None:
        """Handle some of the deferred packets of a connection."""
        if not connection.is_deferred or not (connection.state is LOGGED_IN or connection.is_guest):
            return
        connection.is_deferred = False
        client = self._connections.clients[connection.fd]
        if client is not None:
            outcome = self._engine.resume(client, MAX_PACKETS_PER_SLICE)
            self._apply(connection.fd, client, outcome)
        websocket = connection.websocket
        if websocket is not None and websocket.has_more and not connection.is_deferred:
            self.read(connection.fd)
        self._connections.drop_if_idle(connection)

    def poll(self, fd: int, session: Session) -> None:
        """Read a connection before its session expires; one complete packet keeps the session alive.

        One read without a layer completes any packet of which all has arrived. Through a layer it may be
        only a part of one, because records have overhead; hence several.
        """
        connection = self._connections.by_fd.get(fd)
        is_layered = connection is not None and connection.layer is not None
        for _ in range(MAX_READS_PER_POLL if is_layered else 1):
            if self._deferred_of(fd) is None and not self.read(fd):
                break  # nothing more has arrived, or the connection is closed
            if (deferred := self._deferred_of(fd)) is not None:
                self._resume(deferred)  # a slice: its first packet is enough
            if not session.unhandled or self._deferred_of(fd) is not None:
                break  # all was handled, or one slice of more; otherwise a packet is incomplete
        self._connections.flush_replies()

    def _deferred_of(self, fd: int) -> Connection | None:
        """Return a connection with packets left for another turn, None for any other."""
        connection = self._connections.by_fd.get(fd)
        return connection if connection is not None and connection.is_deferred else None

    def _adapt_latency_classes(
        self, latency_class: LatencyClass, unanswered: list[Session], answered: list[Session]
    ) -> None:
        """Move connections to the latency class that their keepalives allow."""
        connections = self._connections
        if latency_class == BATCHED:
            self._batched_wanted_answer = True
            for session in answered:
                self._reclassify(session, SHORT)
            return
        patient_keepalives = connections.patient_keepalives
        if latency_class == SHORT:
            for session in answered:
                if session.transport is not None:
                    patient_keepalives[session.handle] = 0
        for session in unanswered if latency_class == SHORT else unanswered + answered:
            if session.transport is None:
                continue
            fd = session.handle
            patient_keepalives[fd] += 1
            if patient_keepalives[fd] >= DEMOTE_AFTER_KEEPALIVES:
                self._reclassify(session, latency_class.slower)

    def _reclassify(self, session: Session, latency_class: LatencyClass) -> None:
        if session.transport is None:
            return
        fd = session.handle
        try:
            self._connections.set_latency_class(fd, latency_class)
        except OSError as error:  # the limit of epoll watches, or no memory
            self._drop_unwatchable(fd, session, error)

    def serve_other(self, fd: int, mask: int) -> None:
        """Handle any event that is not just input of a logged-in connection."""
        connection = self._connections.by_fd.get(fd)
        if mask & WRITE and connection is not None:
            self._connections.flush(connection)
        if not mask & ~WRITE:
            return
        if self._connections.clients[fd] is not None:
            self.read(fd)
        elif connection is not None and not connection.is_closed:
            self._connections.drain(connection)

    def read(self, fd: int) -> bool:
        """Read a connection once, ready or not; answers are queued until `Connections.flush_replies`.

        A connection with deferred packets is not read: the kernel keeps its input, and makes the sender wait.

        Returns:
            Whether anything was read, and the connection is still open.
        """
        client = self._connections.clients[fd]
        if client is None or self._deferred_of(fd) is not None:
            return False
        try:
            data = self._connections.read(fd, READ_BYTES if isinstance(client, Session) else GUEST_READ_BYTES)
        except OSError as error:
            self._read_failed(fd, client, error)
            return False
        self._receive(fd, client, data)
        return self._connections.clients[fd] is client

    def _read_failed(self, fd: int, client: Client, error: OSError) -> None:
        if isinstance(error, InputRefused):
            self._connections.close_gracefully(fd, self._engine.refuse_input(client, error.refusal))
        elif error.errno not in (errno.EAGAIN, errno.EINTR):
            self._client_disconnected(fd, client)

    def _receive(self, fd: int, client: Client, data: bytes) -> None:
        if not data:
            self._client_disconnected(fd, client)
        elif len(data) < QUICK_READ_BYTES or not isinstance(client, Session):
            outcome = self._engine.received(client, data, MAX_PACKETS_PER_SLICE)
            if outcome.end_code is Code.TOO_LARGE:
                connection = self._connections.by_fd.get(fd)
                if connection is not None and connection.websocket is None:
                    answer_http(outcome, data)
            self._apply(fd, client, outcome, is_all_read=len(data) < QUICK_READ_BYTES)
        else:
            client.unhandled += data
            self._defer(self._connections.ensure(fd))

    def _apply(self, fd: int, client: Client, outcome: ReadOutcome, *, is_all_read: bool = False) -> None:
        """Apply the effects of what was read; `is_all_read`: when it was read, nothing more had arrived."""
        if outcome.failure is not None:
            self._failures.connection_failed(outcome.failure)
        if self._connections.clients[fd] is not client:
            return  # an effect of its own packets has closed it: the descriptor may be another's by now
        after = outcome.client
        if isinstance(after, Session) and after is not client and not self._log_in(fd, after):
            return
        if outcome.end_code is not None:
            if outcome.end_code in _LOGOUTS and is_all_read:
                self._connections.close_after(fd, outcome.reply)
            else:
                self._connections.close_gracefully(fd, outcome.reply)
        elif outcome.reply or outcome.requests:
            if outcome.reply:
                self._connections.queue_reply(fd, outcome.reply)
            if (
                after is client
                and isinstance(after, Session)
                and (latency_class := self._connections.latency_class[fd]) != IMMEDIATE
            ):
                self._batched_wanted_answer |= latency_class == BATCHED
                self._reclassify(after, IMMEDIATE)
        if (outcome.requests or outcome.sight_changed) and (
            failure := self._engine.dispatch_requests(outcome)
        ) is not None:
            self._failures.connection_failed(failure)
        if outcome.unfinished and self._connections.clients[fd] is after:
            self._defer(self._connections.ensure(fd))

    def _defer(self, connection: Connection) -> None:
        """Handle the rest of what was read later, after what is deferred already."""
        connection.is_deferred = True
        self._deferred.append(connection)
        self._has_deferred.set()

    def _log_in(self, fd: int, session: Session) -> bool:
        """Watch a connection as one that has logged in; return False if it cannot be, and was closed."""
        try:
            self._connections.log_in(fd, session)
        except OSError as error:  # the limit of epoll watches, or no memory
            self._drop_unwatchable(fd, session, error)
            return False
        return True

    def _drop_unwatchable(self, fd: int, session: Session, error: Exception) -> None:
        self._failures.connection_failed(error)
        self._engine.disconnected(session, Code.SERVER_ERROR)
        self._connections.close(fd)

    def connection_failed(self, fd: int, error: Exception) -> None:
        """Close a connection because of an error in this server."""
        self._failures.connection_failed(error)
        client = self._connections.clients[fd]
        if isinstance(client, Session):
            self._engine.disconnected(client, Code.SERVER_ERROR)
        if self._connections.is_open(fd):
            self._connections.close(fd)

    def _client_disconnected(self, fd: int, client: Client) -> None:
        """Handle the end of input: the client closed its side or reset the connection."""
        self._engine.disconnected(client)
        connection = self._connections.by_fd.get(fd)
        if fd in self._connections.replies or (connection is not None and connection.unsent is not None):
            self._connections.close_gracefully(fd, b"")  # the client may still read what is unsent
        else:
            self._connections.close(fd)


def _read_rest(fd: int) -> bytes:
    """Read what follows the first bytes, enough to complete any packet; ignore errors and ends."""
    try:
        return os.read(fd, READ_BYTES - QUICK_READ_BYTES)
    except OSError:
        return b""
