"""Makes sessions watch what the rosters of their users have, each time that a roster was read.

The watches, and the answers to requests, are those of `watch_service`; `rosters` has which sessions follow.

Tests: `tests/watching/test_rosters.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.core.service_requests import WatchRequest
from presence.core.visibility import Visibility
from presence.protocol import UIDS_MAX, Code
from presence.watching.pending_watches import MAX_PENDING_BYTES, PendingWatch, PendingWatches, bytes_of_watch
from presence.watching.push_queue import PushQueue
from presence.watching.rosters import FollowedRosters, RosterFollower, Rosters
from presence.watching.shard_placement import WatchedShards
from presence.watching.user_states import HIDDEN, REMOVED, WatchedState
from presence.watching.watch_index import Watches

MAX_ROSTER_CHANGES_PER_TURN: Final = 64  # of one session: a millisecond; the rest follows in further turns


class UserWatches(Protocol):
    """How watches of users begin and end."""

    def watch(self, session: Session, request: WatchRequest, roster: Sequence[str]) -> None:
        """Begin a watch of the users that a request names, and those of a roster, or refuse it."""

    def begin(self, watch: PendingWatch) -> None:
        """Begin a watch that fits."""

    def fitting(self, count: int, uids: list[str]) -> list[str]:
        """Return those of some users, the first ones, whom a session with `count` watches may watch, too."""

    def drop_unwanted(self, uids: Iterable[str]) -> None:
        """Unsubscribe from those users that no client watches or waits for."""

    def hold_again(self, session: Session) -> None:
        """Hold what is put off for a quiet session, whatever has become of deferred changes of users."""

    def refuse(self, session: Session, id: int | None, message: str) -> None:
        """Refuse a request for now."""


class RosterChanges:
    """Carries out what rosters have, and what clients request of theirs.

    Args:
        users: how watches begin and end; the further arguments are what they consist of.
        claimed: the rosters of tokens, uids with a space between two.
        rosters: where backends put them.

    Attributes:
        followed: which sessions follow.
    """

    def __init__(
        self,
        users: UserWatches,
        pending: PendingWatches,
        watches: Watches,
        pushes: PushQueue,
        shards: WatchedShards,
        *,
        claimed: Mapping[Session, str],
        rosters: Rosters,
        visibility: Visibility | None,
        quiet: QuietSessions,
        runtime: Runtime,
        faults: Faults,
    ) -> None:
        self._users = users
        self._pending = pending
        self._watches = watches
        self._pushes = pushes
        self._shards = shards
        self._claimed = claimed
        self._visibility = visibility
        self._quiet = quiet
        self._faults = faults
        self.followed = FollowedRosters(rosters, self._compare, self._refuse, runtime, faults)

    def follow(self, session: Session, request: WatchRequest) -> None:
        """Let a watch wait for the roster of its user."""
        size = bytes_of_watch(request.uids)
        watched = self._pending.wanted_by(session).union(self._watches.watched_by(session))
        if self._pending.bytes + size > MAX_PENDING_BYTES or not self.followed.follow(
            session, request, watched
        ):
            self._users.refuse(session, request.id, "too many requests wait")

    def stop_following(self, follower: RosterFollower, uids: list[str] | None) -> list[str] | None:
        """Let a session follow no longer; return the users that it unwatches, beside those given."""
        session, request = follower.session, follower.request
        named = follower.named.union(self._pending.named_by(session), request.uids if request else ())
        unnamed = self._pending.rosters_of(session).union(self._watches.watched_by(session)) - named
        self.followed.stop(session)
        if request is not None:  # it waits for a roster that is not wanted any more
            self._users.watch(session, request, ())
        return None if uids is None else [*uids, *unnamed]

    def answered(self, watch: PendingWatch, wanted: Iterable[str]) -> None:
        """Note what a session that follows its roster watches by name, and what of the roster it does not."""
        follower = self.followed.get(watch.session)
        if follower is None:
            return
        named, skipped = follower.named.union(wanted), follower.skipped.difference(wanted)
        if watch.follower is follower:
            follower.is_answered = True
            named = follower.named.union(watch.named.intersection(wanted))
            skipped = watch.roster.difference(wanted)
        self.followed.keep(follower, named=named, skipped=skipped)

    def over(self, watch: PendingWatch) -> None:
        """Go on with the roster whose users a watch had."""
        if (follower := watch.follower) is not None:
            follower.is_busy = False
            if self.followed.get(follower.session) is follower:
                self._drop_unanswered(follower)
                self.followed.again(follower.session)

    def add_silently(self, watch: PendingWatch) -> None:
        """Begin to watch users who are new in a roster: the session is sent their states as changes."""
        session, follower = watch.session, watch.follower
        if follower is None or self.followed.get(session) is not follower:
            self._users.drop_unwanted(watch.uids)
            return
        hidden = [] if self._visibility is None else self._visibility.hidden(session, watch.uids)
        wanted = [uid for uid in watch.wanted if uid not in set(hidden)]
        latest = [(uid, self._shards.latest(uid)) for uid in wanted]
        states = [(uid, state, Code.WATCHED) for uid, state in latest if state is not None]
        taken = self._offer(follower, states)
        wanted = [uid for uid, _, _ in states[:taken]]
        with self._faults.contained("watch", partial(self._faults.disconnect, session)):
            self._pushes.answered(session, wanted)
            self._watches.add(session, wanted)
        self.followed.statistics.added += len(wanted)
        self._users.drop_unwanted(watch.uids)
        if hidden:
            follower.is_put_off = True

    def is_put_off(self, session: Session) -> bool:
        """Whether changes of a session's roster wait for it."""
        follower = self.followed.get(session)
        return follower is not None and follower.is_put_off

    def _refuse(self, follower: RosterFollower) -> None:
        """Refuse the watch that waits for a roster which could not be read."""
        request, follower.request = follower.request, None
        if request is not None:
            self._users.refuse(follower.session, request.id, "Redis is away")
        self._drop_unanswered(follower)

    def _drop_unanswered(self, follower: RosterFollower) -> None:
        """Let a session follow no longer whose first watch of the roster was refused."""
        if not (follower.is_answered or follower.is_busy or follower.request):
            self.followed.stop(follower.session)

    def _compare(self, follower: RosterFollower, stored: Sequence[str] | None) -> None:
        """Make a session watch what its roster has, or answer the watch that waits for it.

        `stored`: by the backend; None: it never gave one, or Redis has lost it, so nobody is removed.
        """
        session = follower.session
        if session.transport is None:
            return
        follower.is_put_off = follower.is_busy
        if follower.is_busy:
            return
        claimed = self._claimed.get(session, "").split()
        roster = dict.fromkeys([*dict.fromkeys([*claimed, *(stored or ())])][:UIDS_MAX])
        if (request := follower.request) is not None:
            follower.request = None
            self._users.watch(session, request, [*roster])
            self._drop_unanswered(follower)
            return
        self.followed.compared(follower, follower.skipped if stored is None else roster)
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
        gone = some[: self._offer(follower, [(uid, WatchedState(REMOVED), Code.REMOVED) for uid in some])]
        self._pushes.discard(session, gone)
        self._users.hold_again(session)
        self._users.drop_unwanted(self._watches.remove(session, gone))
        self.followed.statistics.removed += len(gone)
        if len(some) < len(uids):
            self.followed.changed((session.uid,))
        return len(gone) == len(uids)

    def _add(self, follower: RosterFollower, uids: Sequence[str], count: int) -> None:
        """Make a session that has `count` watches watch users who are new in its roster."""
        session, some = follower.session, [*uids[:MAX_ROSTER_CHANGES_PER_TURN]]
        if self._visibility is not None and (hidden := self._visibility.hidden(session, some)):
            hidden = hidden[
                : self._offer(follower, [(uid, WatchedState(HIDDEN), Code.NOT_ALLOWED) for uid in hidden])
            ]
            self.followed.keep(follower, skipped=follower.skipped.union(hidden))
            if follower.is_put_off:
                return
            unseen, count = set(hidden), count + len(hidden)
            some = [uid for uid in some if uid not in unseen]
        fitting = self._users.fitting(count, some)
        if len(fitting) < len(some):
            self.followed.statistics.no_room += 1
            self.followed.later(follower)
        elif len(uids) > MAX_ROSTER_CHANGES_PER_TURN:
            follower.is_put_off = True
        if fitting:
            missing = {uid for uid in fitting if not self._shards.is_current(uid)}
            size = bytes_of_watch(fitting)
            watch = PendingWatch(session, None, fitting, missing, size, follower=follower, is_silent=True)
            watch.roster = frozenset(fitting)
            self._users.begin(watch)
        else:
            self.followed.again(session)

    def _offer(self, follower: RosterFollower, changes: Sequence[tuple[str, WatchedState, Code]]) -> int:
        """Offer a session changes of its roster; return how many it took. The others are put off."""
        session = follower.session
        if session in self._quiet.sessions:
            taken = 0
            self._quiet.holding.add(session)
        else:
            taken = self._pushes.offer(session, changes)
        if taken < len(changes):
            follower.is_put_off = True
        return taken
