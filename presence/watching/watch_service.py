"""Watches, unwatches and queries of the clients of this node.

| request | answered |
| --- | --- |
| watch of known users | in its turn, from memory |
| … of others | when they are subscribed to and their records were read, or refused after `WATCH_TIMEOUT_S` |
| unwatch | immediately |
| query | from Redis, see `queries.py` |
| watch of the roster | when it was read, see `rosters.py`; then like any watch |

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
from presence.watching.rosters import FollowedRosters, NoRosters, RosterFollower, Rosters
from presence.watching.shard_placement import WatchedShards
from presence.watching.shard_view import ViewStatistics
from presence.watching.shard_watch import ShardStatistics
from presence.watching.user_states import HIDDEN, REMOVED, WatchedState
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
MAX_ROSTER_CHANGES_PER_TURN: Final = 64  # of one session: a millisecond; the rest follows in further turns


class Watching:
    """Serves requests of clients about other users.

    `shard_of` gives the shard of a user, of `shards` in all; `servers` are those that have them.
    `live_nodes` returns how many nodes read from these, this one included. One session may watch
    `max_watches` users; all together may take `memory_bytes`, and each `OWN_WATCHES` in any case, see
    `WatchQuota`. `rosters`: where backends put them; None: there are none. `claimed_rosters`: those of
    tokens, uids with spaces in between. `absence_s`: see `ShardView`. `device_events`: whether clients can
    watch devices; if not, a watch with `detail` is like any other. `visibility`: whom each client may see;
    None: all users. `quiet`: sessions that get changes with their next packet. Errors in the handling of one
    request or connection are contained.
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
        self._claimed_rosters = claimed_rosters
        self._rosters = FollowedRosters(
            rosters or NoRosters(),
            self._compare_roster,
            self._refuse_without_roster,
            self._runtime,
            self._faults,
        )
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
        self._timeouts = RequestTimeouts(WATCH_TIMEOUT_S, self._refuse_timed_out, self._faults, "watch")
        self._complete: deque[PendingWatch] = deque()
        self._completed = TrioWakeEvent()
        self._unwanted: deque[str] = deque()  # users whom sessions watched or waited for that are gone
        self._dropping = TrioWakeEvent()
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
            nursery.start_soon(self._rosters.run)
            nursery.start_soon(self._answer_complete)
            nursery.start_soon(self._timeouts.run)
            nursery.start_soon(self._drop_all_unwanted)
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
        elif request.roster:
            self._follow(session, request)
        else:
            self._watch(session, request)

    def watches(self, session: Session) -> int:
        """Return the number of users that a session watches."""
        return self._watches.count(session)

    def roster_watch(self, session: Session) -> Literal["requested", "followed"] | None:
        """Whether a session follows its user's roster; ``requested``: it waits until the roster is read."""
        follower = self._rosters.get(session)
        if follower is None:
            return None
        return "followed" if follower.is_answered else "requested"

    @property
    def is_used(self) -> bool:
        """Whether any session watches users."""
        return bool(self._watches.sessions)

    def all_sent(self, session: Session) -> None:
        self._pushes.all_sent(session)
        self._rosters.again(session)

    def release_held(self, session: Session) -> None:
        self._pushes.release(session)
        self._rosters.again(session)

    def rosters_changed(self, uids: Iterable[str] | None) -> None:
        """Compare the rosters of users with what their sessions watch; None: all, because some may differ."""
        if uids is None:
            self._rosters.missed()
        else:
            self._rosters.changed(uids)

    def sight_changed(self, session: Session) -> None:
        """Notify the client of each user whom it no longer watches."""
        self._rosters.changed((session.uid,))  # a new token may claim another
        if self._visibility is None:
            return
        self._pending.hide(session, self._visibility.hidden(session, self._pending.asked_by(session)))
        hidden = self._visibility.hidden(session, self._watches.watched_by(session))
        self._discard(session, hidden)
        self._drop_unwanted(self._watches.remove(session, hidden))
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
        self._pushes.discard(session)
        self._pushes.with_devices.discard(session)
        self._budget.tidy(trio.current_time(), MAX_TIDIED_PER_LOSS)
        self._unwanted.extend(self._watches.remove(session))
        for watch in self._pending.remove_session(session):
            self._timeouts.discard(watch)
            self._unwanted.extend(watch.uids)
        self._dropping.set()

    # Watches

    def _watch(self, session: Session, request: WatchRequest, roster: Sequence[str] | None = None) -> bool:
        """Begin a watch of the users that a request names, and those of a roster, or refuse it.

        Return whether it began.
        """
        self._taken += 1
        named = list(dict.fromkeys(request.uids))
        uids, hidden = list(dict.fromkeys([*named, *(roster or ())])), []
        if len(uids) > UIDS_MAX:
            self._refused += 1
            message = f"the users and the roster are more than {UIDS_MAX} together"
            send_error(session, request.id, Code.TOO_LARGE, message)
            return False
        if self._visibility is not None and (hidden := self._visibility.hidden(session, uids)):
            unseen = set(hidden)
            uids = [uid for uid in uids if uid not in unseen]
        size = bytes_of_watch([*uids, *hidden])
        pending = self._pending.count_uids(session) + len(uids)
        if pending > PENDING_FACTOR * max(self._max_watches, UIDS_MAX) or (
            self._pending.bytes + size > MAX_PENDING_BYTES
        ):
            self._refused += 1
            refuse_busy(session, request.id, "too many requests wait")
            return False
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
            return False
        added = count - skipped - watched
        if added and not self._has_room(count, added, uids):
            self._full += 1
            message = (
                f"no memory is left here for more than {OWN_WATCHES} watches of a connection: "
                "watch fewer users, or try again later"
            )
            refuse_busy(session, request.id, message, FULL_RETRY_S)
            return False
        missing = [uid for uid in uids if not self._is_known(uid)]
        detail = request.detail and self._device_events
        watch = PendingWatch(session, request.id, uids, set(missing), size, hidden, detail)
        if roster is not None:
            watch.follower, watch.named = follower, frozenset(named)
            watch.roster, watch.roster_size = frozenset(roster), len(roster)
        self._begin(watch)
        return True

    def _begin(self, watch: PendingWatch) -> None:
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
                        self._add_silently(watch)
                    else:
                        self._answer_watch(watch)
                self._over(watch)
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
            self._drop_unwanted(watch.uids)
            send_error(session, watch.id, Code.TOO_LARGE, "ask for fewer users")
            return
        wanted = list(watch.wanted)
        if watch.detail:
            self._pushes.with_devices.add(session)
        with self._faults.contained("watch", partial(self._faults.disconnect, session)):
            self._pushes.answered(session, wanted)
            self._hold_again(session)
            self._watches.add(session, wanted)
            send(session, packet)
        self._note_answered(watch, wanted)
        self._drop_unwanted(watch.unwatched)

    def _note_answered(self, watch: PendingWatch, wanted: Iterable[str]) -> None:
        """Note what a session that follows its roster watches by name, and what of the roster it does not."""
        follower = self._rosters.get(watch.session)
        if follower is None:
            return
        named, skipped = follower.named.union(wanted), follower.skipped.difference(wanted)
        if watch.follower is follower:
            follower.is_answered = True
            named = follower.named.union(watch.named.intersection(wanted))
            skipped = watch.roster.difference(wanted)
        self._rosters.keep(follower, named=named, skipped=skipped)

    def _refuse_broken(self, watch: PendingWatch) -> None:
        """Refuse a watch whose answer failed."""
        self._refused += 1
        self._drop_unwanted(watch.uids)
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
                uids = self._stop_following(follower, uids)
        self._pending.unwatch(session, uids)
        self._discard(session, uids)
        self._drop_unwanted(self._watches.remove(session, uids))
        send_ok(session, request.id, {})

    def _refuse_timed_out(self, watch: PendingWatch) -> None:
        self._timed_out += 1
        self._pending.remove(watch)
        self._drop_unwanted(watch.uids)
        if watch.is_silent and watch.follower is not None:
            self._rosters.later(watch.follower)
        else:
            refuse_busy(watch.session, watch.id, "Redis is away")
        self._over(watch)

    def _over(self, watch: PendingWatch) -> None:
        """Go on with the roster whose users a watch had."""
        if (follower := watch.follower) is not None:
            follower.is_busy = False
            if self._rosters.get(follower.session) is follower:
                self._drop_unanswered(follower)
                self._rosters.again(follower.session)

    # Rosters

    def _follow(self, session: Session, request: WatchRequest) -> None:
        """Let a watch wait for the roster of its user."""
        size = bytes_of_watch(request.uids)
        watched = self._pending.wanted_by(session).union(self._watches.watched_by(session))
        if self._pending.bytes + size > MAX_PENDING_BYTES or not self._rosters.follow(
            session, request, watched
        ):
            self._refused += 1
            refuse_busy(session, request.id, "too many requests wait")

    def _refuse_without_roster(self, follower: RosterFollower) -> None:
        request, follower.request = follower.request, None
        self._refused += 1
        if request is not None:
            refuse_busy(follower.session, request.id, "Redis is away")
        self._drop_unanswered(follower)

    def _drop_unanswered(self, follower: RosterFollower) -> None:
        """Let a session follow no longer whose first watch of the roster was refused."""
        if not (follower.is_answered or follower.is_busy or follower.request):
            self._rosters.stop(follower.session)

    def _stop_following(self, follower: RosterFollower, uids: list[str] | None) -> list[str] | None:
        """Let a session follow no longer; return the users that it unwatches, beside those given."""
        session, request = follower.session, follower.request
        named = follower.named.union(self._pending.named_by(session), request.uids if request else ())
        unnamed = self._pending.rosters_of(session).union(self._watches.watched_by(session)) - named
        self._rosters.stop(session)
        if request is not None:  # it waits for a roster that is not wanted any more
            self._watch(session, request, ())
        return None if uids is None else [*uids, *unnamed]

    def _compare_roster(self, follower: RosterFollower, stored: Sequence[str] | None) -> None:
        """Make a session watch what its roster has, or answer the watch that waits for it.

        `stored`: by the backend; None: it never gave one, or Redis has lost it, so nobody is removed.
        """
        session = follower.session
        if session.transport is None:
            return
        follower.is_put_off = follower.is_busy
        if follower.is_busy:
            return
        claimed = self._claimed_rosters.get(session, "").split()
        roster = dict.fromkeys([*dict.fromkeys([*claimed, *(stored or ())])][:UIDS_MAX])
        if (request := follower.request) is not None:
            follower.request = None
            self._budget.charge(session.uid, trio.current_time(), len(roster))
            self._watch(session, request, [*roster])
            self._drop_unanswered(follower)
            return
        self._rosters.compared(follower, follower.skipped if stored is None else roster)
        watched = self._watches.watched_by(session)
        removed = [uid for uid in watched if uid not in roster and uid not in follower.named]
        kept = self._pending.wanted_by(session).union(watched, follower.skipped)
        added = [uid for uid in roster if uid not in kept]
        if stored is not None and removed and not self._remove(follower, removed):
            return
        if added:
            self._add(follower, added, len(kept))

    def _remove(self, follower: RosterFollower, uids: Sequence[str]) -> bool:
        """End watches of users that the roster has lost; return whether all ended."""
        session, some = follower.session, uids[:MAX_ROSTER_CHANGES_PER_TURN]
        gone = some[: self._tell(follower, [(uid, WatchedState(REMOVED), Code.REMOVED) for uid in some])]
        self._discard(session, gone)
        self._drop_unwanted(self._watches.remove(session, gone))
        self._rosters.statistics.removed += len(gone)
        if len(some) < len(uids):
            self._rosters.changed((session.uid,))
        return len(gone) == len(uids)

    def _add(self, follower: RosterFollower, uids: Sequence[str], count: int) -> None:
        """Make a session that has `count` watches watch users who are new in its roster."""
        session, some = follower.session, [*uids[:MAX_ROSTER_CHANGES_PER_TURN]]
        if self._visibility is not None and (hidden := self._visibility.hidden(session, some)):
            hidden = hidden[
                : self._tell(follower, [(uid, WatchedState(HIDDEN), Code.NOT_ALLOWED) for uid in hidden])
            ]
            self._rosters.keep(follower, skipped=follower.skipped.union(hidden))
            if follower.is_put_off:
                return
            unseen, count = set(hidden), count + len(hidden)
            some = [uid for uid in some if uid not in unseen]
        room = max(0, self._max_watches - count)
        fitting = some[:room]
        if self._pending.bytes + bytes_of_watch(fitting) > MAX_PENDING_BYTES or not self._has_room(
            count + len(fitting), len(fitting), fitting
        ):
            fitting = []
        if len(fitting) < len(some):
            self._rosters.statistics.no_room += 1
            self._rosters.later(follower)
        elif len(uids) > MAX_ROSTER_CHANGES_PER_TURN:
            follower.is_put_off = True
        if fitting:
            missing = {uid for uid in fitting if not self._is_known(uid)}
            size = bytes_of_watch(fitting)
            watch = PendingWatch(session, None, fitting, missing, size, follower=follower, is_silent=True)
            watch.roster = frozenset(fitting)
            self._begin(watch)
        else:
            self._rosters.again(session)

    def _add_silently(self, watch: PendingWatch) -> None:
        """Begin to watch users who are new in a roster: the session is sent their states as changes."""
        session, follower = watch.session, watch.follower
        if follower is None or self._rosters.get(session) is not follower:
            self._drop_unwanted(watch.uids)
            return
        hidden = [] if self._visibility is None else self._visibility.hidden(session, watch.uids)
        wanted = [uid for uid in watch.wanted if uid not in set(hidden)]
        latest = [(uid, self._shards.latest(uid)) for uid in wanted]
        states = [(uid, state, Code.WATCHED) for uid, state in latest if state is not None]
        told = self._tell(follower, states)
        wanted = [uid for uid, _, _ in states[:told]]
        with self._faults.contained("watch", partial(self._faults.disconnect, session)):
            self._pushes.answered(session, wanted)
            self._watches.add(session, wanted)
        self._rosters.statistics.added += len(wanted)
        self._drop_unwanted(watch.uids)
        if hidden:
            follower.is_put_off = True

    def _tell(self, follower: RosterFollower, changes: Sequence[tuple[str, WatchedState, Code]]) -> int:
        """Send a session changes of its roster; return how many it took. The others are put off."""
        session = follower.session
        if session in self._quiet.sessions:
            told = 0
            self._quiet.holding.add(session)
        else:
            told = self._pushes.tell(session, changes)
        if told < len(changes):
            follower.is_put_off = True
        return told

    def _discard(self, session: Session, uids: Iterable[str] | None) -> None:
        """Discard changes that are deferred for a session."""
        self._pushes.discard(session, uids)
        self._hold_again(session)

    def _hold_again(self, session: Session) -> None:
        """Hold the changes of a roster, whatever has become of deferred changes of users."""
        follower = self._rosters.get(session)
        if follower is not None and follower.is_put_off and session in self._quiet.sessions:
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
        return watched + self._rosters.bytes

    # Shards

    async def _drop_all_unwanted(self) -> None:
        """Drop users whom sessions watched that are gone: hundreds of sessions may end together."""
        while True:
            if not self._unwanted:
                await self._dropping.wait(math.inf)
            self._drop_unwanted(
                [self._unwanted.popleft() for _ in range(min(MAX_DROPPED_PER_TURN, len(self._unwanted)))]
            )
            await trio.lowlevel.checkpoint()

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
        }
