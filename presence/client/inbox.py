"""A bounded queue of pushes that first drops changes superseded by later ones."""

from collections import OrderedDict, deque

from presence.client.pushes import PresenceChanged, Push


class Inbox:
    """Pushes in order of arrival; O(1) each.

    When full, it drops a change of presence for which a later one of the same user is queued, so the reader
    still sees the newest state of each user. If there is none, it drops the oldest push of any type.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pushes: OrderedDict[int, Push] = OrderedDict()
        self._latest: dict[str, int] = {}  # uid to its newest queued change
        self._stale: deque[int] = deque()  # changes that a later one supersedes; some may be popped by now
        self._next = 0
        self.dropped = 0  # oldest pushes dropped
        self.superseded = 0  # superseded changes dropped

    def __len__(self) -> int:
        return len(self._pushes)

    def put(self, push: Push) -> None:
        """Append a push."""
        if isinstance(push, PresenceChanged):
            if (before := self._latest.get(push.uid)) is not None:
                self._stale.append(before)
                if len(self._stale) > 2 * self._capacity:
                    self._stale = deque(number for number in self._stale if number in self._pushes)
            self._latest[push.uid] = self._next
        if len(self._pushes) >= self._capacity:
            self._make_room()
        self._pushes[self._next] = push
        self._next += 1

    def pop(self) -> Push:
        """Remove and return the oldest; raises `LookupError` if empty."""
        number, push = self._pushes.popitem(last=False)
        if isinstance(push, PresenceChanged) and self._latest.get(push.uid) == number:
            del self._latest[push.uid]
        return push

    def _make_room(self) -> None:
        while self._stale:
            if self._pushes.pop(self._stale.popleft(), None) is not None:
                self.superseded += 1
                return
        if self._pushes:
            self.pop()
            self.dropped += 1
