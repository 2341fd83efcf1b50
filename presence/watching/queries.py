"""Queries: gathered for a moment, and answered by one read of Redis for all of them.

Each query gets an answer within `QUERY_TIMEOUT_S`, if only that Redis is unreachable.

Tests: `tests/watching/test_watch_service.py`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from presence import protocol
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.core.registry import Session
from presence.core.service_requests import QueryRequest, send_error
from presence.core.visibility import Visibility
from presence.protocol import Code
from presence.watching.client_answers import refuse_busy, refuse_failed, send, states_packet
from presence.watching.pending_watches import RequestTimeouts, memory_of
from presence.watching.user_states import WatchedState

GATHER_S: Final = 0.003
MAX_USERS_PER_READ: Final = 2_000  # some milliseconds of Redis and of this process
MAX_PENDING_USERS: Final = 50_000  # in pending queries: a second of work
MAX_PENDING_BYTES: Final = (
    32_000_000  # memory of pending queries; those being read are at most `MAX_USERS_PER_READ`
)
QUERY_BYTES: Final = 1_000  # memory of a query beside its users
QUERY_USER_BYTES: Final = 24  # memory of a user of a query beside the name
QUERY_TIMEOUT_S: Final = 4.5


class States(Protocol):
    """The states of users in Redis: blocking calls, one at a time."""

    def read(self, uids: Sequence[str], *, detail: bool) -> Mapping[str, WatchedState]:
        """Return the state of each user, `unknown` if the leases of their nodes have expired.

        `detail`: with those of their devices.

        Raises:
            StoreUnavailable, StoreError: Redis is unreachable, or refuses.
        """


@dataclass(slots=True)
class QueryStatistics:
    """Counters since the start: queries taken, answered and refused; reads, and those that failed."""

    taken: int = 0
    answered: int = 0
    refused: int = 0
    reads: int = 0
    failures: int = 0


@dataclass(eq=False, slots=True)
class _PendingQuery:
    session: Session
    query: QueryRequest
    uids: list[str]
    hidden: list[str]  # users whom the client may not see
    users: int  # number of `uids`, which are emptied with the answer
    size_bytes: int  # approximate memory
    is_settled: bool = False


class Queries:
    """Answers queries. Only this object uses `states`; after an error the query is refused.

    `visibility`: whom each client may see; None: all users.
    """

    def __init__(
        self, states: States, runtime: Runtime, faults: Faults, visibility: Visibility | None = None
    ) -> None:
        self._states = states
        self._visibility = visibility
        self._faults = faults
        self._redis = runtime.loop_caller()
        self._queue: deque[_PendingQuery] = deque()
        self._timeouts = RequestTimeouts(QUERY_TIMEOUT_S, self._refuse_unavailable, faults, "query")
        self._users = self._bytes = 0  # in the queue
        self._arrived = trio.Event()
        self.statistics = QueryStatistics()

    def take(self, session: Session, query: QueryRequest) -> None:
        """Queue a query, or refuse it."""
        self.statistics.taken += 1
        uids, hidden = list(dict.fromkeys(query.uids)), []
        if self._visibility is not None and (hidden := self._visibility.hidden(session, uids)):
            unseen = set(hidden)
            uids = [uid for uid in uids if uid not in unseen]
        if not uids:
            self.statistics.answered += 1
            send(session, states_packet(query.id, {}, hidden, rows=session.features.batch))
            return
        size = QUERY_BYTES + len(query.uids) * QUERY_USER_BYTES + memory_of(query.uids)
        if self._users + len(uids) > MAX_PENDING_USERS or self._bytes + size > MAX_PENDING_BYTES:
            self._refuse(session, query.id, "too many queries wait")
            return
        pending = _PendingQuery(session, query, uids, hidden, len(uids), size)
        self._queue.append(pending)
        self._timeouts.add(pending)
        self._users += len(uids)
        self._bytes += size
        self._arrived.set()

    async def run(self) -> None:
        """Answer queries until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timeouts.run)
            while True:
                if not self._queue:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                    await trio.sleep(GATHER_S)
                await self._read(self._next())

    def _next(self) -> list[_PendingQuery]:
        batch: list[_PendingQuery] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0].uids) <= MAX_USERS_PER_READ):
            pending = self._queue.popleft()
            self._users -= pending.users
            self._bytes -= pending.size_bytes
            if pending.is_settled or pending.session.transport is None:
                self._settle(pending)
                continue
            size += len(pending.uids)
            batch.append(pending)
        return batch

    async def _read(self, batch: Sequence[_PendingQuery]) -> None:
        uids = list(dict.fromkeys(uid for pending in batch for uid in pending.uids))
        if not uids:
            return
        self.statistics.reads += 1
        try:
            detail = any(pending.query.detail for pending in batch)
            states = await self._redis.call(lambda: self._states.read(uids, detail=detail))
        except (StoreUnavailable, StoreError) as error:
            self.statistics.failures += 1
            message = "Redis is away" if isinstance(error, StoreUnavailable) else "Redis refuses"
            for pending in batch:
                self._refuse_unavailable(pending, message)
                await trio.lowlevel.checkpoint()
            return
        except Exception as error:  # perhaps one user's record: the other queries must not fail with it
            self.statistics.failures += 1
            if len(batch) > 1:
                for pending in batch:
                    await self._read([] if pending.is_settled else [pending])
            else:
                self._faults.record("query", error)
                with self._faults.contained("query"):
                    self._refuse_failed(batch[0])
            return
        for pending in batch:
            if not pending.is_settled:
                with self._faults.contained("query", partial(self._refuse_failed, pending)):
                    self._answer(pending, states)
                await trio.lowlevel.checkpoint()  # packing 500 states takes some milliseconds

    def _answer(self, pending: _PendingQuery, states: Mapping[str, WatchedState]) -> None:
        hidden = pending.hidden
        if self._visibility is not None:  # a fresh token may have hidden some meanwhile
            hidden = [*hidden, *self._visibility.hidden(pending.session, pending.uids)]
        wanted = {uid: states[uid] for uid in pending.uids}
        if not pending.query.detail:
            wanted = {uid: state.without_devices() for uid, state in wanted.items()}
        try:
            rows = pending.session.features.batch
            packet = states_packet(pending.query.id, wanted, hidden, rows=rows)
        except protocol.EncodeError:  # only devices take so much
            self._settle(pending)
            self.statistics.refused += 1
            send_error(pending.session, pending.query.id, Code.TOO_LARGE, "ask for fewer users")
            return
        self._settle(pending)
        self.statistics.answered += 1
        send(pending.session, packet)

    def _refuse_unavailable(self, pending: _PendingQuery, message: str = "Redis is away") -> None:
        if not pending.is_settled:
            self._settle(pending)
            self._refuse(pending.session, pending.query.id, message)

    def _refuse_failed(self, pending: _PendingQuery) -> None:
        if pending.is_settled:  # its answer could not be sent
            self._faults.disconnect(pending.session)
            return
        self._settle(pending)
        self.statistics.refused += 1
        refuse_failed(pending.session, pending.query.id)

    def _settle(self, pending: _PendingQuery) -> None:
        pending.is_settled, pending.uids = True, []
        self._timeouts.discard(pending)

    def _refuse(self, session: Session, id: int | None, message: str) -> None:
        self.statistics.refused += 1
        refuse_busy(session, id, message)
