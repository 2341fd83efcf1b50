"""What came and nobody took yet: bounded, and what it leaves out first is what a later push made stale."""

from collections import OrderedDict, deque

from presence.client.pushes import PresenceChanged, Push


class Inbox:
    """Pushes in the order in which they came; O(1) each.

    Where it is full, an older change of presence goes for which a later one of the same user waits: whoever
    reads on sees the newest state of everybody. Only where there is none the oldest push goes, of any type.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pushes: OrderedDict[int, Push] = OrderedDict()
        self._latest: dict[str, int] = {}  # uid to its newest change that waits
        self._stale: deque[int] = deque()  # changes that a later one supersedes; some may be taken by now
        self._next = 0
        self.dropped = 0  # how many oldest pushes went
        self.superseded = 0  # how many stale changes went

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
        """Return the oldest; `LookupError`: there is none."""
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
