"""What a node knows of the watched users of one shard. Pure: time is an argument.

| step | effect |
| --- | --- |
| a user is wanted | their channel is to be subscribed to |
| the subscription is confirmed | their record is to be read: all events after that read are received |
| the record is read, as of entry A | the user is known; events up to A are included already |
| an event arrives | the state changes, if the entry id is above all that is known of the user |
| the connection is lost | all are to be subscribed to again, and the stream is read from where it broke off |

Events of a user who is not known yet, or that arrive while the stream is read again, are deferred: the newest
of each user. Whom a change concerns follows from the states before and after it, and not from its last event:
an event of a device may follow a missed or deferred one that changed the status. A change is returned to be
pushed only if its id is above everything known of the user, so each watcher sees strictly rising ids. A read
can also reveal a missed event, because the record has an entry id.

A read counts only for users whose subscription was active from its start to its end. It uses another
connection, so it may be older than a subscription confirmed meanwhile, and events between the two would be
lost.

A user known online who has no record, nor a newer offline event, is not offline for that alone: a Redis that
lost its data has no records until the nodes have registered their sessions. Two reads at least `absence_s`
apart must agree. No entry reports such a change, so it gets an id of its own, above everything known of the
user.

Memory: some 500 bytes per user.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from presence.watching.user_states import (
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
    """The state of the subscription to a user's channel."""

    NONE = "none"
    REQUESTED = "requested"
    ACTIVE = "active"
    LEAVING = "leaving"


class _User:
    """What is known of a user."""

    __slots__ = ("absent_since", "as_of", "connection", "deferred_event", "state", "subscription", "wanted")

    def __init__(self, connection: int) -> None:
        self.wanted = True
        # Number of the connection that `subscription` and `deferred_event` belong to, see `ShardView._user`.
        self.connection = connection
        self.subscription = _UserSubscription.NONE
        self.state: WatchedState | None = None  # None until read
        self.as_of = NO_ENTRY  # the highest entry id that `state` surely includes
        self.deferred_event: UserEvent | None = None  # the newest event not applied yet
        self.absent_since: float | None = None  # when a user known online was first found without a record


class ViewPhase(Enum):
    """How up to date the view is."""

    DOWN = "down"  # no connection
    JOINING = "joining"  # not all known users are subscribed to yet
    RECOVERING = "recovering"  # all are subscribed to; missed events are being read
    LIVE = "live"


@dataclass(slots=True)
class ViewStatistics:
    """Counters since the start."""

    changes: int = 0  # returned to be pushed
    stale: int = 0  # entries known already, or older than the known state
    corrected: int = 0  # changes found by reads, without an event


class ShardView:
    """The watched users of one shard. All entries up to `position` are applied.

    A user known online is offline after two reads without a record, `absence_s` seconds apart.
    """

    def __init__(self, absence_s: float) -> None:
        self._absence_s = absence_s
        self._users: dict[str, _User] = {}
        self._to_update: dict[str, None] = {}  # users whose subscription may have to change
        self._to_read: dict[str, None] = {}  # subscribed to, and to be read
        self._reading: set[str] = set()  # users of the read under way, subscribed to since it began
        self._connection = 0  # number of the present connection
        self._unconfirmed = 0  # users known before a loss whose subscription is not confirmed again
        self.phase = ViewPhase.DOWN
        self.position = NO_ENTRY
        self.statistics = ViewStatistics()

    def __len__(self) -> int:
        """Return the number of users wanted, or not unsubscribed from yet."""
        return len(self._users)

    # Wanted users

    def want(self, uid: str) -> None:
        user = self._user(uid)
        if user is None:
            user = self._users[uid] = _User(self._connection)
        user.wanted = True
        if user.subscription in (_UserSubscription.NONE, _UserSubscription.LEAVING):
            self._to_update[uid] = None

    def drop(self, uid: str) -> None:
        user = self._user(uid)
        if user is None:
            return
        if user.subscription is _UserSubscription.NONE:
            self._remove(uid, user)
            return
        user.wanted = False
        self._to_update[uid] = None

    def current(self, uid: str) -> WatchedState | None:
        """Return the state of a user if it is known and kept up to date by the subscription."""
        user = self._users.get(uid)
        return user.state if user is not None and user.wanted and self.phase is ViewPhase.LIVE else None

    def latest(self, uid: str) -> WatchedState | None:
        """Return the last known state of a user; changes follow, at the latest after a loss."""
        user = self._users.get(uid)
        return user.state if user is not None and user.wanted else None

    # The channel

    def connected(self) -> None:
        """Begin a connection, on which nothing is subscribed to yet."""
        self._unconfirmed = sum(user.state is not None for user in self._users.values())
        self.phase = ViewPhase.JOINING
        self._check_joined()

    def lost(self) -> None:
        """Record the loss of the connection. `_user` resets users on next use: there may be half a
        million."""
        self.phase = ViewPhase.DOWN
        self._connection += 1
        self._to_read.clear()
        self._reading.clear()
        self._to_update = dict.fromkeys(self._users)

    def next_subscriptions(self, most: int) -> tuple[list[str], list[str]]:
        """Return users to subscribe to and to unsubscribe from, at most `most`; they count as requested."""
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
                user.state = user.deferred_event = None
                self._to_read.pop(uid, None)
                self._reading.discard(uid)
                unsubscribe.append(uid)
        return subscribe, unsubscribe

    def subscribed(self, uid: str) -> None:
        """Record that a subscription is active: all events of the user from now on arrive."""
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
        user = self._user(uid)
        if user is None or user.subscription is not _UserSubscription.LEAVING:
            return
        user.subscription = _UserSubscription.NONE
        if user.wanted:
            self._to_update[uid] = None
        else:
            self._remove(uid, user)

    def receive(self, entry: UserEvent) -> UserEvent | None:
        """Apply an event from the channel; return it if it is to be pushed."""
        user = self._user(entry.uid)
        if user is None or user.subscription is not _UserSubscription.ACTIVE:
            return None
        if user.state is None or self.phase is not ViewPhase.LIVE:
            if user.deferred_event is None or entry.id > user.deferred_event.id:
                user.deferred_event = entry
            return None
        self.position = max(self.position, entry.id)
        return self._apply(user, entry)

    def caught_up(self, position: EntryId) -> None:
        """Record that all events up to this id of the subscribed users have been applied."""
        if self.phase is ViewPhase.LIVE:
            self.position = max(self.position, position)

    def subscribed_users(self) -> list[str]:
        """Return the users whose channels are subscribed to, or will be."""
        subscribed = (_UserSubscription.REQUESTED, _UserSubscription.ACTIVE)
        return [
            uid
            for uid, user in self._users.items()
            if user.connection == self._connection and user.subscription in subscribed
        ]

    # Reads of records

    def users_to_read(self, most: int) -> list[str]:
        """Return users that are subscribed to and are to be read."""
        return list(islice(self._to_read, most))

    def known(self) -> list[str]:
        """Return the known users, in the order in which they were wanted."""
        return [uid for uid, user in self._users.items() if user.state is not None]

    def begin_snapshot(self, uids: Iterable[str]) -> None:
        """Begin a read of some users; only one is under way at a time."""
        users = ((uid, self._user(uid)) for uid in uids)
        self._reading = {
            uid for uid, user in users if user is not None and user.subscription is _UserSubscription.ACTIVE
        }

    def apply_snapshot(self, snapshot: ShardSnapshot, now: float) -> list[UserEvent]:
        """Apply the read begun last; return the changes to push. Users not known before are known afterwards.

        Users not subscribed to ever since are skipped. `now`: monotonic seconds.
        """
        changes = []
        reading, self._reading = self._reading, set()
        for uid, state in snapshot.states.items():
            if uid not in reading:
                continue
            user = self._users[uid]
            if user.state is not None:
                if (change := self._compare(uid, user, state, snapshot.as_of, now)) is not None:
                    changes.append(change)
            else:
                self._to_read.pop(uid, None)
                user.state, user.as_of = state, max(snapshot.as_of, _entry_of(state))
                if self.phase is ViewPhase.LIVE:
                    self._take_deferred(user)
        return changes

    # After a loss

    def apply_replay(self, entries: Iterable[UserEvent], position: EntryId) -> list[UserEvent]:
        """Apply part of the stream, up to `position`; return the changes to push."""
        changes = []
        for entry in entries:
            user = self._users.get(entry.uid)
            if user is not None and user.state is not None and (change := self._apply(user, entry)):
                changes.append(change)
        self.position = max(self.position, position)
        return changes

    def finish_recovery(self, position: EntryId | None = None) -> list[UserEvent]:
        """Finish the recovery of missed events; return the deferred changes to push.

        `position` is that in the stream, if the stream is another one than before.
        """
        if position is not None:
            self.position = position
        self.phase = ViewPhase.LIVE
        users = [user for user in self._users.values() if user.connection == self._connection]
        deferred = [user for user in users if user.deferred_event is not None and user.state is not None]
        return [change for user in deferred if (change := self._take_deferred(user)) is not None]

    def _user(self, uid: str) -> _User | None:
        """Return a user, reset if the connection was lost since the last use."""
        user = self._users.get(uid)
        if user is not None and user.connection != self._connection:
            user.subscription, user.deferred_event, user.connection = (
                _UserSubscription.NONE,
                None,
                self._connection,
            )
        return user

    def _check_joined(self) -> None:
        if self.phase is not ViewPhase.JOINING or self._unconfirmed > 0:
            return
        is_new = all(user.state is None for user in self._users.values())
        self.phase = ViewPhase.LIVE if is_new else ViewPhase.RECOVERING

    def _take_deferred(self, user: _User) -> UserEvent | None:
        event, user.deferred_event = user.deferred_event, None
        return self._apply(user, event) if event is not None else None

    def _apply(self, user: _User, entry: UserEvent) -> UserEvent | None:
        user.absent_since = None
        if entry.id <= user.as_of:
            self.statistics.stale += 1
            return None
        known = user.state
        if (
            entry.is_hidden
            and known is not None
            and known.status == OFFLINE
            and _entry_of(entry.state) <= user.as_of
        ):
            user.as_of = entry.id
            return None
        user.state, user.as_of = entry.state, entry.id
        change = entry if known is None else _news(known, entry)
        self.statistics.changes += change is not None
        return change

    def _compare(
        self, uid: str, user: _User, state: WatchedState, as_of: EntryId, now: float
    ) -> UserEvent | None:
        """Compare the known state of a user with a read; return a missed change."""
        known = user.state
        if known is None:
            return None
        change = None
        if (found := _entry_of(state)) > user.as_of:
            user.absent_since = None
            change = UserEvent(uid, found, state, state.reason or reason_for(state))
        elif state.status != OFFLINE or known.status == OFFLINE:
            user.absent_since = None
        elif user.absent_since is None:
            user.absent_since = now
        elif now - user.absent_since >= self._absence_s:
            # A Redis that lost its data may count from below the known ids.
            order = max(as_of, (user.as_of[0], user.as_of[1] + 1))
            change = UserEvent(uid, order, state._replace(id=id_text(order)), reason_for(state))
            user.absent_since = None
        if change is None:
            return None
        user.state, user.as_of = change.state, change.id
        news = _news(known, change)
        if news is not None:
            self.statistics.changes += 1
            self.statistics.corrected += 1
        return news

    def _remove(self, uid: str, user: _User) -> None:
        if (
            user.state is not None
            and self.phase is ViewPhase.JOINING
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


def _news(known: WatchedState, event: UserEvent) -> UserEvent | None:
    """Return an event as one for the watchers to whom it shows something new; None: for none."""
    state = event.state
    if _without_devices(known) != _without_devices(state):
        if not event.is_of_device:
            return event
        return event._replace(is_of_device=False, reason=state.reason or reason_for(state))
    if state.devices is None or state.devices == known.devices:
        return None
    return event if event.is_of_device else event._replace(is_of_device=True)


def _without_devices(state: WatchedState) -> tuple[object, ...]:
    """Return what all watchers are shown of a state, but for its entry id."""
    return state.status, state.since_ms, state.last_seen_ms, state.meta, state.reason, state.hides_times
