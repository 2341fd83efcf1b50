"""Queries: gathered for a moment, and answered by one look at Redis for all of them.

Whoever asks gets an answer within `PATIENCE_S`, if only that Redis is away.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.core import requests
from presence.core.registry import Session
from presence.core.requests import Query
from presence.watching.answers import refuse_busy, refuse_failed, send, states_packet
from presence.watching.states import WatchedState
from presence.watching.waiting import Patience

GATHER_S: Final = 0.003
USERS_A_READ: Final = 2_000  # some milliseconds of Redis and of ours
USERS_WAITING: Final = 50_000  # in queries that wait: a second's work
PATIENCE_S: Final = 4.5


class States(Protocol):
    """The states of users in Redis: calls that block, made from one thread at a time."""

    def read(self, uids: Sequence[str]) -> Mapping[str, WatchedState]:
        """Return the state of each, `unknown` where a user's nodes are silent.

        Raises:
            StoreUnavailable, StoreError: Redis cannot be asked, or refuses.
        """

    def close(self) -> None:
        """Close the connections; a call that waits fails. Any thread may do so."""


@dataclass(slots=True)
class QueryStatistics:
    """Counters since the start: queries taken, answered and refused; reads, and those that failed."""

    taken: int = 0
    answered: int = 0
    refused: int = 0
    reads: int = 0
    failures: int = 0


@dataclass(eq=False, slots=True)
class _Asked:
    session: Session
    query: Query
    uids: list[str]
    users: int  # when it was asked; once it is answered, `uids` is empty
    is_settled: bool = False


class Queries:
    """Answers queries. Nobody else uses `states`; `faults` contains mistakes: the query is refused."""

    def __init__(self, states: States, runtime: Runtime, faults: Faults) -> None:
        self._states = states
        self._faults = faults
        self._thread = runtime.thread_caller(states.close)
        self._queue: deque[_Asked] = deque()
        self._patience = Patience(PATIENCE_S, self._fail, faults, "query")
        self._users = 0  # in the queue
        self._asked = trio.Event()
        self.statistics = QueryStatistics()

    def take(self, session: Session, query: Query) -> None:
        """See `requests.Desk`."""
        self.statistics.taken += 1
        uids = list(dict.fromkeys(query.uids))
        if not uids:
            self.statistics.answered += 1
            requests.send_ok(session, query.id, {"presence": {}})
            return
        if self._users + len(uids) > USERS_WAITING:
            self._refuse(session, query.id, "too many queries wait")
            return
        asked = _Asked(session, query, uids, len(uids))
        self._queue.append(asked)
        self._patience.add(asked)
        self._users += len(uids)
        self._asked.set()

    async def run(self) -> None:
        """Answer for ever; cancel it to stop."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._patience.run)
            while True:
                if not self._queue:
                    self._asked = trio.Event()
                    await self._asked.wait()
                    await trio.sleep(GATHER_S)
                await self._read(self._next())

    def _next(self) -> list[_Asked]:
        batch: list[_Asked] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0].uids) <= USERS_A_READ):
            asked = self._queue.popleft()
            self._users -= asked.users
            if asked.is_settled or asked.session.link is None:
                self._settle(asked)
                continue
            size += len(asked.uids)
            batch.append(asked)
        return batch

    async def _read(self, batch: Sequence[_Asked]) -> None:
        uids = list(dict.fromkeys(uid for asked in batch for uid in asked.uids))
        if not uids:
            return
        self.statistics.reads += 1
        try:
            states = await self._thread.call(lambda: self._states.read(uids))
        except (StoreUnavailable, StoreError) as error:
            self.statistics.failures += 1
            for asked in batch:
                self._fail(asked, "Redis is away" if isinstance(error, StoreUnavailable) else "Redis refuses")
                await trio.lowlevel.checkpoint()
            return
        except Exception as error:  # one user's record, perhaps: the other queries are not to suffer from it
            self.statistics.failures += 1
            if len(batch) > 1:
                for asked in batch:
                    await self._read([] if asked.is_settled else [asked])
            else:
                self._faults.record("query", error)
                with self._faults.contained("query"):
                    self._broken(batch[0])
            return
        for asked in batch:
            if not asked.is_settled:
                with self._faults.contained("query", partial(self._broken, asked)):
                    self._answer(asked, states)
                await trio.lowlevel.checkpoint()  # packing 500 states takes some milliseconds

    def _answer(self, asked: _Asked, states: Mapping[str, WatchedState]) -> None:
        packet = states_packet(asked.query.id, {uid: states[uid] for uid in asked.uids})
        self._settle(asked)
        self.statistics.answered += 1
        send(asked.session, packet)

    def _fail(self, asked: _Asked, message: str = "Redis is away") -> None:
        if not asked.is_settled:
            self._settle(asked)
            self._refuse(asked.session, asked.query.id, message)

    def _broken(self, asked: _Asked) -> None:
        if asked.is_settled:  # its answer could not be sent
            self._faults.disconnect(asked.session)
            return
        self._settle(asked)
        self.statistics.refused += 1
        refuse_failed(asked.session, asked.query.id)

    @staticmethod
    def _settle(asked: _Asked) -> None:
        asked.is_settled, asked.uids = True, []

    def _refuse(self, session: Session, id: int | None, message: str) -> None:
        self.statistics.refused += 1
        refuse_busy(session, id, message)
