"""Messages waiting for their answers: limits, order, and the second try of those without a recipient; pure.

Each message goes out once, in the order of arrival. If no recipient was found for one, it waits a moment for
a second try, and later messages to the same recipient wait behind it: so whatever one user sends to another
arrives in order. All operations are O(1) per message.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from presence.core.registry import Session
from presence.messaging.message_bus import OutgoingMessage

MAX_ITEMS: Final = 8192  # more than a second of work
MAX_BYTES: Final = 16 * 1024 * 1024  # 2 KiB for each of `MAX_ITEMS`
MAX_SENDER_ITEMS: Final = 256  # of one user: a flood of it delays other senders by milliseconds
MAX_ITEMS_PER_CALL: Final = 512  # a few milliseconds of a script
MAX_BYTES_PER_CALL: Final = 1024 * 1024  # the same for packing and copying
# A login reaches Redis up to `outbox.relay.GATHER_S` after its answer: a recipient not found at first may be
# found then. The rest is for the call.
RETRY_DELAY_S: Final = 0.25


class PendingMessage:
    """A message that has no answer yet."""

    __slots__ = ("id", "is_answered", "is_retry", "is_sent", "message", "sender", "taken_at")

    def __init__(self, sender: Session, id: int | None, message: OutgoingMessage, taken_at: float) -> None:
        self.sender = sender  # may have ended since
        self.id = id
        self.message = message
        self.taken_at = taken_at  # monotonic seconds
        self.is_retry = self.is_answered = False
        self.is_sent = False  # and waits for confirmations


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Limits of the waiting messages of one node."""

    items: int = MAX_ITEMS
    bytes: int = MAX_BYTES  # the last message may exceed it
    sender_items: int = MAX_SENDER_ITEMS


class MessageQueue:
    """Messages without an answer, in a call or not; `items` and `bytes` count those that were not sent."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._queue: deque[PendingMessage] = deque()
        self._retries: dict[str, list[PendingMessage]] = {}  # by recipient
        self._due: deque[tuple[float, str]] = deque()  # time and recipient of second tries, in order
        self._per_sender: Counter[str] = Counter()
        self.items = self.bytes = 0

    def has_room(self, sender: Session) -> bool:
        bounds = self._bounds
        return (
            self.items < bounds.items
            and self.bytes < bounds.bytes
            and self._per_sender[sender.uid] < bounds.sender_items
        )

    def add(self, pending: PendingMessage) -> None:
        """Add a message; `has_room` must be true."""
        self.items += 1
        self.bytes += len(pending.message.frame)
        self._per_sender[pending.sender.uid] += 1
        self._queue.append(pending)

    def next_at(self) -> float:
        """Return when `next_batch` has something: -inf for now, inf for never."""
        if self._queue:
            return -math.inf
        return self._due[0][0] if self._due else math.inf

    def next_batch(self, now: float) -> list[PendingMessage]:
        """Return the messages of the next call; one call at a time."""
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
        """Schedule a second try for messages of the last call whose recipient was not found."""
        for pending in some:
            pending.is_retry = True
            to = pending.message.to
            if (others := self._retries.get(to)) is not None:
                others.append(pending)
            else:
                self._retries[to] = [pending]
                self._due.append((now + RETRY_DELAY_S, to))

    def sent(self, pending: PendingMessage) -> None:
        """Make room for another message; this one, without its frame, still counts for its sender."""
        pending.is_sent = True
        self.items -= 1
        self.bytes -= len(pending.message.frame)
        pending.message = pending.message._replace(frame=b"")

    def remove(self, pending: PendingMessage) -> None:
        pending.is_answered = True
        if not pending.is_sent:
            self.sent(pending)
        uid = pending.sender.uid
        self._per_sender[uid] -= 1
        if not self._per_sender[uid]:
            del self._per_sender[uid]
