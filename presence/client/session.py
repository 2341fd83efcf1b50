"""One logged-in connection as the client sees it: its beats, its requests, and what comes unasked."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import protocol
from presence.client.errors import PresenceError, RequestTimeout, request_failed
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


class _Pending(NamedTuple):
    packet: Packet
    deadline: float


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

    __slots__ = ("_ids", "_lasting", "_outgoing", "_requests", "beats", "refusal", "since")

    def __init__(
        self, beats: Beats, now: float, ids: Iterator[int], outgoing: bytearray, lasting: Lasting
    ) -> None:
        self._ids = ids
        self._outgoing = outgoing
        self._lasting = lasting
        self._requests: dict[int, _Pending] = {}
        self.beats = beats
        self.refusal: tuple[int, str, str] | None = None
        self.since = now

    @property
    def deadline(self) -> float:
        """When something is due: a beat, a beat's answer, or a request's."""
        due = [pending.deadline for pending in self._requests.values()]
        return min(self.beats.next_at, self.beats.dead_at, *due)

    def request(self, packet: Packet, timeout_s: float, now: float) -> int:
        """Send a request and return its id.

        Raises:
            protocol.EncodeError: the packet breaks a rule of the protocol; nothing was sent.
        """
        id = next(self._ids)
        self._outgoing += protocol.encode(packet._replace(id=id), protocol.FRAME_LIMIT_BYTES)
        self._requests[id] = _Pending(packet, now + timeout_s)
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
        """Give up requests whose time is over."""
        late = [id for id, pending in self._requests.items() if now >= pending.deadline]
        caused: Caused = []
        for id in late:
            self.give_up(id)
            caused.append(Answer(id, RequestTimeout("no answer came in time")))
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
        ids = list(self._requests)
        self._requests.clear()
        return [Answer(id, error) for id in ids]

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
        return [Answer(id, error)]


def _ends_connection(code: int, pending: _Pending | None) -> bool:
    """Whether a server closes after an error; one that refuses a watch too many does not."""
    if code == Code.TOO_LARGE and pending is not None and pending.packet.kind == Kind.WATCH:
        return False
    return code in _ENDS_CONNECTION
