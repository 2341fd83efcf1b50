"""Watches, unwatches and queries of the clients of this node.

| request | answered |
| --- | --- |
| watch of known users | in its turn, from memory |
| … of others | when they are subscribed to and their records were read, or refused after `WATCH_TIMEOUT_S` |
| unwatch | immediately |
| query | from Redis, see `queries.py` |

A watch begins with its answer: what the answer contains is not pushed again, what comes after it is pushed,
and nothing gets lost in between, because both are decided in the same step. A refused watch watches nothing.
Answers are encoded one at a time with a turn for other tasks in between: 500 states take some milliseconds.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import trio

from presence.common.faults import Faults
from presence.common.rate_limit import KeyedRateLimiter
from presence.common.runtime import Runtime, TrioRuntime, TrioWakeEvent
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.core.service_requests import QueryRequest, UnwatchRequest, WatchRequest, send_error, send_ok
from presence.core.visibility import MAX_TIDIED_PER_LOSS, Visibility
from presence.protocol import UIDS_MAX, Code, EncodeError
from presence.watching.channel import ShardServers
from presence.watching.client_answers import last_packets, refuse_busy, refuse_failed, send, states_packet
from presence.watching.pending_watches import (
    MAX_PENDING_BYTES,
    PendingWatch,
    PendingWatches,
    RequestTimeouts,
    bytes_of_watch,
)
from presence.watching.push_queue import PushQueue
from presence.watching.queries import Queries, States
from presence.watching.shard_placement import WatchedShards
from presence.watching.user_states import WatchedState
from presence.watching.user_table import UserTable
from presence.watching.watch_index import Watches
from presence.watching.watch_quota import WatchQuota, bytes_of_watches

WATCH_TIMEOUT_S: Final = 5.0
PENDING_FACTOR: Final = 2  # pending users of one session, as a multiple of the users that it may watch
BURST_FACTOR: Final = 4  # users that a user's connections may ask about in a burst, as the same multiple,
USERS_PER_S: Final = 500.0  # and per second in the long run,
REQUEST_COST: Final = 5  # where a request itself costs as much as so many users
OWN_WATCHES: Final = 10  # of each connection, whatever all watches take together
PASS_CHECK_INTERVAL_S: Final = 0.5
MAX_PASSES_PER_TURN: Final = 64
FULL_RETRY_S: Final = 15.0  # on average, after a refusal for lack of room


class Watching:
    """Serves requests of clients about other users.

    `shard_of` gives the shard of a user, of `shards` in all; `servers` are those that have them. One session
    may watch `max_watches` users; all together may take `memory_bytes`, and each `OWN_WATCHES` in any case,
    see `WatchQuota`. `absence_s`: see `ShardView`. `device_events`: whether clients can watch devices; if not,
    a watch with `detail` is like any other. `visibility`: whom each client may see; None: all users. `quiet`:
    sessions that get changes with their next packet. Errors in the handling of one request or connection are
    contained.
    """

    def __init__(
        self,
        shard_of: Callable[[str], int],
        servers: ShardServers,
        states: States,
        *,
        max_watches: int,
        memory_bytes: int,
        absence_s: float,
        shards: int = 1,
        device_events: bool = False,
        visibility: Visibility | None = None,
        quiet: QuietSessions | None = None,
        runtime: Runtime | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._runtime = runtime or TrioRuntime()
        self._faults = faults or Faults()
        self._max_watches = max_watches
        self._device_events = device_events
        self._watches = Watches(UserTable())
        self._pending = PendingWatches()
        self._pushes = PushQueue(self._watches, self._faults, self._latest, quiet or QuietSessions())
        self._visibility = visibility
        self._queries = Queries(states, self._runtime, self._faults, visibility)
        self._shards = WatchedShards(
            servers,
            shard_of,
            absence_s,
            self._pushes.push,
            self._on_known,
            shards=shards,
            runtime=self._runtime,
            faults=self._faults,
        )
        self._timeouts = RequestTimeouts(WATCH_TIMEOUT_S, self._refuse_timed_out, self._faults, "watch")
        self._complete: deque[PendingWatch] = deque()
        self._completed = TrioWakeEvent()
        self._budget: KeyedRateLimiter[str] = KeyedRateLimiter(  # by uid: a reconnect renews no share
            USERS_PER_S, BURST_FACTOR * max(max_watches, UIDS_MAX)
        )
        self._quota = WatchQuota(OWN_WATCHES, memory_bytes)
        self.askers: set[Session] = set()
        self._taken = self._refused = self._full = self._timed_out = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._shards.run)
            nursery.start_soon(self._pushes.run)
            nursery.start_soon(self._queries.run)
            nursery.start_soon(self._answer_complete)
            nursery.start_soon(self._timeouts.run)
            if self._visibility is not None:
                nursery.start_soon(self._expire_passes, self._visibility)

    def take(self, session: Session, request: QueryRequest | WatchRequest | UnwatchRequest) -> None:
        if session.transport is None:
            return
        self.askers.add(session)
        now = trio.current_time()
        if isinstance(request, UnwatchRequest):
            self._budget.charge(session.uid, now, 1 + len(request.uids or ()))
            self._unwatch(session, request)
            return
        cost = REQUEST_COST + len(request.uids)
        if not self._budget.take(session.uid, now, cost):
            self._refused += 1
            message = "too many users asked about in a short time"
            retry_after = round(self._budget.wait_s(session.uid, now, cost) + 0.01, 2)
            send_error(session, request.id, Code.RATE_LIMITED, message, retry_after)
        elif isinstance(request, QueryRequest):
            self._queries.take(session, request)
        else:
            self._watch(session, request)

    def watches(self, session: Session) -> int:
        """Return the number of users that a session watches."""
        return self._watches.count(session)

    def all_sent(self, session: Session) -> None:
        self._pushes.all_sent(session)

    def release_held(self, session: Session) -> None:
        self._pushes.release(session)

    def sight_changed(self, session: Session) -> None:
        """Notify the client of each user whom it no longer watches."""
        if self._visibility is None:
            return
        self._pending.hide(session, self._visibility.hidden(session, self._pending.asked_by(session)))
        hidden = self._visibility.hidden(session, self._watches.watched_by(session))
        self._pushes.discard(session, hidden)
        self._drop_unwanted(self._watches.remove(session, hidden))
        send(session, last_packets(hidden, Code.NOT_ALLOWED, rows=session.features.batch))

    async def _expire_passes(self, visibility: Visibility) -> None:
        """Hide users from clients whose passes expire."""
        while True:
            await trio.sleep(PASS_CHECK_INTERVAL_S)
            while (sessions := visibility.pop_expired(MAX_PASSES_PER_TURN)) is not None:
                for session in sessions:
                    with self._faults.contained("watch", partial(self._faults.disconnect, session)):
                        self.sight_changed(session)
                    await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()

    def left(self, session: Session) -> None:
        """Drop what belongs to a session whose connection is lost or closing."""
        self.askers.discard(session)
        self._pushes.discard(session)
        self._pushes.with_devices.discard(session)
        self._budget.tidy(trio.current_time(), MAX_TIDIED_PER_LOSS)
        unwanted = self._watches.remove(session)
        for watch in self._pending.remove_session(session):
            self._timeouts.discard(watch)
            unwanted += watch.uids
        self._drop_unwanted(unwanted)

    # Watches

    def _watch(self, session: Session, request: WatchRequest) -> None:
        self._taken += 1
        uids, hidden = list(dict.fromkeys(request.uids)), []
        if self._visibility is not None and (hidden := self._visibility.hidden(session, uids)):
            unseen = set(hidden)
            uids = [uid for uid in uids if uid not in unseen]
        size = bytes_of_watch(request.uids)
        pending = self._pending.count_uids(session) + len(uids)
        if pending > PENDING_FACTOR * max(self._max_watches, UIDS_MAX) or (
            self._pending.bytes + size > MAX_PENDING_BYTES
        ):
            self._refused += 1
            refuse_busy(session, request.id, "too many requests wait")
            return
        wanted = self._pending.wanted_by(session)
        watched = self._watches.count(session, wanted)
        count = self._watches.count(session, wanted.union(uids))
        if count > self._max_watches:
            self._refused += 1
            message = f"a connection may watch {self._max_watches} users; this one watches {watched}"
            send_error(session, request.id, Code.TOO_LARGE, message)
            return
        added = count - watched
        if added and not self._quota.allows(count, self._memory_bytes(uids, added)):
            self._full += 1
            message = (
                f"no memory is left here for more than {OWN_WATCHES} watches of a connection: "
                "watch fewer users, or try again later"
            )
            refuse_busy(session, request.id, message, FULL_RETRY_S)
            return
        missing = [uid for uid in uids if not self._is_known(uid)]
        detail = request.detail and self._device_events
        watch = PendingWatch(session, request.id, uids, set(missing), size, hidden, detail)
        self._pending.add(watch)
        if missing:
            self._timeouts.add(watch)
            self._shards.want(missing)
        else:
            self._complete.append(watch)
            self._completed.set()

    async def _answer_complete(self) -> None:
        """Answer complete watches, one after the other."""
        while True:
            if not self._complete:
                await self._completed.wait(math.inf)
                continue
            watch = self._complete.popleft()
            if not watch.is_over:  # its session is still connected
                self._pending.remove(watch)
                with self._faults.contained("watch", partial(self._refuse_broken, watch)):
                    self._answer_watch(watch)
            await trio.lowlevel.checkpoint()

    def _answer_watch(self, watch: PendingWatch) -> None:
        """Answer a watch, which begins it."""
        session = watch.session
        # A known user stays known while a watch is pending, but may have changed since.
        latest = {uid: self._shards.latest(uid) for uid in watch.uids}
        hidden = watch.hidden
        if self._visibility is not None:  # a pass may have expired whose watches are not ended yet
            hidden = [*hidden, *self._visibility.hidden(session, watch.uids)]
        states = {uid: state for uid, state in latest.items() if state is not None}
        if not watch.detail:
            states = {uid: state.without_devices() for uid, state in states.items()}
        try:
            packet = states_packet(watch.id, states, hidden, rows=session.features.batch)
        except EncodeError:  # only devices take so much
            self._refused += 1
            self._drop_unwanted(watch.uids)
            send_error(session, watch.id, Code.TOO_LARGE, "ask for fewer users")
            return
        wanted = list(watch.wanted)
        if watch.detail:
            self._pushes.with_devices.add(session)
        with self._faults.contained("watch", partial(self._faults.disconnect, session)):
            self._pushes.answered(session, wanted)
            self._watches.add(session, wanted)
            send(session, packet)
        self._drop_unwanted(watch.unwatched)

    def _refuse_broken(self, watch: PendingWatch) -> None:
        """Refuse a watch whose answer failed."""
        self._refused += 1
        self._drop_unwanted(watch.uids)
        refuse_failed(watch.session, watch.id)

    def _unwatch(self, session: Session, request: UnwatchRequest) -> None:
        self._pending.unwatch(session, request.uids)
        self._pushes.discard(session, request.uids)
        self._drop_unwanted(self._watches.remove(session, request.uids))
        send_ok(session, request.id, {})

    def _refuse_timed_out(self, watch: PendingWatch) -> None:
        self._timed_out += 1
        self._pending.remove(watch)
        self._drop_unwanted(watch.uids)
        refuse_busy(watch.session, watch.id, "Redis is away")

    def _memory_bytes(self, uids: Iterable[str] = (), watches: int = 0) -> int:
        """Return the memory of all watches, pending ones included, and of so many more, of these users."""
        new = sum(not (self._watches.is_watched(uid) or self._pending.is_awaited(uid)) for uid in uids)
        users = sum(len(shard.view) for shard in self._shards.all)
        return bytes_of_watches(users + new, len(self._watches) + self._pending.users + watches)

    # Shards

    def _drop_unwanted(self, uids: Iterable[str]) -> None:
        """Unsubscribe from those users that no client watches or waits for."""
        unwanted = [
            uid
            for uid in dict.fromkeys(uids)
            if not (self._watches.is_watched(uid) or self._pending.is_awaited(uid))
        ]
        self._shards.drop(unwanted)

    def _latest(self, uid: str) -> WatchedState | None:
        return self._shards.latest(uid)

    def _is_known(self, uid: str) -> bool:
        return self._shards.current(uid) is not None

    def _on_known(self, uids: Iterable[str]) -> None:
        """Complete the watches that were waiting for these users."""
        for uid in uids:
            if self._pending.is_awaited(uid) and self._is_known(uid):
                for watch in self._pending.resolve(uid):
                    self._timeouts.discard(watch)
                    self._complete.append(watch)
        if self._complete:
            self._completed.set()

    def report(self) -> dict[str, Any]:
        """Return all metrics, for the log."""
        shards = [asdict(shard.statistics) for shard in self._shards.all]
        views = [asdict(shard.view.statistics) for shard in self._shards.all]
        return {
            "watchers": self._watches.sessions,
            "watches": len(self._watches),
            "users": sum(len(shard.view) for shard in self._shards.all),
            "whole_shards": sum(shard.is_whole for shard in self._shards.all),
            "waiting": len(self._pending),
            "memory_bytes": self._memory_bytes(),
            "max_memory_bytes": self._quota.limit_bytes,
            "taken": self._taken,
            "refused": self._refused,
            "full": self._full,
            "timed_out": self._timed_out,
            "shards": {name: sum(each[name] for each in shards) for name in (shards[0] if shards else ())},
            "views": {name: sum(each[name] for each in views) for name in (views[0] if views else ())},
            "pushes": asdict(self._pushes.statistics()),
            "queries": asdict(self._queries.statistics),
        }
