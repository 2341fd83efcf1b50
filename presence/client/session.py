"""One logged-in connection of a client: keepalives, requests and pushes.

Tests: `tests/client/test_keepalives.py`, `tests/client/test_requests.py`,
`tests/client/test_message_lines.py`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from presence import protocol
from presence.client.errors import (
    FAILED,
    ConnectionLost,
    NotConnected,
    PresenceError,
    RecipientDisconnected,
    RequestFailed,
    RequestTimeout,
    Uncertain,
)
from presence.client.kept_state import PersistentState, own_copy
from presence.client.message_lines import MessageLines
from presence.client.pending import (
    AnswerCallback,
    Effects,
    PendingRequest,
    PendingRequests,
    RequestResult,
)
from presence.client.pushes import Delivered, presence_changes
from presence.client.reconnect import Chance
from presence.protocol import Code, Kind, Packet

KEEPALIVE_SHARE = 0.4  # of the idle time-out, where the server names no keepalive interval
KEEPALIVE_JITTER = 0.1  # each comes up to this share of the interval early, never late
WRITE_GRACE_S = 0.05  # for a keepalive that a pause of the program held up before it was written
MIN_KEEPALIVE_INTERVAL_S = 0.02  # whatever the server asks for, a client must not flood it
# Each keepalive asks for an answer. A dead server is then detected within two intervals, 0.8 of the idle
# time-out, so a client whose path broke is back before it counts as offline. With 3 it would take four.
ASK_EVERY = 1
MAX_CONFIRMED: Final = protocol.UIDS_MAX  # messages in a keepalive
MESSAGE_RETRY_INTERVAL_S: Final = 1.0  # between attempts to reach a recipient who may return
MIN_MESSAGE_RETRY_S: Final = 0.1  # whatever the server asks for
# After these errors the server closes; others refuse one request.
_ENDS_CONNECTION: Final = frozenset({Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN})
# What a server means by an ok without one of these keys that the request has: it has ignored the key.
_IGNORED: Final = {
    "roster": protocol.error(None, Code.UNSUPPORTED, "this server keeps no rosters").payload,
    "rooms": protocol.error(None, Code.UNSUPPORTED, "this server has no rooms").payload,
}


class Keepalives:
    """The keepalives of one logged-in connection, and the detection of a dead server.

    The first keepalive is sent at a random moment of the first interval, so that clients that connected
    together do not send together. The first of every `ask_every` keepalives asks for an answer; after it
    something must arrive within an interval, or the server counts as dead. A server that stops is therefore
    detected after at most ``ask_every + 1`` intervals, and one interval after the first unanswered request.
    The interval begins when the keepalive is written: a program that holds up its own event loop between the
    decision to send and the write has not waited for the server.
    """

    def __init__(self, interval_s: float, ask_every: int, now: float, chance: Chance) -> None:
        self._interval_s = self._granted_s = max(MIN_KEEPALIVE_INTERVAL_S, interval_s)
        self._ask_every = ask_every
        self._question_sent_at = 0.0
        self._is_written = self._had_grace = False  # the keepalive that awaits an answer
        self.next_at = now + self._interval_s * chance()
        self.dead_at = math.inf  # when the server counts as dead, while an answer is due
        self.unanswered_id: int | None = None  # id of the keepalive that awaits an answer
        self.sent = 0
        self.round_trip_s: float | None = None  # of the last answered keepalive

    def set_interval(self, interval_s: float, now: float) -> None:
        """Send keepalives at another interval from now on, which the server has granted."""
        self._interval_s = self._granted_s = max(MIN_KEEPALIVE_INTERVAL_S, interval_s)
        self.next_at = min(self.next_at, now + self._interval_s)

    def shorten_interval(self, interval_s: float, now: float) -> None:
        """Send keepalives at this interval, unless the present one is shorter, until the server decides."""
        self._interval_s = max(MIN_KEEPALIVE_INTERVAL_S, min(self._interval_s, interval_s))
        self.next_at = min(self.next_at, now + self._interval_s)

    def restore_interval(self, now: float) -> None:
        """Send keepalives at the interval that the server has granted last: it has refused another."""
        self.set_interval(self._granted_s, now)

    def count_sent(self, now: float, chance: Chance) -> bool:
        """Count a keepalive that is sent now; return whether it should carry an id.

        The next is due an interval from now: missed keepalives are not made up for.
        """
        asks = self.sent % self._ask_every == 0 and self.unanswered_id is None
        self.sent += 1
        self.next_at = now + self._interval_s * (1.0 - KEEPALIVE_JITTER * chance())
        return asks

    def expect_answer(self, id: int, now: float) -> None:
        """Note that the keepalive just counted carries this id."""
        self.unanswered_id = id
        self._is_written = self._had_grace = False
        self._question_sent_at = now
        self.dead_at = now + self._interval_s

    def note_written(self, now: float) -> None:
        """Note that everything was written, and with it the keepalive that asks for an answer."""
        if self.unanswered_id is not None and not self._is_written:
            self._is_written = True
            self._question_sent_at = now
            self.dead_at = now + self._interval_s

    def is_dead(self, now: float) -> bool:
        """Whether the server counts as dead; a keepalive not yet written gets a moment for that first."""
        if now < self.dead_at:
            return False
        if self._is_written or self._had_grace:
            return True
        self._had_grace = True
        self.dead_at = now + WRITE_GRACE_S
        return False

    def note_received(self, now: float) -> None:
        """Note received bytes: the server is alive, although the answer may come behind other packets."""
        if self.unanswered_id is not None:
            self.dead_at = now + self._interval_s

    def note_answered(self, now: float) -> None:
        self.round_trip_s = now - self._question_sent_at
        self.unanswered_id = None
        self.dead_at = math.inf


class ClientSession:
    """A connection from the login's answer to its end.

    `ids` are request ids, shared by all connections of a client. Bytes to send are appended to `outgoing`;
    `persistent_state` records requests and grants, and filters changes of presence.
    """

    def __init__(
        self,
        keepalives: Keepalives,
        now: float,
        ids: Iterator[int],
        outgoing: bytearray,
        persistent_state: PersistentState,
    ) -> None:
        self._ids = ids
        self._outgoing = outgoing
        self.persistent_state = persistent_state
        self._requests = PendingRequests()
        self._lines = MessageLines()
        self.sight_requests: set[int] = set()  # those without an answer that may change what the client sees
        self.watch_requests: set[int] = set()  # watches without an answer
        self._to_confirm: list[int] = []  # numbers of messages that were received
        self.is_leaving = False  # whether the logout was sent: nothing that may wait follows it
        self.keepalives = keepalives
        self.refusal: tuple[int, str, str] | None = None  # of the last packet, if the server closes after it
        self.online_since = now

    @property
    def deadline(self) -> float:
        """When the next keepalive, answer or request is due."""
        return min(self.keepalives.next_at, self.keepalives.dead_at, self._requests.next_action_at)

    @property
    def requests_due_at(self) -> float:
        """When the next request has to be resent or timed out."""
        return self._requests.next_action_at

    def request(
        self,
        packet: Packet,
        timeout_s: float,
        now: float,
        *,
        retries: bool = False,
        on_answer: AnswerCallback | None = None,
    ) -> int:
        """Send a request and return its id; its `RequestResult` follows, or `on_answer` is called instead.

        With `retries` a message is sent again until its time-out while its recipient may return. Later
        messages to the same recipient may wait for it: see `MessageLines`.

        Raises:
            protocol.EncodeError: the packet breaks a rule of the protocol; nothing was sent.
        """
        id = next(self._ids)
        encoded = protocol.encode(packet._replace(id=id), protocol.FRAME_LIMIT_BYTES)
        if packet.kind == Kind.UPDATE:  # once granted, later logins carry it as it was given
            packet = own_copy(packet)
        is_held, frame = False, b""
        if packet.kind == Kind.MESSAGE:
            is_held = not self._lines.join(packet.payload["to"], id, now, retries=retries)
            frame = encoded
        pending = PendingRequest(packet, now + timeout_s, retries, on_answer, is_held=is_held, frame=frame)
        if not is_held:
            self._outgoing += encoded
        self._requests.put(id, pending)
        if pending.may_change_sight:
            self.sight_requests.add(id)
        elif packet.kind == Kind.WATCH:
            self.watch_requests.add(id)
        self.persistent_state.request_sent(id, packet)
        if packet.kind == Kind.UPDATE and (idle_timeout := packet.payload.get("idle_timeout")):
            self.keepalives.shorten_interval(KEEPALIVE_SHARE * idle_timeout, now)
        return id

    def send_keepalive(self, now: float, chance: Chance) -> bool:
        """Send a keepalive if one is due; return whether one was sent."""
        if now < self.keepalives.next_at:
            return False
        if self.keepalives.count_sent(now, chance):
            id = next(self._ids)
            self.keepalives.expect_answer(id, now)
            self._outgoing += protocol.encode(protocol.keepalive(id))
        else:
            self._outgoing += protocol.KEEPALIVE
        return True

    def send_confirmations(self) -> None:
        """Confirm the messages that were received, immediately: their senders wait."""
        while self._to_confirm:
            numbers, self._to_confirm = self._to_confirm[:MAX_CONFIRMED], self._to_confirm[MAX_CONFIRMED:]
            if not self.is_leaving:
                self._outgoing += protocol.encode(protocol.confirmation(numbers))

    def token_accepted(self, token: str, now: float) -> None:
        """The server has taken a token, in an update."""

    def sight_changed(self) -> None:
        """The server has taken a token or a pass, by which this client may see other users than before."""

    def login_incomplete(self, now: float) -> None:
        """An update was refused, so that what the login left out is to be sent after all."""

    def expire_requests(self, now: float) -> Effects:
        """Time out requests, and resend messages that are due."""
        effects: Effects = []
        due = [(id, self._requests[id]) for id in self._requests.due(now)]
        expired = [(id, pending) for id, pending in due if now >= pending.deadline]
        for id, pending in expired:
            self._forget(id)
            effects += pending.effects_of(id, self._timeout_of(pending), now)
        for id, pending in due:
            if now < pending.deadline:
                self._requests.put(id, pending._replace(resend_at=None))
                self._send_waiting(self._lines.pause_is_over(pending.packet.payload["to"], id))
        for id, pending in expired:  # at last: those that wait for it may have timed out, too
            effects += self._leave_line(id, pending, is_answered=False, may_have_arrived=True)
        return effects

    def _timeout_of(self, pending: PendingRequest) -> PresenceError:
        """Return the error of a request that has timed out."""
        if not pending.is_held:
            return pending.refusal or RequestTimeout("no answer came in time")
        refusal = self._lines.refusal(pending.packet.payload["to"])
        return refusal or RequestTimeout("not sent: those before it to the same user took too long")

    def abandon_request(self, id: int) -> Effects:
        """Stop waiting for an answer; undo a watch that may have been granted, resend no message."""
        if (pending := self._forget(id)) is None:
            return []
        return self._leave_line(id, pending, is_answered=False, may_have_arrived=True)

    def _forget(self, id: int) -> PendingRequest | None:
        """Remove a request without its answer; undo a watch that may have been granted."""
        pending = self._requests.pop(id)
        if pending is None:
            return None
        self.sight_requests.discard(id)
        self.watch_requests.discard(id)
        if pending.packet.kind == Kind.WATCH and (undo := self.persistent_state.request_abandoned(id)):
            undo_id = next(self._ids)
            self._outgoing += protocol.encode(undo._replace(id=undo_id), protocol.FRAME_LIMIT_BYTES)
            self.persistent_state.request_sent(undo_id, undo)
        return pending

    def _leave_line(
        self, id: int, pending: PendingRequest, *, is_answered: bool, may_have_arrived: bool
    ) -> Effects:
        """A message is over: send those that have waited for it, and fail those it has overtaken."""
        if pending.packet.kind != Kind.MESSAGE:
            return []
        to = pending.packet.payload["to"]
        return self._follow(
            *self._lines.left(to, id, is_answered=is_answered, may_have_arrived=may_have_arrived)
        )

    def _follow(self, waiting: list[int], overtaken: list[int]) -> Effects:
        effects: Effects = []
        for id in overtaken:
            if (failed := self._requests.pop(id)) is not None and failed.refusal is not None:
                effects.append(RequestResult(id, failed.refusal))
        self._send_waiting(waiting)
        return effects

    def _send_waiting(self, ids: list[int]) -> None:
        """Send messages that have waited, for the first time or again; after a logout they stay unsent."""
        for id in ids if not self.is_leaving else ():
            if id in self._requests:
                pending = self._requests[id]._replace(is_held=False, resend_at=None, refusal=None)
                self._requests.put(id, pending)
                self._outgoing += pending.frame

    def fail_requests(self, error: PresenceError) -> Effects:
        """Fail all pending requests; the next connection repeats those of the client itself."""
        self.persistent_state.connection_lost()
        effects: Effects = []
        for id, pending in self._requests.clear():
            if pending.on_answer is None:
                effects.append(RequestResult(id, self._failure_of(pending, error)))
        self._lines.clear()
        return effects

    def _failure_of(self, pending: PendingRequest, error: PresenceError) -> PresenceError:
        """Return the error of a request when the connection, or the client, ends with `error`.

        One that was sent may have been carried out, whatever ended the client.
        """
        if not pending.is_held:
            lost = error if isinstance(error, ConnectionLost) else ConnectionLost(str(error))
            return pending.refusal or lost
        not_sent = NotConnected(f"{error}: not sent") if isinstance(error, ConnectionLost) else error
        return self._lines.refusal(pending.packet.payload["to"]) or not_sent

    def handle_packet(self, packet: Packet, now: float) -> Effects:
        """Handle any packet except a goodbye. Unknown kinds are ignored."""
        payload = packet.payload
        self.refusal = None
        if packet.kind in (Kind.OK, Kind.ERROR):
            return self.handle_answer(packet, now)
        if packet.kind == Kind.DELIVER:
            if "confirm" in payload:
                self._to_confirm.append(payload["confirm"])
            return [Delivered(payload["from"], payload["body"], payload["at_ms"])]
        if packet.kind == Kind.ROOMS:
            return [*self.persistent_state.watched_rooms.pushed(payload["rooms"])]
        apply = self.persistent_state.watches.apply_change
        return [push for push in presence_changes(packet) if apply(push)]

    def handle_answer(self, packet: Packet, now: float) -> Effects:
        """Handle an ok or error, to a request or a keepalive."""
        id, payload = packet.id, packet.payload
        pending = None if id is None else self._requests.pop(id)
        if packet.kind == Kind.ERROR and _ends_connection(payload["code"], id, pending):
            self.refusal = (payload["code"], payload["reason"], payload["message"])
        if id is None:
            return []
        if id == self.keepalives.unanswered_id:
            self.keepalives.note_answered(now)
        self.persistent_state.watches.unwatch_answered(id)
        if pending is None:  # a keepalive, or an abandoned request
            return [*self.persistent_state.watched_rooms.answered_late(id, payload)]
        self.sight_requests.discard(id)
        self.watch_requests.discard(id)
        if packet.kind == Kind.OK:
            asked = pending.packet.payload if pending.packet.kind in (Kind.WATCH, Kind.QUERY) else {}
            ignored = [key for key in _IGNORED if asked.get(key) and key not in payload]
            if not ignored:
                return self._granted(id, pending, payload, now)
            payload = _IGNORED[ignored[0]]
        self.persistent_state.request_refused(id)
        if pending.packet.kind == Kind.UPDATE and "idle_timeout" in pending.packet.payload:
            self.keepalives.restore_interval(now)
        if self.persistent_state.update_refused(id):
            self.login_incomplete(now)
        code, retry_after = payload["code"], payload.get("retry_after")
        error = FAILED.get(code, RequestFailed)(code, payload["reason"], payload["message"], retry_after)
        if pending.retries and isinstance(error, RecipientDisconnected):
            pause_s = max(MIN_MESSAGE_RETRY_S, min(MESSAGE_RETRY_INTERVAL_S, error.retry_after or 0.0))
            resend = pending._replace(resend_at=now + pause_s, refusal=error)
            has_time = resend.next_action_at < resend.deadline
            if has_time and self._lines.refused(pending.packet.payload["to"], id, error):
                self._requests.put(id, resend)
                return []
        is_uncertain = isinstance(error, Uncertain)
        followed = self._leave_line(id, pending, is_answered=True, may_have_arrived=is_uncertain)
        return [*pending.effects_of(id, error, now), *followed]

    def _granted(self, id: int, pending: PendingRequest, payload: Mapping[str, Any], now: float) -> Effects:
        if pending.packet.kind == Kind.MESSAGE:
            followed = self._follow(*self._lines.delivered(pending.packet.payload["to"], id, now))
            return [*pending.effects_of(id, payload, now), *followed]
        is_own = pending.on_answer is not None
        changes = self.persistent_state.request_granted(id, pending.packet, payload, is_own=is_own)
        if pending.packet.kind == Kind.UPDATE and "keepalive" in payload:
            self.keepalives.set_interval(payload["keepalive"], now)
        if (token := pending.packet.payload.get("token")) is not None:
            self.token_accepted(token, now)
        if pending.may_change_sight:
            self.sight_changed()
        return [*pending.effects_of(id, payload, now), *changes]


def _ends_connection(code: int, id: int | None, pending: PendingRequest | None) -> bool:
    """Whether the server closes after this error; not if a watch, query or update is too large.

    Without the request, which was abandoned, only these can be too large: the client sends no larger frame.
    """
    if code == Code.TOO_LARGE and id is not None:
        return pending is not None and pending.packet.kind not in (Kind.WATCH, Kind.QUERY, Kind.UPDATE)
    return code in _ENDS_CONNECTION
