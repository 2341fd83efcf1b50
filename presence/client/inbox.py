"""What was received and the program has not read yet: a bounded queue for each kind of push.

Messages, changes of presence, of rooms and of the connection have queues of their own, so a burst of one kind
takes no place from another. Each keeps the order of arrival, and the reader of all kinds gets them merged by
it. O(1) for each push.

A full queue drops its oldest push, and in the place of those dropped is a `Dropped` with their number. A full
queue of changes first drops, silently, a change for which a later one of the same user is queued: the reader
still sees the newest state of each user.
"""

from collections import OrderedDict, deque
from typing import Final

from presence.client.pushes import (
    Connected,
    Delivered,
    Disconnected,
    Dropped,
    Goodbye,
    PresenceChanged,
    Push,
    PushKind,
    RoomChanged,
    WatchEnded,
)

# Two for each lost connection, and while the server is away one a minute: more are no news.
MAX_CONNECTION_CHANGES: Final = 100
KINDS: Final[dict[type, PushKind]] = {
    Connected: "connection",
    Disconnected: "connection",
    Goodbye: "connection",
    PresenceChanged: "presence",
    WatchEnded: "presence",
    RoomChanged: "rooms",
    Delivered: "messages",
}


class _Queue:
    """Pushes of one kind by their numbers in the order of arrival."""

    def __init__(self, kind: PushKind, capacity: int) -> None:
        self.pushes: OrderedDict[int, Push] = OrderedDict()
        self.lost = 0  # dropped since the reader has last been told
        self._lost_at = 0  # the number of the first of these
        self._kind = kind
        self._capacity = capacity

    @property
    def first_number(self) -> int:
        """The number of what `pop` returns; the queue is not empty."""
        return self._lost_at if self.lost else next(iter(self.pushes))

    def put(self, number: int, push: Push) -> None:
        if len(self.pushes) >= self._capacity:
            self.make_room()
        self.pushes[number] = push

    def pop(self) -> Push:
        if self.lost:
            lost, self.lost = self.lost, 0
            return Dropped(self._kind, lost)
        return self.take_oldest()[1]

    def take_oldest(self) -> tuple[int, Push]:
        return self.pushes.popitem(last=False)

    def make_room(self) -> None:
        number, _push = self.take_oldest()
        if not self.lost:
            self._lost_at = number
        self.lost += 1


class _Changes(_Queue):
    """Changes of presence, of which a later one supersedes the earlier ones of its user."""

    def __init__(self, kind: PushKind, capacity: int) -> None:
        super().__init__(kind, capacity)
        self._latest: dict[str, int] = {}  # uid to its newest queued change
        self._stale: deque[int] = deque()  # changes that a later one supersedes; some may be popped by now
        self._most_stale = 2 * capacity
        self.superseded = 0

    def put(self, number: int, push: Push) -> None:
        if isinstance(push, PresenceChanged):
            if (before := self._latest.get(push.uid)) is not None:
                self._stale.append(before)
                if len(self._stale) > self._most_stale:
                    self._stale = deque(each for each in self._stale if each in self.pushes)
            self._latest[push.uid] = number
        super().put(number, push)

    def take_oldest(self) -> tuple[int, Push]:
        number, push = super().take_oldest()
        if isinstance(push, PresenceChanged) and self._latest.get(push.uid) == number:
            del self._latest[push.uid]
        return number, push

    def make_room(self) -> None:
        while self._stale:
            if self.pushes.pop(self._stale.popleft(), None) is not None:
                self.superseded += 1
                return
        super().make_room()


class Inbox:
    """The four queues. A push is given once: to the first that asks for its kind, or for any."""

    def __init__(self, max_messages: int, max_changes: int) -> None:
        self._changes = _Changes("presence", max_changes)
        self._queues: dict[PushKind, _Queue] = {
            "messages": _Queue("messages", max_messages),
            "presence": self._changes,
            "rooms": _Queue("rooms", max_changes),
            "connection": _Queue("connection", MAX_CONNECTION_CHANGES),
        }
        self._all = tuple(self._queues.values())
        self._next = 0
        self._dropped_and_told = 0

    def __len__(self) -> int:
        return sum(len(queue.pushes) + bool(queue.lost) for queue in self._queues.values())

    @property
    def superseded(self) -> int:
        """Changes dropped because a later one of the same user was queued."""
        return self._changes.superseded

    @property
    def dropped(self) -> int:
        """Pushes dropped so far, without superseded changes."""
        return self._dropped_and_told + sum(queue.lost for queue in self._queues.values())

    def put(self, push: Push) -> PushKind:
        """Append a push; return its kind."""
        kind = KINDS[type(push)]
        self._queues[kind].put(self._next, push)
        self._next += 1
        return kind

    def pop(self, kind: PushKind | None = None) -> Push | None:
        """Remove and return the oldest push, or the oldest of a kind; None if there is none.

        Raises ValueError for an unknown kind.
        """
        try:
            queue = self._with_the_oldest() if kind is None else self._queues[kind]
        except KeyError:
            raise ValueError(f"kind must be one of {', '.join(self._queues)}, not {kind!r}") from None
        if queue is None or not (queue.pushes or queue.lost):
            return None
        push = queue.pop()
        if isinstance(push, Dropped):
            self._dropped_and_told += push.count
        return push

    def _with_the_oldest(self) -> _Queue | None:
        """Return the queue that has the oldest push; None if all are empty."""
        found = None
        for queue in self._all:
            if queue.pushes or queue.lost:  # mostly one
                found = queue if found is None or queue.first_number < found.first_number else found
        return found
