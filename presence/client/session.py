"""One logged-in connection as the client sees it: its beats, its requests, and what comes unasked."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import protocol
from presence.client.errors import PresenceError, RecipientDisconnected, RequestTimeout, request_failed
from presence.client.lasting import Lasting
from presence.client.pacing import Beats, Chance
from presence.client.pushes import Delivered, PresenceChanged, Push, user_state
from protocol import Code, Kind, Packet

# After these errors the server closes; others refuse one request.
_ENDS_CONNECTION = frozenset({Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN})


class Answer(NamedTuple):
    """What became of a request: the payload of its ok, or an error."""

    id: int
    result: Mapping[str, Any] | PresenceError


Caused = list[Push | Answer]


RETRY_S: Final = 1.0  # between two attempts to reach a recipient who may return at any moment


class _Pending(NamedTuple):
    """A request without an answer.

    Attributes:
        packet: what is asked.
        deadline: when its time is over.
        retries: whether a message is sent again to a recipient that has lost its connection.
        again_at: when it is to be sent again; None: its answer is awaited.
        refusal: why.
    """

    packet: Packet
    deadline: float
    retries: bool = False
    again_at: float | None = None
    refusal: PresenceError | None = None

    @property
    def due(self) -> float:
        """When something is to be done about it."""
        return self.deadline if self.again_at is None else min(self.again_at, self.deadline)


class Session:
    """From the login's answer to the end of the connection.

    Args:
        beats: when to beat.
        now: when the login was answered.
        ids: where ids of requests come from; goes on over all connections of a client.
        outgoing: what is to be sent is appended here.
        lasting: told what was asked for and granted; says which changes of presence are any.

    Attributes:
        since: when it began.
        beats: as given.
        refusal: code, reason and message of an error after which a server closes, if it came last.
    """

    __slots__ = ("_held", "_ids", "_lasting", "_outgoing", "_requests", "beats", "refusal", "since")

    def __init__(
        self, beats: Beats, now: float, ids: Iterator[int], outgoing: bytearray, lasting: Lasting
    ) -> None:
        self._ids = ids
        self._outgoing = outgoing
        self._lasting = lasting
        self._requests: dict[int, _Pending] = {}
        self._held: dict[str, _Pending] = {}  # by recipient, the newest that waits to be sent again
        self.beats = beats
        self.refusal: tuple[int, str, str] | None = None
        self.since = now

    @property
    def deadline(self) -> float:
        """When something is due: a beat, a beat's answer, or a request's."""
        due = [pending.due for pending in self._requests.values()]
        return min(self.beats.next_at, self.beats.dead_at, *due)

    def request(self, packet: Packet, timeout_s: float, now: float, *, retries: bool = False) -> int:
        """Send a request and return its id.

        With `retries` a message is sent again, within its time, while its recipient may return. What follows
        to the same recipient waits behind it, so that all of it arrives in order.

        Raises:
            protocol.EncodeError: the packet breaks a rule of the protocol; nothing was sent.
        """
        id = next(self._ids)
        encoded = protocol.encode(packet._replace(id=id), protocol.FRAME_LIMIT_BYTES)
        pending = _Pending(packet, now + timeout_s, retries)
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
                caused.append(Answer(id, pending.refusal or RequestTimeout("no answer came in time")))
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
        """The connection has ended: nothing more will be answered."""
        self._lasting.watches.left()
        requests = list(self._requests.items())
        self._requests.clear()
        return [Answer(id, pending.refusal or error) for id, pending in requests]

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
            return [Answer(id, payload), *self._lasting.granted(id, pending.packet, payload)]
        self._lasting.watches.refuse(id)
        error = request_failed(
            payload["code"], payload["reason"], payload["message"], payload.get("retry_after")
        )
        if pending.retries and isinstance(error, RecipientDisconnected):
            to = pending.packet.payload["to"]
            before = self._held.get(to)
            again_at = before.again_at if before else now + min(RETRY_S, error.retry_after or 0.0)
            held = pending._replace(again_at=again_at, refusal=error)
            if held.due < held.deadline:
                self._held[to] = self._requests[id] = held
                return []
        return [Answer(id, error)]


def _ends_connection(code: int, pending: _Pending | None) -> bool:
    """Whether a server closes after an error; one that refuses a watch too many does not."""
    if code == Code.TOO_LARGE and pending is not None and pending.packet.kind == Kind.WATCH:
        return False
    return code in _ENDS_CONNECTION
