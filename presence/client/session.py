"""One logged-in connection as the client sees it: its beats, its requests, and what comes unasked."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from presence import protocol
from presence.client.errors import FAILED, PresenceError, RecipientDisconnected, RequestFailed, RequestTimeout
from presence.client.pushes import Delivered, PresenceChanged, Push, user_state
from presence.client.reconnect import Chance
from presence.client.state import Lasting
from presence.protocol import Code, Kind, Packet

BEAT_JITTER = 0.1  # a beat comes up to this share of the interval early, never late: lateness costs slack
BEAT_MIN_S = 0.02  # whatever a server dictates, a client is no flood
# Each beat asks. A server that stops is then noticed within two intervals, 0.8 of the idle time-out, so that
# a client whose path broke is back before it counts as offline. One of three would take four intervals.
ASK_EVERY = 1
RETRY_S: Final = 1.0  # between two attempts to reach a recipient who may return at any moment
# After these errors the server closes; others refuse one request.
_ENDS_CONNECTION: Final = frozenset({Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN})


class RequestResult(NamedTuple):
    """What became of a request: the payload of its ok, or an error."""

    id: int
    result: Mapping[str, Any] | PresenceError


Result = Mapping[str, Any] | PresenceError
Caused = list[Push | RequestResult]
Done = Callable[[Result, float], Caused]


class Beats:
    """The beats of one logged-in connection, and whether the server is still there.

    The first beat comes at a random moment of the first interval, so that clients who came together do
    not beat together. The first of every `ask_every` beats asks for an answer: after one that asked,
    something must arrive within an interval, or the server is dead. A server that stops is therefore
    noticed at most ``ask_every + 1`` intervals later, and one interval after the first beat that it owes
    an answer.
    """

    def __init__(self, interval_s: float, ask_every: int, now: float, chance: Chance) -> None:
        self._interval_s = max(BEAT_MIN_S, interval_s)
        self._ask_every = ask_every
        self._asked_at = 0.0
        self.next_at = now + self._interval_s * chance()
        self.dead_at = math.inf  # when the server counts as dead, while an answer is due
        self.asked: int | None = None  # id of the beat whose answer is due
        self.sent = 0
        self.round_trip_s: float | None = None  # of the last answered beat

    def beat(self, now: float, chance: Chance) -> bool:
        """Count a beat that is sent now; return whether it should carry an id.

        The next is due an interval from now: beats that were missed are not made up for.
        """
        asks = self.sent % self._ask_every == 0 and self.asked is None
        self.sent += 1
        self.next_at = now + self._interval_s * (1.0 - BEAT_JITTER * chance())
        return asks

    def ask(self, id: int, now: float) -> None:
        """The beat just counted carries this id."""
        self.asked = id
        self._asked_at = now
        self.dead_at = now + self._interval_s

    def heard(self, now: float) -> None:
        """Something arrived: whoever sends is alive, though the answer may stand behind other things."""
        if self.asked is not None:
            self.dead_at = now + self._interval_s

    def answered(self, now: float) -> None:
        """The answer to the beat that asked has come."""
        self.round_trip_s = now - self._asked_at
        self.asked = None
        self.dead_at = math.inf


class _PendingRequest(NamedTuple):
    """A request without an answer."""

    packet: Packet
    deadline: float  # when its time is over
    retries: bool = False  # whether a message is sent again to a recipient that has lost its connection
    done: Done | None = None  # told the answer in place of the program, for a request of the client's own
    again_at: float | None = None  # when it is to be sent again; None: its answer is awaited
    refusal: PresenceError | None = None  # why

    @property
    def due(self) -> float:
        """When something is to be done about it."""
        return self.deadline if self.again_at is None else min(self.again_at, self.deadline)

    def answered(self, id: int, result: Result, now: float) -> Caused:
        """Return what an answer means."""
        return [RequestResult(id, result)] if self.done is None else self.done(result, now)


class ClientSession:
    """From the login's answer to the end of the connection.

    Args:
        ids: where ids of requests come from; goes on over all connections of a client.
        outgoing: what is to be sent is appended here.
        lasting: told what was asked for and granted; says which changes of presence are any.
    """

    def __init__(
        self, beats: Beats, now: float, ids: Iterator[int], outgoing: bytearray, lasting: Lasting
    ) -> None:
        self._ids = ids
        self._outgoing = outgoing
        self._lasting = lasting
        self._requests: dict[int, _PendingRequest] = {}
        self._held: dict[str, _PendingRequest] = {}  # by recipient, the newest that waits to be sent again
        self.beats = beats
        self.refusal: tuple[int, str, str] | None = None  # the last packet, if the server closes after it
        self.since = now

    @property
    def deadline(self) -> float:
        """When something is due: a beat, a beat's answer, or a request's."""
        due = [pending.due for pending in self._requests.values()]
        return min(self.beats.next_at, self.beats.dead_at, *due)

    def request(
        self,
        packet: Packet,
        timeout_s: float,
        now: float,
        *,
        retries: bool = False,
        done: Done | None = None,
    ) -> int:
        """Send a request and return its id; its `RequestResult` follows, or `done` is called instead.

        With `retries` a message is sent again, within its time, while its recipient may return. What follows
        to the same recipient waits behind it, so that all of it arrives in order.

        Raises:
            protocol.EncodeError: the packet breaks a rule of the protocol; nothing was sent.
        """
        id = next(self._ids)
        encoded = protocol.encode(packet._replace(id=id), protocol.FRAME_LIMIT_BYTES)
        pending = _PendingRequest(packet, now + timeout_s, retries, done)
        if retries and (before := self._held.get(packet.payload["to"])) is not None:
            pending = pending._replace(again_at=before.again_at, refusal=before.refusal)
        else:
            self._outgoing += encoded
        self._requests[id] = pending
        self._lasting.asked(id, packet)
        return id

    def beat(self, now: float, chance: Chance) -> bool:
        """Send a beat if one is due; return whether."""
        if now < self.beats.next_at:
            return False
        if self.beats.beat(now, chance):
            id = next(self._ids)
            self.beats.ask(id, now)
            self._outgoing += protocol.encode(protocol.keepalive(id))
        else:
            self._outgoing += protocol.KEEPALIVE
        return True

    def expire(self, now: float) -> Caused:
        """Give up requests whose time is over, and send again what is due."""
        due = sorted(id for id, pending in self._requests.items() if now >= pending.due)
        caused: Caused = []
        for id in due:
            pending = self._requests[id]
            if now >= pending.deadline:
                self.give_up(id)
                error = pending.refusal or RequestTimeout("no answer came in time")
                caused += pending.answered(id, error, now)
                continue
            self._held.pop(pending.packet.payload["to"], None)
            self._requests[id] = pending._replace(again_at=None, refusal=None)
            self._outgoing += protocol.encode(pending.packet._replace(id=id), protocol.FRAME_LIMIT_BYTES)
        return caused

    def give_up(self, id: int) -> None:
        """Wait for an answer no more. A watch that may have been granted is taken back."""
        pending = self._requests.pop(id, None)
        if pending is None or pending.packet.kind != Kind.WATCH:
            return
        if uids := self._lasting.watches.refuse(id):
            self._outgoing += protocol.encode(protocol.unwatch(uids), protocol.FRAME_LIMIT_BYTES)

    def fail(self, error: PresenceError) -> Caused:
        """The connection has ended: nothing more will be answered. The next one makes own requests anew."""
        self._lasting.watches.left()
        requests = list(self._requests.items())
        self._requests.clear()
        return [RequestResult(id, each.refusal or error) for id, each in requests if each.done is None]

    def take(self, packet: Packet, now: float) -> Caused:
        """Take any packet but a goodbye. Kinds that this version does not know are ignored."""
        payload = packet.payload
        self.refusal = None
        if packet.kind in (Kind.OK, Kind.ERROR):
            return self._take_answer(packet, now)
        if packet.kind == Kind.DELIVER:
            return [Delivered(payload["from"], payload["body"], payload["at_ms"])]
        if packet.kind == Kind.PRESENCE:
            push = PresenceChanged(payload["uid"], user_state(payload), payload["reason"])
            return [push] if self._lasting.watches.change(push) else []
        return []

    def _take_answer(self, packet: Packet, now: float) -> Caused:
        id, payload = packet.id, packet.payload
        pending = None if id is None else self._requests.pop(id, None)
        if packet.kind == Kind.ERROR and _ends_connection(payload["code"], pending):
            self.refusal = (payload["code"], payload["reason"], payload["message"])
        if id is None:
            return []
        if id == self.beats.asked:
            self.beats.answered(now)
        if pending is None:
            return []  # a beat, or a request that was given up
        if packet.kind == Kind.OK:
            changes = self._lasting.granted(id, pending.packet, payload)
            return [*pending.answered(id, payload, now), *changes]
        self._lasting.watches.refuse(id)
        code, retry_after = payload["code"], payload.get("retry_after")
        error = FAILED.get(code, RequestFailed)(code, payload["reason"], payload["message"], retry_after)
        if pending.retries and isinstance(error, RecipientDisconnected):
            to = pending.packet.payload["to"]
            before = self._held.get(to)
            again_at = before.again_at if before else now + min(RETRY_S, error.retry_after or 0.0)
            held = pending._replace(again_at=again_at, refusal=error)
            if held.due < held.deadline:
                self._held[to] = self._requests[id] = held
                return []
        return pending.answered(id, error, now)


def _ends_connection(code: int, pending: _PendingRequest | None) -> bool:
    """Whether a server closes after an error; one that refuses a watch too many does not."""
    if code == Code.TOO_LARGE and pending is not None and pending.packet.kind == Kind.WATCH:
        return False
    return code in _ENDS_CONNECTION
