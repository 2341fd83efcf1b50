"""Watches, unwatches and queries of the clients of this node.

| request | answered |
| --- | --- |
| watch of known users | in its turn, from memory |
| … of others | when they are subscribed to and their records were read, or refused after `WATCH_TIMEOUT_S` |
| unwatch | immediately |
| query | from Redis, see `queries.py` |
| watch of the roster | when it was read, see `rosters.py`; then like any watch |
| … and query of rooms | from Redis, see `room_watch_service.py` |

A watch begins with its answer: what the answer contains is not pushed again, what comes after it is pushed,
and nothing gets lost in between, because both are decided in the same step. A refused watch watches nothing.
Answers are encoded one at a time with a turn for other tasks in between: 500 states take some milliseconds.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

import trio

from presence.common.faults import Faults
from presence.common.rate_limit import KeyedRateLimiter
from presence.common.runtime import Runtime, TrioRuntime, TrioWakeEvent
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.core.service_requests import (
    QueryRequest,
    RoomQueryRequest,
    RoomRequest,
    RoomUnwatchRequest,
    RoomWatchRequest,
    UnwatchRequest,
    WatchRequest,
    send_error,
    send_ok,
)
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
from presence.watching.room_watch_service import RoomSource, RoomWatchService
from presence.watching.roster_changes import RosterChanges
from presence.watching.rosters import NoRosters, Rosters
from presence.watching.shard_placement import WatchedShards
from presence.watching.shard_view import ViewStatistics
from presence.watching.shard_watch import ShardStatistics
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
MAX_DROPPED_PER_TURN: Final = 256  # users whom no client watches any more: a millisecond
PASS_CHECK_INTERVAL_S: Final = 0.5
MAX_PASSES_PER_TURN: Final = 64
FULL_RETRY_S: Final = 15.0  # on average, after a refusal for lack of room


class Watching:
    """Serves requests of clients about other users.

    `shard_of` gives the shard of a user, of `shards` in all; `servers` are those that have them.
    `live_nodes` returns how many nodes read from these, this one included. One session may watch
    `max_watches` users; all together may take `memory_bytes`, and each `OWN_WATCHES` in any case, see
    `WatchQuota`. `rosters`: where backends put them; None: there are none. `claimed_rosters`: those of
    tokens, uids with spaces in between. `rooms`: None: there are none. `absence_s`: see `ShardView`.
    `device_events`: whether clients can watch devices; if not, a watch with `detail` is like any other.
    `visibility`: whom each client may see; None: all users. `quiet`: sessions that get changes with their
    next packet. Errors in the handling of one request or connection are contained.
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
        live_nodes: Callable[[], int] = lambda: 1,
        device_events: bool = False,
        visibility: Visibility | None = None,
        quiet: QuietSessions | None = None,
        rosters: Rosters | None = None,
        claimed_rosters: Mapping[Session, str] = MappingProxyType({}),
        rooms: RoomSource | None = None,
        runtime: Runtime | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._runtime = runtime or TrioRuntime()
        self._faults = faults or Faults()
        self._max_watches = max_watches
        self._device_events = device_events
        self._users = UserTable()
        self._watches = Watches(self._users)
        self._pending = PendingWatches()
        self._quiet = quiet or QuietSessions()
        self._pushes = PushQueue(self._watches, self._faults, self._latest, self._quiet)
        self._visibility = visibility
        self._queries = Queries(states, self._runtime, self._faults, visibility)
        self._shards = WatchedShards(
            servers,
            shard_of,
            absence_s,
            self._pushes.push,
            self._on_known,
            users=self._users,
            shards=shards,
            live_nodes=live_nodes,
            runtime=self._runtime,
            faults=self._faults,
        )
        self._roster_changes = RosterChanges(
            self,
            self._pending,
            self._watches,
            self._pushes,
            self._shards,
            claimed=claimed_rosters,
            rosters=rosters or NoRosters(),
            visibility=visibility,
            quiet=self._quiet,
            runtime=self._runtime,
            faults=self._faults,
        )
        self._rosters = self._roster_changes.followed
        self._timeouts = RequestTimeouts(WATCH_TIMEOUT_S, self._refuse_timed_out, self._faults, "watch")
        self._complete: deque[PendingWatch] = deque()
        self._completed = TrioWakeEvent()
        self._unwanted: deque[str] = deque()  # users whom sessions watched or waited for that are gone
        self._dropping = TrioWakeEvent()
        self._budget: KeyedRateLimiter[str] = KeyedRateLimiter(  # by uid: a reconnect renews no share
            USERS_PER_S, BURST_FACTOR * max(max_watches, UIDS_MAX)
        )
        self._quota = WatchQuota(OWN_WATCHES, memory_bytes)
        self._rooms = RoomWatchService(
            rooms,
            self._has_room_for_rooms,
            visibility=visibility,
            quiet=self._quiet,
            runtime=self._runtime,
            faults=self._faults,
        )
        self.askers: set[Session] = set()
        self._taken = self._refused = self._full = self._timed_out = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._shards.run)
            nursery.start_soon(self._pushes.run)
            nursery.start_soon(self._queries.run)
            nursery.start_soon(self._rosters.run)
            nursery.start_soon(self._rooms.run)
            nursery.start_soon(self._answer_complete)
            nursery.start_soon(self._timeouts.run)
            nursery.start_soon(self._drop_all_unwanted)
            if self._visibility is not None:
                nursery.start_soon(self._expire_passes, self._visibility)

    def take(
        self, session: Session, request: QueryRequest | WatchRequest | UnwatchRequest | RoomRequest
    ) -> None:
        if session.transport is None:
            return
        self.askers.add(session)
        now = trio.current_time()
        if isinstance(request, UnwatchRequest):
            self._budget.charge(session.uid, now, 1 + len(request.uids or ()))
            self._unwatch(session, request)
            return
        if isinstance(request, RoomUnwatchRequest):
            self._budget.charge(session.uid, now, 1 + len(request.rooms))
            self._rooms.unwatch(session, request.rooms)
            send_ok(session, request.id, {})
            return
        if isinstance(request, RoomQueryRequest | RoomWatchRequest):
            cost = REQUEST_COST + self._rooms.cost(request.rooms)
        else:
            cost = REQUEST_COST + len(request.uids)
        if not self._budget.take(session.uid, now, cost):
            self._refused += 1
            message = "too many users asked about in a short time"
            retry_after = round(self._budget.wait_s(session.uid, now, cost) + 0.01, 2)
            send_error(session, request.id, Code.RATE_LIMITED, message, retry_after)
        elif isinstance(request, RoomQueryRequest | RoomWatchRequest):
            self._rooms.take(session, request)
        elif isinstance(request, QueryRequest):
            self._queries.take(session, request)
        elif request.roster:
            self._roster_changes.follow(session, request)
        else:
            self.watch(session, request)
        if isinstance(request, WatchRequest) and request.visibility_pass is not None:
            self._rooms.rights_changed(session)  # it may show more members

    def watches(self, session: Session) -> int:
        """Return the number of users that a session watches."""
        return self._watches.count(session)

    def roster_watch(self, session: Session) -> Literal["requested", "followed"] | None:
        """Whether a session follows its user's roster; ``requested``: it waits until the roster is read."""
        follower = self._rosters.get(session)
        if follower is None:
            return None
        return "followed" if follower.is_answered else "requested"

    def watched_rooms(self, session: Session) -> int:
        """Return the number of rooms that a session watches."""
        return len(self._rooms.watched_by(session))

    def rooms_sent(self, session: Session, most: int) -> list[dict[str, object]]:
        """Return what a session was sent of rooms that it watches; see `RoomWatchService.sent_to`."""
        return self._rooms.sent_to(session, most)

    def is_behind_on_rooms(self, session: Session) -> bool:
        """Whether a session is sent changes of rooms when it can take them."""
        return self._rooms.is_behind(session)

    @property
    def is_used(self) -> bool:
        """Whether any session watches users."""
        return bool(self._watches.sessions)

    def all_sent(self, session: Session) -> None:
        self._pushes.all_sent(session)
        self._rosters.again(session)
        self._rooms.catch_up(session)

    def release_held(self, session: Session) -> None:
        self._pushes.release(session)
        self._rosters.again(session)
        self._rooms.catch_up(session)

    def rosters_changed(self, uids: Iterable[str] | None) -> None:
        """Compare the rosters of users with what their sessions watch; None: all, because some may differ."""
        if uids is None:
            self._rosters.missed()
        else:
            self._rosters.changed(uids)

    def rooms_changed(self, names: Iterable[str] | None) -> None:
        """Read rooms that have changed, if they are watched; None: all, because some may have."""
        self._rooms.changed(names)

    def sight_changed(self, session: Session) -> None:
        """Notify the client of each user whom it no longer watches."""
        self._rosters.changed((session.uid,))  # a new token may claim another
        self._rooms.rights_changed(session)
        if self._visibility is None:
            return
        self._pending.hide(session, self._visibility.hidden(session, self._pending.asked_by(session)))
        hidden = self._visibility.hidden(session, self._watches.watched_by(session))
        self._discard(session, hidden)
        self.drop_unwanted(self._watches.remove(session, hidden))
        if hidden and (follower := self._rosters.get(session)) is not None:
            self._rosters.unwatched(follower, hidden)
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
        self._rosters.stop(session)
        self._rooms.left(session)
        self._pushes.discard(session)
        self._pushes.with_devices.discard(session)
        self._budget.tidy(trio.current_time(), MAX_TIDIED_PER_LOSS)
        self._unwanted.extend(self._watches.remove(session))
        for watch in self._pending.remove_session(session):
            self._timeouts.discard(watch)
            self._unwanted.extend(watch.uids)
        self._dropping.set()

    # Watches

    def watch(self, session: Session, request: WatchRequest, roster: Sequence[str] | None = None) -> None:
        """Begin a watch of the users that a request names, and those of a roster, or refuse it."""
        self._taken += 1
        if roster:
            self._budget.charge(session.uid, trio.current_time(), len(roster))
        named = list(dict.fromkeys(request.uids))
        uids, hidden = list(dict.fromkeys([*named, *(roster or ())])), []
        if len(uids) > UIDS_MAX:
            self._refused += 1
            message = f"the users and the roster are more than {UIDS_MAX} together"
            send_error(session, request.id, Code.TOO_LARGE, message)
            return
        if self._visibility is not None and (hidden := self._visibility.hidden(session, uids)):
            unseen = set(hidden)
            uids = [uid for uid in uids if uid not in unseen]
        size = bytes_of_watch([*uids, *hidden])
        pending = self._pending.count_uids(session) + len(uids)
        if pending > PENDING_FACTOR * max(self._max_watches, UIDS_MAX) or (
            self._pending.bytes + size > MAX_PENDING_BYTES
        ):
            self.refuse(session, request.id, "too many requests wait")
            return
        wanted = self._pending.wanted_by(session)
        watched = self._watches.count(session, wanted)
        follower = self._rosters.get(session)
        # Those that a watch of the roster takes up again, it skips no longer.
        skipped = len(follower.skipped.difference(uids)) if follower is not None and roster is None else 0
        count = self._watches.count(session, wanted.union(uids)) + skipped
        if count > self._max_watches:
            self._refused += 1
            message = f"a connection may watch {self._max_watches} users; this one watches {watched}"
            send_error(session, request.id, Code.TOO_LARGE, message)
            return
        added = count - skipped - watched
        if added and not self._has_room(count, added, uids):
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
        if roster is not None:
            watch.follower, watch.named = follower, frozenset(named)
            watch.roster, watch.roster_size = frozenset(roster), len(roster)
        self.begin(watch)

    def fitting(self, count: int, uids: list[str]) -> list[str]:
        """Return those of some users, the first ones, whom a session with `count` watches may watch, too."""
        fitting = uids[: max(0, self._max_watches - count)]
        fits = self._pending.bytes + bytes_of_watch(fitting) <= MAX_PENDING_BYTES
        return fitting if fits and self._has_room(count + len(fitting), len(fitting), fitting) else []

    def begin(self, watch: PendingWatch) -> None:
        """Begin a watch that fits."""
        self._pending.add(watch)
        if watch.follower is not None:
            watch.follower.is_busy = True
        if watch.missing:
            self._timeouts.add(watch)
            self._shards.want(uid for uid in watch.uids if uid in watch.missing)
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
                    if watch.is_silent:
                        self._roster_changes.add_silently(watch)
                    else:
                        self._answer_watch(watch)
                self._roster_changes.over(watch)
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
            batch, roster = session.features.batch, watch.roster_size
            packet = states_packet(watch.id, states, hidden, rows=batch, roster=roster)
        except EncodeError:  # only devices take so much
            self._refused += 1
            self.drop_unwanted(watch.uids)
            send_error(session, watch.id, Code.TOO_LARGE, "ask for fewer users")
            return
        wanted = list(watch.wanted)
        if watch.detail:
            self._pushes.with_devices.add(session)
        with self._faults.contained("watch", partial(self._faults.disconnect, session)):
            self._pushes.answered(session, wanted)
            self.hold_again(session)
            self._watches.add(session, wanted)
            send(session, packet)
        self._roster_changes.answered(watch, wanted)
        self.drop_unwanted(watch.unwatched)

    def _refuse_broken(self, watch: PendingWatch) -> None:
        """Refuse a watch whose answer failed."""
        self._refused += 1
        self.drop_unwanted(watch.uids)
        if watch.is_silent:  # perhaps some were sent: after a login the client has the whole roster
            self._faults.disconnect(watch.session)
        else:
            refuse_failed(watch.session, watch.id)

    def _unwatch(self, session: Session, request: UnwatchRequest) -> None:
        uids = request.uids
        if (follower := self._rosters.get(session)) is not None:
            if uids is not None:
                wanted = self._pending.wanted_by(session)
                gone = [uid for uid in uids if uid in wanted or self._watches.has(session, uid)]
                self._rosters.unwatched(follower, gone)
            if uids is None or request.roster:
                uids = self._roster_changes.stop_following(follower, uids)
        if request.uids is None:
            self._rooms.unwatch(session, None)
        self._pending.unwatch(session, uids)
        self._discard(session, uids)
        self.drop_unwanted(self._watches.remove(session, uids))
        send_ok(session, request.id, {})

    def _refuse_timed_out(self, watch: PendingWatch) -> None:
        self._timed_out += 1
        self._pending.remove(watch)
        self.drop_unwanted(watch.uids)
        if watch.is_silent and watch.follower is not None:
            self._rosters.later(watch.follower)
        else:
            refuse_busy(watch.session, watch.id, "Redis is away")
        self._roster_changes.over(watch)

    def refuse(self, session: Session, id: int | None, message: str) -> None:
        """Refuse a request for now."""
        self._refused += 1
        refuse_busy(session, id, message)

    def _discard(self, session: Session, uids: Iterable[str] | None) -> None:
        """Discard changes that are deferred for a session."""
        self._pushes.discard(session, uids)
        self.hold_again(session)

    def hold_again(self, session: Session) -> None:
        """Hold what is put off for a quiet session, whatever has become of deferred changes of users."""
        is_behind = self._roster_changes.is_put_off(session) or self._rooms.is_behind(session)
        if is_behind and session in self._quiet.sessions:
            self._quiet.holding.add(session)

    def _has_room(self, watches: int, added: int, uids: Iterable[str]) -> bool:
        """Whether a session may have so many watches; so many are new, and of these users."""
        new = [uid for uid in uids if self._users.find(uid) is None]
        users = len(self._users) + self._pending.users + len(new)
        return self._quota.allows(watches, users, self._memory_bytes(new, added))

    def _memory_bytes(self, users: Sequence[str] = (), watches: int = 0) -> int:
        """Return the memory of all watches, pending ones included, with further users and watches."""
        watched = bytes_of_watches(
            users=len(self._users) + self._pending.users + len(users),
            name_bytes=self._users.name_bytes + sum(map(len, users)),
            watches=len(self._watches) + self._pending.users + watches,
            sessions=self._watches.sessions,
            unusual_bytes=self._shards.states.unusual_bytes,
        )
        return watched + self._rosters.bytes + self._rooms.memory_bytes

    def _has_room_for_rooms(self, watches: float, more_bytes: int) -> bool:
        """Whether a session may watch so many rooms, which make all take so many bytes more."""
        return self._quota.allows(watches, 0, self._memory_bytes() + more_bytes)

    # Shards

    async def _drop_all_unwanted(self) -> None:
        """Drop users whom sessions watched that are gone: hundreds of sessions may end together."""
        while True:
            if not self._unwanted:
                await self._dropping.wait(math.inf)
            self.drop_unwanted(
                [self._unwanted.popleft() for _ in range(min(MAX_DROPPED_PER_TURN, len(self._unwanted)))]
            )
            await trio.lowlevel.checkpoint()

    def drop_unwanted(self, uids: Iterable[str]) -> None:
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
        return self._shards.is_current(uid)

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
        shards = [
            asdict(each) for each in (ShardStatistics(), *(shard.statistics for shard in self._shards.all))
        ]
        views = [
            asdict(each)
            for each in (ViewStatistics(), *(shard.view.statistics for shard in self._shards.all))
        ]
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
            "shards": {name: sum(each[name] for each in shards) for name in shards[0]},
            "views": {name: sum(each[name] for each in views) for name in views[0]},
            "pushes": asdict(self._pushes.statistics()),
            "queries": asdict(self._queries.statistics),
            "rosters": asdict(self._rosters.statistics),
            "rooms": asdict(self._rooms.statistics),
        }
