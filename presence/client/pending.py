"""The requests of one connection that have no answer yet.

Each step costs O(log n), where n is their number.

Tests: `tests/client/test_requests.py`.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from presence.client.errors import PresenceError
from presence.client.pushes import Push
from presence.protocol import Packet

SPARE_TIMES = 64  # times of requests that are over, kept before all such are removed


class RequestResult(NamedTuple):
    """The result of a request: the payload of its ok, or an error."""

    id: int
    result: Mapping[str, Any] | PresenceError


Result = Mapping[str, Any] | PresenceError
Effects = list[Push | RequestResult]
AnswerCallback = Callable[[Result, float], Effects]


class PendingRequest(NamedTuple):
    packet: Packet
    deadline: float  # when it times out
    retries: bool = False  # whether a message is sent again to a recipient that has lost its connection
    on_answer: AnswerCallback | None = None  # for requests that the client makes by itself
    resend_at: float | None = None  # when to send it again; None: it awaits its answer, or its turn
    refusal: PresenceError | None = None  # why it is to be sent again
    is_held: bool = False  # whether it has not been sent, because it waits for other messages
    frame: bytes = b""  # of a message, which may have to be sent later

    @property
    def may_change_sight(self) -> bool:
        """Whether the client may see other users than before, once it is granted."""
        return "token" in self.packet.payload or "pass" in self.packet.payload

    @property
    def next_action_at(self) -> float:
        """When to resend it or time it out."""
        return self.deadline if self.resend_at is None else min(self.resend_at, self.deadline)

    def effects_of(self, id: int, result: Result, now: float) -> Effects:
        return [RequestResult(id, result)] if self.on_answer is None else self.on_answer(result, now)


class PendingRequests:
    """Requests by id, and when the next one has to be resent or timed out."""

    def __init__(self) -> None:
        self._by_id: dict[int, PendingRequest] = {}
        self._times: list[tuple[float, int]] = []  # a heap; those of requests that are over or changed too

    @property
    def next_action_at(self) -> float:
        """When to resend or time out the first request; infinite if there is none."""
        times = self._times
        while times and not self._is_due_then(*times[0]):
            heapq.heappop(times)
        return times[0][0] if times else math.inf

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: int) -> bool:
        """Whether a request has no answer yet."""
        return id in self._by_id

    def __getitem__(self, id: int) -> PendingRequest:
        return self._by_id[id]

    def put(self, id: int, pending: PendingRequest) -> None:
        """Add a request, or replace the one with this id."""
        self._by_id[id] = pending
        heapq.heappush(self._times, (pending.next_action_at, id))
        if len(self._times) > 2 * len(self._by_id) + SPARE_TIMES:
            self._times = [(each.next_action_at, id) for id, each in self._by_id.items()]
            heapq.heapify(self._times)

    def pop(self, id: int) -> PendingRequest | None:
        return self._by_id.pop(id, None)

    def due(self, now: float) -> list[int]:
        """Return the ids of the requests that have to be resent or timed out by now, the earliest first."""
        found: dict[int, None] = {}
        while self.next_action_at <= now:
            found[heapq.heappop(self._times)[1]] = None
        return list(found)

    def clear(self) -> Iterator[tuple[int, PendingRequest]]:
        """Remove all requests and return them, the oldest first."""
        requests, self._by_id = self._by_id, {}
        self._times.clear()
        return iter(requests.items())

    def _is_due_then(self, time: float, id: int) -> bool:
        pending = self._by_id.get(id)
        return pending is not None and pending.next_action_at == time
