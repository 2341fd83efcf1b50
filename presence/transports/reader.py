"""Reading ready connections: their bytes go to the core, its outcome is applied.

`ConnectionReader.serve` is the hot path of the server: a keepalive costs one read, two comparisons and its
place in the batch's list. Everything else goes through `Engine.received`.
"""

import errno
import math
import os
from time import perf_counter

import structlog
import trio

from presence.common.logs import RateLimited
from presence.common.scarcity import fault_fields
from presence.core.engine import Engine
from presence.core.registry import Client, Session
from presence.core.server_protocol import ReadOutcome
from presence.protocol import KEEPALIVE, Code, keepalive_answer
from presence.transports.connections import (
    DEMOTE_AFTER_BEATS,
    READ,
    TLS_READ,
    WRITE,
    Closing,
    Connections,
    LatencyClass,
)
from presence.transports.limits import (
    GUEST_READ_BYTES,
    MAX_PACKETS_PER_SLICE,
    MAX_READS_PER_POLL,
    READ_BYTES,
    TURN_BUDGET_S,
)

QUICK_READ_BYTES = 64  # any keepalive; such a small object costs no system allocation
_LOGOUTS = (Code.LOGOUT, Code.BACKGROUND)


class ConnectionReader:
    """Reads the connections of one transport.

    Args:
        engine: handles what is read.
        connections: their state.

    Attributes:
        late_answer_seen: whether a batched connection wanted an answer; reset by the caller.
        costly_reads: connections of the last turn that had more than keepalives.
    """

    def __init__(self, engine: Engine, connections: Connections) -> None:
        self._engine = engine
        self._connections = connections
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        # By descriptor, in this order: read, with packets still to handle.
        self._deferred: dict[int, Client] = {}
        self._has_deferred = trio.Event()
        self.late_answer_seen = False
        self.costly_reads = 0

    def serve(self, events: list[tuple[int, int]], latency_class: int) -> bool:
        """Read ready connections once each. The first lines of the loop are the hot path of the server.

        Returns:
            Whether all were read; if not, the time for a turn was used up, and epoll reports the others
            again.
        """
        until = perf_counter() + TURN_BUDGET_S
        connections, read = self._connections, os.read
        clients, send = connections.fd_states, connections.send
        tls, read_tls = connections.tls, connections.read_tls
        plain: list[Session] = []
        answered: list[Session] = []
        costly_reads = 0
        fd = -1
        try:
            for fd, mask in events:
                client = clients[fd]
                known = mask == READ or mask == TLS_READ  # noqa: PLR1714 - a tuple would cost more
                if known and isinstance(client, Session) and not client.unhandled:
                    try:
                        is_plain = mask == READ
                        data = read(fd, QUICK_READ_BYTES) if is_plain else read_tls(fd, tls[fd], READ_BYTES)
                    except OSError as error:
                        self._read_failed(fd, client, error)
                        continue
                    if data == KEEPALIVE:
                        plain.append(client)
                        continue
                    if answer := keepalive_answer(data):
                        send(fd, answer)
                        if clients[fd] is client:  # not dropped as a slow reader
                            answered.append(client)
                        continue
                    costly_reads += 1
                    # There may be more, and in this set the next read would come a window later.
                    if mask == READ and len(data) == QUICK_READ_BYTES:
                        data += _read_rest(fd)
                    self._receive(fd, client, data)
                else:
                    costly_reads += 1
                    self.serve_other(fd, mask)
                if perf_counter() > until:
                    break
            else:
                until = math.inf
        except Exception as error:  # the connections after this one are ready in the next turn, too
            self.connection_failed(fd, error)
        if connections.pending_replies:
            connections.flush_replies()
        connections.counters.batches += 1
        self._record_keepalives(latency_class, plain, answered)
        self.costly_reads = costly_reads
        return until == math.inf

    async def run_deferred(self) -> None:
        """Handle deferred packets, a few per connection in turn; runs until cancelled."""
        while True:
            if not self._deferred:
                self._has_deferred = trio.Event()
                await self._has_deferred.wait()
            until = perf_counter() + TURN_BUDGET_S
            while self._deferred and perf_counter() < until:
                fd = next(iter(self._deferred))
                try:
                    self._resume(fd)
                except Exception as error:
                    self.connection_failed(fd, error)
            self._connections.flush_replies()
            await trio.lowlevel.checkpoint()

    def _resume(self, fd: int) -> None:
        """Handle some of the deferred packets of a connection."""
        client = self._deferred.pop(fd)
        if self._connections.fd_states[fd] is client:
            self._apply(fd, client, self._engine.resume(client, MAX_PACKETS_PER_SLICE))

    def poll(self, fd: int, client: Session) -> None:
        """Read a connection before its session expires; one complete packet keeps the session alive."""
        for _ in range(MAX_READS_PER_POLL if fd in self._connections.tls else 1):
            if fd not in self._deferred and not self.read(fd, client):
                break
            if fd in self._deferred:
                self._resume(fd)
            if not client.unhandled or fd in self._deferred:
                break
        self._connections.flush_replies()

    def _record_keepalives(self, latency_class: int, plain: list[Session], answered: list[Session]) -> None:
        """Report the keepalives of a batch to the core, with the time after all of it was read."""
        self._engine.keepalives_received(plain)
        if answered:
            self._engine.keepalives_received(answered)
        if answered or latency_class != LatencyClass.BATCHED:
            self._adapt_latency_classes(latency_class, plain, answered)

    def _adapt_latency_classes(
        self, latency_class: int, plain: list[Session], answered: list[Session]
    ) -> None:
        """Move connections to the latency class that their keepalives allow."""
        connections = self._connections
        if latency_class == LatencyClass.BATCHED:
            self.late_answer_seen = True
            for session in answered:
                self._reclassify(session, LatencyClass.SHORT)
            return
        quiet_beats = connections.quiet_beats
        if latency_class == LatencyClass.SHORT:
            for session in answered:
                if session.transport is not None:
                    quiet_beats[session.handle] = 0
        for session in plain if latency_class == LatencyClass.SHORT else plain + answered:
            if session.transport is None:
                continue
            fd = session.handle
            quiet_beats[fd] += 1
            if quiet_beats[fd] >= DEMOTE_AFTER_BEATS:
                self._reclassify(session, latency_class + 1)

    def _reclassify(self, session: Session, latency_class: int) -> None:
        if session.transport is None:
            return
        fd = session.handle
        try:
            self._connections.set_latency_class(fd, latency_class)
        except OSError as error:  # the limit of epoll watches, or no memory
            self._drop_unwatchable(fd, session, error)

    def serve_other(self, fd: int, mask: int) -> None:
        """Handle any event but plain input of a logged-in connection."""
        if mask & WRITE:
            self._connections.flush(fd)
        client = self._connections.fd_states[fd]
        if client is None or not mask & ~WRITE:
            return
        if isinstance(client, Closing):
            self._connections.drain(fd, client)
        else:
            self.read(fd, client)

    def read(self, fd: int, client: Client) -> bool:
        """Read a connection once, ready or not; answers are queued until `Connections.flush_replies`.

        A connection with deferred packets is not read: the kernel keeps its input, and makes the sender wait.

        Returns:
            Whether anything was read, and the connection is still open.
        """
        if fd in self._deferred:
            return False
        tls = self._connections.tls.get(fd)
        limit = READ_BYTES if isinstance(client, Session) else GUEST_READ_BYTES
        try:
            data = os.read(fd, limit) if tls is None else self._connections.read_tls(fd, tls, limit)
        except OSError as error:
            self._read_failed(fd, client, error)
            return False
        self._receive(fd, client, data)
        return self._connections.fd_states[fd] is client

    def _read_failed(self, fd: int, client: Client, error: OSError) -> None:
        if error.errno not in (errno.EAGAIN, errno.EINTR):
            self._client_closed(fd, client)

    def _receive(self, fd: int, client: Client, data: bytes) -> None:
        if not data:
            self._client_closed(fd, client)
        elif len(data) < QUICK_READ_BYTES or not isinstance(client, Session):
            outcome = self._engine.received(client, data, MAX_PACKETS_PER_SLICE)
            self._apply(fd, client, outcome, is_all_read=len(data) < QUICK_READ_BYTES)
        else:
            client.unhandled += data
            self._defer(fd, client)

    def _apply(self, fd: int, client: Client, outcome: ReadOutcome, *, is_all_read: bool = False) -> None:
        """Apply the effects of what was read; `is_all_read`: when it was read, nothing more had arrived."""
        if outcome.failure is not None:
            self._log_failure(outcome.failure)
        if self._connections.fd_states[fd] is not client:
            return  # an effect of its own packets has closed it: the descriptor may be another's by now
        after = outcome.client
        if isinstance(after, Session) and after is not client and not self._log_in(fd, after):
            return
        if outcome.end_code is not None:
            if outcome.end_code in _LOGOUTS and is_all_read:
                self._connections.finish(fd, outcome.reply)
            else:
                self._connections.hang_up(fd, outcome.reply)
        elif outcome.reply or outcome.requests:
            if outcome.reply:
                self._connections.queue_reply(fd, outcome.reply)
            if (
                after is client
                and isinstance(after, Session)
                and (latency_class := self._connections.latency_class[fd]) != LatencyClass.IMMEDIATE
            ):
                self.late_answer_seen |= latency_class == LatencyClass.BATCHED
                self._reclassify(after, LatencyClass.IMMEDIATE)
        if (outcome.requests or outcome.sight_changed) and (
            failure := self._engine.dispatch_requests(outcome)
        ) is not None:
            self._log_failure(failure)
        if outcome.unfinished and self._connections.fd_states[fd] is after:
            self._defer(fd, after)

    def _defer(self, fd: int, client: Client) -> None:
        """Handle the rest of what was read later, after what is deferred already."""
        self._deferred[fd] = client
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
        self._log_failure(error)
        self._engine.disconnected(session, Code.SERVER_ERROR)
        self._connections.close(fd)

    def connection_failed(self, fd: int, error: Exception) -> None:
        """Close a connection because of an error in this server."""
        self._log_failure(error)
        client = self._connections.fd_states[fd]
        if isinstance(client, Session):
            self._engine.disconnected(client, Code.SERVER_ERROR)
        if client is not None:
            self._connections.close(fd)

    def _log_failure(self, error: Exception) -> None:
        counters = self._connections.counters
        counters.failures += 1
        self._log.error("connection failed", failures=counters.failures, **fault_fields(error))

    def _client_closed(self, fd: int, client: Client) -> None:
        """Handle the end of input: the client closed its side or reset the connection."""
        self._engine.disconnected(client)
        if fd in self._connections.unsent or fd in self._connections.pending_replies:
            self._connections.hang_up(fd, b"")  # the client may still read what is unsent
        else:
            self._connections.close(fd)


def _read_rest(fd: int) -> bytes:
    """Read what follows the first bytes, enough to complete any packet; ignore errors and ends."""
    try:
        return os.read(fd, READ_BYTES - QUICK_READ_BYTES)
    except OSError:
        return b""
