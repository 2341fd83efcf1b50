"""Subscriptions to the channels of single users of a shard, over one connection. Pure.

A subscription is requested, confirmed (then it is active), given up, and confirmed to have ended. A user who
is wanted again meanwhile is subscribed to anew after that.

Memory: some 300 bytes per user, and 270 bytes of Redis; see `presence.watching.shard_view` for many users.
"""

from collections.abc import Iterable
from enum import Enum
from itertools import islice


class _Subscription(Enum):
    REQUESTED = "requested"
    ACTIVE = "active"
    LEAVING = "leaving"


class UserSubscriptions:
    """Which users are subscribed to, and which have to be; at first none of the `wanted` ones is."""

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        self._to_update = dict.fromkeys(wanted)  # users whose subscription may have to change
        self._wanted = dict(self._to_update)
        self._subscriptions: dict[str, _Subscription] = {}

    def reset(self) -> None:
        """Begin a connection, on which nothing is subscribed to yet."""
        self._subscriptions.clear()
        self._to_update = dict.fromkeys(self._wanted)

    def want(self, uid: str) -> None:
        self._wanted[uid] = None
        if self._subscriptions.get(uid) in (None, _Subscription.LEAVING):
            self._to_update[uid] = None

    def drop(self, uid: str) -> None:
        self._wanted.pop(uid, None)
        if uid in self._subscriptions:
            self._to_update[uid] = None
        else:
            self._to_update.pop(uid, None)

    def is_active(self, uid: str) -> bool:
        """Whether all events of a user arrive."""
        return self._subscriptions.get(uid) is _Subscription.ACTIVE

    def next(self, most: int) -> tuple[list[str], list[str]]:
        """Return users to subscribe to and to unsubscribe from, at most `most`; they count as requested."""
        subscribe, unsubscribe = [], []
        for uid in list(islice(self._to_update, most)):
            del self._to_update[uid]
            present = self._subscriptions.get(uid)
            if uid in self._wanted:
                if present is None:
                    self._subscriptions[uid] = _Subscription.REQUESTED
                    subscribe.append(uid)
            elif present is _Subscription.ACTIVE:
                self._subscriptions[uid] = _Subscription.LEAVING
                unsubscribe.append(uid)
        return subscribe, unsubscribe

    def subscribed(self, uid: str) -> bool:
        """Record that a subscription is active; return whether it was requested, and is still wanted."""
        if self._subscriptions.get(uid) is not _Subscription.REQUESTED:
            return False
        self._subscriptions[uid] = _Subscription.ACTIVE
        if uid not in self._wanted:
            self._to_update[uid] = None
        return uid in self._wanted

    def unsubscribed(self, uid: str) -> None:
        if self._subscriptions.get(uid) is _Subscription.LEAVING:
            del self._subscriptions[uid]
            if uid in self._wanted:
                self._to_update[uid] = None

    def all(self) -> list[str]:
        """Return the users whose channels are subscribed to, or will be."""
        return [uid for uid, each in self._subscriptions.items() if each is not _Subscription.LEAVING]
