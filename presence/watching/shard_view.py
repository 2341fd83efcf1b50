"""What a node knows of the watched users of one shard. Pure: time is an argument.

| step | effect |
| --- | --- |
| a user is wanted | their channel is to be subscribed to, unless the whole shard is followed |
| the subscription is confirmed | their record is to be read: all events after that read are received |
| the record is read, as of entry A | the user is known; events up to A are included already |
| an event arrives | the state changes, if the entry id is above all that is known of the user |
| the connection is lost | all are to be subscribed to again, and the stream is read from where it broke off |

A shard is followed by one subscription per user, or by one for the *whole* shard, whose messages have the
changes of all users. The way is fixed while the shard is on a connection; to change it is like a loss.

Each message of a whole shard says which entry was the last before its changes. If that entry is above all
that was heard, some were missed: an older server does not publish on this channel, or a message was lost.
Then the stream is read from `position`, as after a loss. What has been heard since without a gap may begin
above `position`; the recovery ends when the two meet.

Events of a user who is not known yet, or that arrive while the stream is read again, are deferred: the newest
of each user. If the stream does not reach back, all records are read again, which takes minutes of a million
users. Then events are applied as they arrive, because those missed before cannot be had any more.

Whom a change concerns follows from the states before and after it, and not from its last event: an event of a
device may follow a missed or deferred one that changed the status. A change is returned to be pushed only if
its id is above everything known of the user, so each watcher sees strictly rising ids. A read can also reveal
a missed event, because the record has an entry id.

A read counts only for users whose subscription was active from its start to its end. It uses another
connection, so it may be older than a subscription confirmed meanwhile, and events between the two would be
lost.

A user known online who has no record, nor a newer offline event, is not offline for that alone: a Redis that
lost its data has no records until the nodes have registered their sessions. Two reads at least `absence_s`
apart must agree. No entry reports such a change, so it gets an id of its own, above everything known of the
user.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from presence.watching.known_states import KnownStates
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
from presence.watching.user_subscriptions import UserSubscriptions

MAX_ABSENT_USERS: Final = 20_000  # remembered, some 3 MB; others are found absent by later reads


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
    gaps: int = 0  # times that entries were missing between two messages of a whole shard


class ShardView:
    """The watched users of one shard. All entries up to `position` are applied.

    A user known online is offline after two reads without a record, `absence_s` seconds apart.

    Attributes:
        is_whole: whether the whole shard is followed, and not each user.
        known: the users whose states are known.
        is_rereading: whether a recovery reads all records, so that events are not deferred.
    """

    def __init__(self, known: KnownStates, absence_s: float) -> None:
        self._absence_s = absence_s
        self.known = known
        self._unread: dict[str, UserEvent | None] = {}  # the other wanted users, each with the deferred event
        self._deferred: dict[str, UserEvent] = {}  # of known users, the newest event not applied yet
        self._dropped: dict[str, None] = {}  # no longer wanted, and to be forgotten
        self._fresh: set[str] = set()  # while recovering, users whose records were read out of turn
        self._absent: dict[str, float] = {}  # since when known online without a record, the earliest first
        self._subscriptions = UserSubscriptions()
        self._unconfirmed = 0  # users known before a loss whose subscription is not confirmed again
        self._is_joined = False  # whether the subscription to the whole shard is active
        # All entries after the first and up to the second were received; None: nothing was yet.
        self._heard: tuple[EntryId, EntryId] | None = None
        self._to_read: dict[str, None] = {}  # subscribed to, and to be read
        self._reading: set[str] = set()  # users of the read under way, subscribed to since it began
        self.is_whole = False
        self.is_rereading = False
        self.phase = ViewPhase.DOWN
        self.position = NO_ENTRY
        self.statistics = ViewStatistics()

    def __len__(self) -> int:
        """Return the number of wanted users."""
        return len(self._unread) + len(self.known) - len(self._dropped)

    def __contains__(self, uid: object) -> bool:
        """Whether the view has a user."""
        return uid in self.known or uid in self._unread

    # Wanted users

    def want(self, uid: str) -> None:
        if uid in self:
            self._dropped.pop(uid, None)
            return
        self._unread[uid] = None
        if not self.is_whole:
            self._subscriptions.want(uid)
        if self._is_subscribed(uid):
            self._to_read[uid] = None

    def drop(self, uid: str) -> None:
        """No longer want a user, who is forgotten soon: a client may return immediately."""
        if not self._is_subscribed(uid):
            self._forget(uid)
        elif uid in self:
            self._dropped[uid] = None

    def forget_dropped(self, most: int) -> bool:
        """Forget some users who are not wanted any more; return whether there are others."""
        for uid in list(islice(self._dropped, most)):
            self._forget(uid)
        return bool(self._dropped)

    def is_current(self, uid: str) -> bool:
        """Whether the state of a user is known and kept up to date by the subscription."""
        is_up_to_date = self.phase is ViewPhase.LIVE or uid in self._fresh
        return is_up_to_date and uid not in self._dropped and uid in self.known

    def current(self, uid: str) -> WatchedState | None:
        """Return the state of a user if it `is_current`."""
        return self.latest(uid) if self.is_current(uid) else None

    def latest(self, uid: str) -> WatchedState | None:
        """Return the last known state of a user; changes follow, at the latest after a loss."""
        return None if uid in self._dropped else self.known.state(uid)

    # The channel

    def connected(self, *, whole: bool = False) -> None:
        """Begin a connection, on which nothing is subscribed to yet."""
        if whole or self.is_whole:
            self._subscriptions = UserSubscriptions(() if whole else self._all())
        self.is_whole = whole
        self._unconfirmed = len(self.known)
        self.phase = ViewPhase.JOINING
        self._check_joined()

    def lost(self) -> None:
        """Record the loss of the connection."""
        self.phase = ViewPhase.DOWN
        self._subscriptions.reset()
        self._is_joined, self._heard = False, None
        self._to_read.clear()
        self._reading.clear()
        self.is_rereading = False
        self._fresh.clear()
        self._deferred.clear()
        self._unread = dict.fromkeys(self._unread)
        self.forget_dropped(len(self._dropped))

    def next_subscriptions(self, most: int) -> tuple[list[str], list[str]]:
        """Return users to subscribe to and to unsubscribe from, at most `most`; they count as requested."""
        return self._subscriptions.next(most)

    def subscribed(self, uid: str) -> None:
        """Record that a subscription is active: all events of the user from now on arrive."""
        if self._subscriptions.subscribed(uid):
            if uid in self._unread:
                self._to_read[uid] = None
            else:
                self._unconfirmed -= 1
                self._check_joined()

    def unsubscribed(self, uid: str) -> None:
        self._subscriptions.unsubscribed(uid)

    def subscribed_users(self) -> list[str]:
        """Return the users whose channels are subscribed to, or will be."""
        return self._subscriptions.all()

    def shard_joined(self) -> None:
        """Record that the subscription to the whole shard is active."""
        if self.is_whole and self.phase is ViewPhase.JOINING:
            self._is_joined = True
            self._to_read = dict.fromkeys(self._unread)
            self._check_joined()

    def begin_changes(self, previous: EntryId) -> bool:
        """Begin with a message of the whole shard: `receive` its events, then `end_changes`.

        Args:
            previous: the last entry before those that it has.

        Returns:
            Whether the message counts.
        """
        if self._is_joined:
            self._check_heard(previous)
        return self._is_joined

    def receive(self, entry: UserEvent) -> UserEvent | None:
        """Apply an event from the channel; return it if it is to be pushed."""
        uid = entry.uid
        if not self._is_subscribed(uid):
            return None
        if uid in self._unread:
            self._unread[uid] = _newest(self._unread[uid], entry)
        elif uid not in self.known:
            pass
        elif self.phase is not ViewPhase.LIVE and not self.is_rereading:
            self._deferred[uid] = _newest(self._deferred.get(uid), entry)
        else:
            if not self.is_whole and self.phase is ViewPhase.LIVE:
                self.position = max(self.position, entry.id)
            return self._apply(entry)
        return None

    def end_changes(self, last: EntryId) -> None:
        """Record that all events of a message were received, up to this entry."""
        if self._heard is not None:
            self._heard = self._heard[0], max(self._heard[1], last)
        self.caught_up(last)

    def caught_up(self, position: EntryId) -> None:
        """Record that all events up to this id of the subscribed users have been received, or never will."""
        if self._is_joined:
            self._check_heard(position)
        if self.phase is ViewPhase.LIVE:
            self.position = max(self.position, position)

    @property
    def heard_from(self) -> EntryId:
        """The entry after which all were received, of a whole shard."""
        return self._heard[0] if self._heard is not None else NO_ENTRY

    @property
    def has_gap(self) -> bool:
        """Whether entries after `position` were not received."""
        return self.heard_from > self.position

    # Reads of records

    def users_to_read(self, most: int) -> list[str]:
        """Return users that are subscribed to and are to be read."""
        return list(islice(self._to_read, most))

    def absent_since(self) -> float | None:
        """Return when the user was found absent who has been so for the longest time."""
        return next(iter(self._absent.values()), None)

    def absent_users(self, now: float, most: int) -> list[str]:
        """Return users who are to be read again, because they were found absent long enough ago."""
        return [uid for uid, since in islice(self._absent.items(), most) if now - since >= self._absence_s]

    def begin_snapshot(self, uids: Iterable[str]) -> None:
        """Begin a read of some users; only one is under way at a time."""
        self._reading = {uid for uid in uids if uid in self and self._is_subscribed(uid)}

    def apply_snapshot(self, snapshot: ShardSnapshot, now: float, *, early: bool = False) -> list[UserEvent]:
        """Apply the read begun last; return the changes to push. Users not known before are known afterwards.

        Users not subscribed to ever since are skipped.

        Args:
            snapshot: the answer.
            now: monotonic seconds.
            early: whether the users are current from now on, although the view is still recovering.
        """
        changes = []
        reading, self._reading = self._reading, set()
        for uid, state in snapshot.states.items():
            if uid not in reading:
                continue
            if uid in self._unread:
                self._learn(uid, state, snapshot.as_of)
            elif (change := self._compare(uid, state, snapshot.as_of, now)) is not None:
                changes.append(change)
            if early and self.phase is ViewPhase.RECOVERING:
                self._fresh.add(uid)
                deferred = self._deferred.pop(uid, None)
                if deferred is not None and (change := self._apply(deferred)) is not None:
                    changes.append(change)
        return changes

    # After a loss

    def apply_replay(self, entries: Iterable[UserEvent], position: EntryId) -> list[UserEvent]:
        """Apply part of the stream, up to `position`; return the changes to push."""
        changes = [change for entry in entries if (change := self._apply(entry)) is not None]
        self.position = max(self.position, position)
        return changes

    def apply_deferred(self, most: int) -> list[UserEvent]:
        """Apply some deferred events of known users; return the changes to push."""
        deferred = [self._deferred.pop(uid) for uid in list(islice(self._deferred, most))]
        return [change for entry in deferred if (change := self._apply(entry)) is not None]

    @property
    def has_deferred(self) -> bool:
        return bool(self._deferred)

    def finish_recovery(self, most: int) -> list[UserEvent]:
        """Apply some deferred events after all that was missed; return the changes to push.

        When none is left, the view is live, unless it `has_gap`.
        """
        changes = self.apply_deferred(most)
        if not self._deferred and not self.has_gap:
            self._go_live()
        return changes

    # Internals

    def _is_subscribed(self, uid: str) -> bool:
        """Whether all events of a user, if they are wanted, arrive from now on."""
        return self._is_joined if self.is_whole else self._subscriptions.is_active(uid)

    def _all(self) -> list[str]:
        return [*self._unread, *self.known.all()]

    def _check_joined(self) -> None:
        if self.phase is not ViewPhase.JOINING:
            return
        if self._is_joined if self.is_whole else self._unconfirmed == 0:
            self.phase = ViewPhase.RECOVERING if self.known else ViewPhase.LIVE

    def _check_heard(self, position: EntryId) -> None:
        """Begin to hear anew after an entry that has not been received, if it should have been."""
        if self._heard is not None and position <= self._heard[1]:
            return
        self._heard = position, position
        self._fresh.clear()
        if self.phase is ViewPhase.LIVE and self.known and self.has_gap:
            self.statistics.gaps += 1
            self.phase = ViewPhase.RECOVERING

    def _go_live(self) -> None:
        self.phase = ViewPhase.LIVE
        self.is_rereading = False
        self._fresh.clear()
        if self._heard is not None:
            self.position = max(self.position, self._heard[1])

    def _learn(self, uid: str, state: WatchedState, as_of: EntryId) -> None:
        """Know the state of a user from now on."""
        if not self.known:
            self.position = as_of
        entry = self._unread.pop(uid)
        self._to_read.pop(uid, None)
        self.known.put(uid, state, max(as_of, _entry_of(state)))
        if self.phase is not ViewPhase.LIVE:
            if entry is not None:
                self._deferred[uid] = entry
            return
        if entry is not None:
            self._apply(entry)  # no client was answered yet
        if self.has_gap:
            self.phase = ViewPhase.RECOVERING
        else:
            self._go_live()

    def _apply(self, entry: UserEvent) -> UserEvent | None:
        uid = entry.uid
        found = self.known.get(uid)
        if found is None:
            return None
        known, as_of = found
        self._absent.pop(uid, None)
        if entry.id <= as_of:
            self.statistics.stale += 1
            return None
        if entry.is_hidden and known.status == OFFLINE and _entry_of(entry.state) <= as_of:
            self.known.put(uid, known, entry.id)
            return None
        self.known.put(uid, entry.state, entry.id)
        change = _news(known, entry)
        self.statistics.changes += change is not None
        return change

    def _compare(self, uid: str, state: WatchedState, as_of: EntryId, now: float) -> UserEvent | None:
        """Compare the known state of a user with a read; return a missed change."""
        if (found := self.known.get(uid)) is None:
            return None
        known, known_as_of = found
        change = None
        if (entry := _entry_of(state)) > known_as_of:
            change = UserEvent(uid, entry, state, state.reason or reason_for(state))
        elif state.status == OFFLINE and known.status != OFFLINE:
            since = self._absent.get(uid)
            if since is None and len(self._absent) < MAX_ABSENT_USERS:
                self._absent[uid] = now
            if since is None or now - since < self._absence_s:
                return None
            # A Redis that lost its data may count from below the known ids.
            order = max(as_of, (known_as_of[0], known_as_of[1] + 1))
            change = UserEvent(uid, order, state._replace(id=id_text(order)), reason_for(state))
        self._absent.pop(uid, None)
        if change is None:
            return None
        self.known.put(uid, change.state, change.id)
        news = _news(known, change)
        if news is not None:
            self.statistics.changes += 1
            self.statistics.corrected += 1
        return news

    def _forget(self, uid: str) -> None:
        was_known = self.known.remove(uid)
        for users in (self._unread, self._to_read, self._deferred, self._dropped, self._absent):
            users.pop(uid, None)
        self._reading.discard(uid)
        self._fresh.discard(uid)
        if was_known and self.phase is ViewPhase.JOINING and not self._subscriptions.is_active(uid):
            self._unconfirmed -= 1
        self._subscriptions.drop(uid)
        if was_known:
            self._check_joined()


def _newest(known: UserEvent | None, entry: UserEvent) -> UserEvent:
    return entry if known is None or entry.id > known.id else known


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
