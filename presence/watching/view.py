"""What a node knows of the watched users of one shard: pure, time is an argument.

| step | and so |
| --- | --- |
| a user is wanted | his channel is to be subscribed to |
| the subscription is confirmed | his record is to be looked at: what follows that look is heard |
| the look is there, as of entry A | he is known; what is heard of him up to A is in it already |
| he is heard of | known anew, if the entry's id is higher than all that is known of him |
| the connection is lost | all are to be subscribed to again, and the stream is read from where it broke off |

What is heard of a user who is not known yet, or while the stream is read again, is held: the newest of each.
A change is given to be told only if its id is higher than that of all that was known of the user; so each
watcher sees ids rise strictly. A look can tell what was missed, too: the record has the id of an entry.

A look counts only for whoever was heard from its begin to its end. Another connection makes it, so it may be
older than a subscription that was confirmed meanwhile, and what happened between the two was told to nobody.

That somebody known online has no record does not make him offline: a Redis that lost its data has none of
anybody until the nodes have registered their sessions. Two looks have to agree, at least `absence_s` apart.
No entry tells of it then, and so it has an id of its own, above all that is known of the user.

Memory: some 500 bytes a user.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from presence.watching.states import (
    NO_ENTRY,
    OFFLINE,
    EntryId,
    ShardSnapshot,
    UserEvent,
    WatchedState,
    id_of,
    id_text,
    reason_for,
)


class _UserSubscription(Enum):
    """How the subscription to a user's channel stands."""

    NONE = "none"
    REQUESTED = "requested"
    ACTIVE = "active"
    LEAVING = "leaving"


class _User:
    """What is known of a user."""

    __slots__ = ("absent_since", "as_of", "connection", "held_event", "state", "subscription", "wanted")

    def __init__(self, connection: int) -> None:
        self.wanted = True
        # Number of the connection that `subscription` and `held_event` belong to, see `ShardView._user`.
        self.connection = connection
        self.subscription = _UserSubscription.NONE
        self.state: WatchedState | None = None  # until he was looked at
        self.as_of = NO_ENTRY  # the highest id that `state` is sure to contain
        self.held_event: UserEvent | None = None  # the newest that was heard and not taken in yet
        self.absent_since: float | None = None  # when he, known online, was first found to have no record


class Phase(Enum):
    """How far the view is."""

    DOWN = "down"  # no connection
    JOINING = "joining"  # not all who are known are subscribed to yet
    RECOVERING = "recovering"  # all are heard; what was missed is being read
    LIVE = "live"


@dataclass(slots=True)
class ViewStatistics:
    """Counters since the start."""

    changes: int = 0  # that were given to be told
    stale: int = 0  # entries that were known already, or older than what is known
    corrected: int = 0  # changes that looks found and nobody was heard of


class ShardView:
    """The watched users of one shard. All entries up to `position` are taken in.

    Args:
        absence_s: seconds between two looks without a record, for a user known online to be offline.
    """

    def __init__(self, absence_s: float) -> None:
        self._absence_s = absence_s
        self._users: dict[str, _User] = {}
        self._to_update: dict[str, None] = {}  # whose subscriptions may not be what they have to be
        self._to_read: dict[str, None] = {}  # heard, and to be looked at
        self._reading: set[str] = set()  # at whom a look is under way, and who are heard since it began
        self._connection = 0  # number of the present one
        self._unconfirmed = 0  # users known before a loss whose subscription is not confirmed yet
        self.phase = Phase.DOWN
        self.position = NO_ENTRY
        self.statistics = ViewStatistics()

    def __len__(self) -> int:
        """Return how many users are wanted, or not left yet."""
        return len(self._users)

    # Who is wanted

    def want(self, uid: str) -> None:
        """Somebody wants to know of a user."""
        user = self._user(uid)
        if user is None:
            user = self._users[uid] = _User(self._connection)
        user.wanted = True
        if user.subscription in (_UserSubscription.NONE, _UserSubscription.LEAVING):
            self._to_update[uid] = None

    def drop(self, uid: str) -> None:
        """Nobody wants to know of a user any more."""
        user = self._user(uid)
        if user is None:
            return
        if user.subscription is _UserSubscription.NONE:
            self._remove(uid, user)
            return
        user.wanted = False
        self._to_update[uid] = None

    def current(self, uid: str) -> WatchedState | None:
        """Return a user's state if it is known now and what follows it will be heard."""
        user = self._users.get(uid)
        return user.state if user is not None and user.wanted and self.phase is Phase.LIVE else None

    def latest(self, uid: str) -> WatchedState | None:
        """Return a user's state as it was last known; what follows is told, at the latest after a loss."""
        user = self._users.get(uid)
        return user.state if user is not None and user.wanted else None

    # The channel

    def connected(self) -> None:
        """There is a connection, on which nothing is subscribed to yet."""
        self._unconfirmed = sum(user.state is not None for user in self._users.values())
        self.phase = Phase.JOINING
        self._check_joined()

    def lost(self) -> None:
        """The connection is lost. Users are reset by `_user`, when next used: there may be half a million."""
        self.phase = Phase.DOWN
        self._connection += 1
        self._to_read.clear()
        self._reading.clear()
        self._to_update = dict.fromkeys(self._users)

    def next_subscriptions(self, most: int) -> tuple[list[str], list[str]]:
        """Return whom to subscribe to and whom to leave now, so many at most; they count as asked."""
        subscribe, unsubscribe = [], []
        for uid in list(islice(self._to_update, most)):
            del self._to_update[uid]
            user = self._user(uid)
            if user is None:
                continue
            if user.wanted and user.subscription is _UserSubscription.NONE:
                user.subscription = _UserSubscription.REQUESTED
                subscribe.append(uid)
            elif user.subscription is _UserSubscription.NONE:
                self._remove(uid, user)
            elif not user.wanted and user.subscription is _UserSubscription.ACTIVE:
                user.subscription = _UserSubscription.LEAVING
                user.state = user.held_event = None
                self._to_read.pop(uid, None)
                self._reading.discard(uid)
                unsubscribe.append(uid)
        return subscribe, unsubscribe

    def subscribed(self, uid: str) -> None:
        """A subscription stands: what happens to the user from now on is heard."""
        user = self._user(uid)
        if user is None or user.subscription is not _UserSubscription.REQUESTED:
            return
        user.subscription = _UserSubscription.ACTIVE
        if user.state is None:
            self._to_read[uid] = None
        else:
            self._unconfirmed -= 1
            self._check_joined()
        if not user.wanted:
            self._to_update[uid] = None

    def unsubscribed(self, uid: str) -> None:
        """A subscription has ended."""
        user = self._user(uid)
        if user is None or user.subscription is not _UserSubscription.LEAVING:
            return
        user.subscription = _UserSubscription.NONE
        if user.wanted:
            self._to_update[uid] = None
        else:
            self._remove(uid, user)

    def receive(self, entry: UserEvent) -> UserEvent | None:
        """Take in an entry that was heard; return it if it is to be told."""
        user = self._user(entry.uid)
        if user is None or user.subscription is not _UserSubscription.ACTIVE:
            return None
        if user.state is None or self.phase is not Phase.LIVE:
            if user.held_event is None or entry.id > user.held_event.id:
                user.held_event = entry
            return None
        self.position = max(self.position, entry.id)
        return self._apply(user, entry)

    def caught_up(self, position: EntryId) -> None:
        """All that was heard up to this id, and it is all there was of those subscribed to, is taken in."""
        if self.phase is Phase.LIVE:
            self.position = max(self.position, position)

    # Looks at the records

    def users_to_read(self, most: int) -> list[str]:
        """Return users who are heard and are to be looked at."""
        return list(islice(self._to_read, most))

    def known(self) -> list[str]:
        """Return the users who are known, in the order in which they came to be wanted."""
        return [uid for uid, user in self._users.items() if user.state is not None]

    def begin_snapshot(self, uids: Iterable[str]) -> None:
        """A look at some users begins, the only one that is under way."""
        users = ((uid, self._user(uid)) for uid in uids)
        self._reading = {
            uid for uid, user in users if user is not None and user.subscription is _UserSubscription.ACTIVE
        }

    def apply_snapshot(self, snapshot: ShardSnapshot, now: float) -> list[UserEvent]:
        """Take in a look; return what is to be told. Who was not known is known then.

        Args:
            snapshot: what the look that began last has found; who was not heard ever since is passed over.
            now: monotonic seconds.
        """
        told = []
        reading, self._reading = self._reading, set()
        for uid, state in snapshot.states.items():
            if uid not in reading:
                continue
            user = self._users[uid]
            if user.state is not None:
                if (change := self._compare(uid, user, state, snapshot.as_of, now)) is not None:
                    told.append(change)
            else:
                self._to_read.pop(uid, None)
                user.state, user.as_of = state, max(snapshot.as_of, _entry_of(state))
                if self.phase is Phase.LIVE:
                    self._take_held(user)
        return told

    # After a loss

    def apply_replay(self, entries: Iterable[UserEvent], position: EntryId) -> list[UserEvent]:
        """Take in a part of the stream, up to `position`; return what is to be told."""
        told = []
        for entry in entries:
            user = self._users.get(entry.uid)
            if user is not None and user.state is not None and (change := self._apply(user, entry)):
                told.append(change)
        self.position = max(self.position, position)
        return told

    def finish_recovery(self, position: EntryId | None = None) -> list[UserEvent]:
        """What was missed is taken in; return what was heard meanwhile and is to be told.

        Args:
            position: where the stream is now, if it is not the one that was heard before.
        """
        if position is not None:
            self.position = position
        self.phase = Phase.LIVE
        users = [user for user in self._users.values() if user.connection == self._connection]
        held = [user for user in users if user.held_event is not None and user.state is not None]
        return [change for user in held if (change := self._take_held(user)) is not None]

    def _user(self, uid: str) -> _User | None:
        """Return a user, reset if the connection was lost since the last time."""
        user = self._users.get(uid)
        if user is not None and user.connection != self._connection:
            user.subscription, user.held_event, user.connection = (
                _UserSubscription.NONE,
                None,
                self._connection,
            )
        return user

    def _check_joined(self) -> None:
        if self.phase is not Phase.JOINING or self._unconfirmed > 0:
            return
        is_new = all(user.state is None for user in self._users.values())
        self.phase = Phase.LIVE if is_new else Phase.RECOVERING

    def _take_held(self, user: _User) -> UserEvent | None:
        held, user.held_event = user.held_event, None
        return self._apply(user, held) if held is not None else None

    def _apply(self, user: _User, entry: UserEvent) -> UserEvent | None:
        user.absent_since = None
        if entry.id <= user.as_of:
            self.statistics.stale += 1
            return None
        user.state, user.as_of = entry.state, entry.id
        self.statistics.changes += 1
        return entry

    def _compare(
        self, uid: str, user: _User, state: WatchedState, as_of: EntryId, now: float
    ) -> UserEvent | None:
        """Compare what is known of a user with a look; return a change that was missed."""
        known = user.state
        if known is None:
            return None
        change = None
        if state.status != OFFLINE:
            user.absent_since = None
            if (found := _entry_of(state)) > user.as_of:
                change = UserEvent(uid, found, state, reason_for(state))
        elif known.status == OFFLINE:
            user.absent_since = None
        elif user.absent_since is None:
            user.absent_since = now
        elif now - user.absent_since >= self._absence_s:
            # A Redis that lost its data may count from below what is known.
            order = max(as_of, (user.as_of[0], user.as_of[1] + 1))
            change = UserEvent(uid, order, state._replace(id=id_text(order)), reason_for(state))
            user.absent_since = None
        if change is None:
            return None
        user.state, user.as_of = change.state, change.id
        self.statistics.changes += 1
        self.statistics.corrected += 1
        return change

    def _remove(self, uid: str, user: _User) -> None:
        if (
            user.state is not None
            and self.phase is Phase.JOINING
            and user.subscription is not _UserSubscription.ACTIVE
        ):
            self._unconfirmed -= 1
        del self._users[uid]
        self._to_update.pop(uid, None)
        self._to_read.pop(uid, None)
        if user.state is not None:
            self._check_joined()


def _entry_of(state: WatchedState) -> EntryId:
    try:
        return id_of(state.id) if state.id else NO_ENTRY
    except ValueError:  # a record that no server wrote
        return NO_ENTRY
