"""One logged-in connection as the client sees it: its beats, its requests, and what comes unasked."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import protocol
from presence.client.errors import PresenceError, RequestTimeout, request_failed
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


class Session:
    """From the login's answer to the end of the connection.

    Args:
        beats: when to beat.
        now: when the login was answered.
        ids: where ids of requests come from; goes on over all connections of a client.
        outgoing: what is to be sent is appended here.

    Attributes:
        since: when it began.
        beats: as given.
        refusal: code, reason and message of an error after which a server closes, if it came last.
    """

    __slots__ = ("_ids", "_outgoing", "_requests", "beats", "refusal", "since")

    def __init__(self, beats: Beats, now: float, ids: Iterator[int], outgoing: bytearray) -> None:
        self._ids = ids
        self._outgoing = outgoing
        self._requests: dict[int, float] = {}  # id to deadline
        self.beats = beats
        self.refusal: tuple[int, str, str] | None = None
        self.since = now

    @property
    def deadline(self) -> float:
        """When something is due: a beat, a beat's answer, or a request's."""
        return min(self.beats.next_at, self.beats.dead_at, *self._requests.values())

    def request(self, packet: Packet, timeout_s: float, now: float) -> int:
        """Send a request and return its id.

        Raises:
            protocol.EncodeError: the packet breaks a rule of the protocol; nothing was sent.
        """
        id = next(self._ids)
        self._outgoing += protocol.encode(packet._replace(id=id), protocol.FRAME_LIMIT_BYTES)
        self._requests[id] = now + timeout_s
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
        """Give up requests whose time is over."""
        late = [id for id, deadline in self._requests.items() if now >= deadline]
        return [self._answer(id, RequestTimeout("no answer came in time")) for id in late]

    def fail(self, error: PresenceError) -> Caused:
        """The connection has ended: nothing more will be answered."""
        return [self._answer(id, error) for id in list(self._requests)]

    def take(self, packet: Packet, now: float) -> Caused:
        """Take any packet but a goodbye. Kinds that this version does not know are ignored."""
        payload = packet.payload
        self.refusal = None
        if packet.kind in (Kind.OK, Kind.ERROR):
            return self._take_answer(packet, now)
        if packet.kind == Kind.DELIVER:
            return [Delivered(payload["from"], payload["body"], payload["at_ms"])]
        if packet.kind == Kind.PRESENCE:
            return [PresenceChanged(payload["uid"], user_state(payload), payload["reason"])]
        return []

    def _take_answer(self, packet: Packet, now: float) -> Caused:
        id, payload = packet.id, packet.payload
        if packet.kind == Kind.ERROR and payload["code"] in _ENDS_CONNECTION:
            self.refusal = (payload["code"], payload["reason"], payload["message"])
        if id is None:
            return []
        if id == self.beats.asked:
            self.beats.answered(now)
        elif id in self._requests:
            if packet.kind == Kind.OK:
                return [self._answer(id, payload)]
            error = request_failed(
                payload["code"], payload["reason"], payload["message"], payload.get("retry_after")
            )
            return [self._answer(id, error)]
        return []  # the answer to a request that was given up

    def _answer(self, id: int, result: Mapping[str, Any] | PresenceError) -> Answer:
        del self._requests[id]
        return Answer(id, result)
