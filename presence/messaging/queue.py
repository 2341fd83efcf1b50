"""Messages that wait for their answers: how many, in which order, and who is looked for a second time; pure.

Each message goes out once, in the order in which it was taken. Where nobody was found for one, it waits a
moment for a second look, and what comes for the same recipient meanwhile waits behind it: so whatever one
user sends to another arrives in order. All operations are O(1) a message.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from presence.core.registry import Session
from presence.messaging.letters import OutgoingMessage

MAX_ITEMS: Final = 8192  # more than a second's work
MAX_BYTES: Final = 16 * 1024 * 1024  # a kilobyte each at half of that, 16 KiB at a few
MAX_SENDER_ITEMS: Final = 256  # of one connection: what it floods a call with delays others by milliseconds
MAX_ITEMS_PER_CALL: Final = 512  # a few milliseconds of a script
MAX_BYTES_PER_CALL: Final = 1024 * 1024  # the same of packing and copying
# A login is told to Redis within some 20 ms: whoever is not found may be about to be.
RETRY_DELAY_S: Final = 0.06


class PendingMessage:
    """A message that has no answer yet."""

    __slots__ = ("id", "is_answered", "is_retry", "message", "sender", "taken_at")

    def __init__(self, sender: Session, id: int | None, message: OutgoingMessage, taken_at: float) -> None:
        self.sender = sender  # it may have ended since
        self.id = id
        self.message = message
        self.taken_at = taken_at  # monotonic seconds
        self.is_retry = self.is_answered = False


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much may wait at once, on one node."""

    items: int = MAX_ITEMS
    bytes: int = MAX_BYTES  # the last message may go beyond
    sender_items: int = MAX_SENDER_ITEMS


class MessageQueue:
    """See the header; `items` and `bytes` tell what has no answer yet, taken for a call or not."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._queue: deque[PendingMessage] = deque()
        self._retries: dict[str, list[PendingMessage]] = {}  # by recipient
        self._due: deque[tuple[float, str]] = deque()  # when, and which recipient; in order
        self._per_sender: Counter[Session] = Counter()
        self.items = self.bytes = 0

    def has_room(self, sender: Session) -> bool:
        """Whether one more message of a sender may wait."""
        bounds = self._bounds
        return (
            self.items < bounds.items
            and self.bytes < bounds.bytes
            and self._per_sender[sender] < bounds.sender_items
        )

    def add(self, pending: PendingMessage) -> None:
        """Take a message, for which there is room."""
        self.items += 1
        self.bytes += len(pending.message.frame)
        self._per_sender[pending.sender] += 1
        self._queue.append(pending)

    def next_at(self) -> float:
        """Return when there is something to `take`: -inf for at once, inf for nothing."""
        if self._queue:
            return -math.inf
        return self._due[0][0] if self._due else math.inf

    def next_batch(self, now: float) -> list[PendingMessage]:
        """Return what goes out with the next call; one call at a time."""
        while self._due and self._due[0][0] <= now:
            _, to = self._due.popleft()
            self._queue.extendleft(reversed(self._retries.pop(to)))
        taken: list[PendingMessage] = []
        size = 0
        while self._queue and len(taken) < MAX_ITEMS_PER_CALL and size < MAX_BYTES_PER_CALL:
            pending = self._queue.popleft()
            if (others := self._retries.get(pending.message.to)) is not None:
                others.append(pending)
            else:
                taken.append(pending)
                size += len(pending.message.frame)
        return taken

    def retry_later(self, some: Iterable[PendingMessage], now: float) -> None:
        """Nobody was found for these of the last call: they are looked for once more."""
        for pending in some:
            pending.is_retry = True
            to = pending.message.to
            if (others := self._retries.get(to)) is not None:
                others.append(pending)
            else:
                self._retries[to] = [pending]
                self._due.append((now + RETRY_DELAY_S, to))

    def remove(self, pending: PendingMessage) -> None:
        """Forget a message that was taken."""
        pending.is_answered = True
        self.items -= 1
        self.bytes -= len(pending.message.frame)
        self._per_sender[pending.sender] -= 1
        if not self._per_sender[pending.sender]:
            del self._per_sender[pending.sender]
