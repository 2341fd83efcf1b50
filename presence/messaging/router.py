"""Carries messages: from a sender's connection to every session of the recipient, on this node or another.

A message is handed to each device at most once, and its sender is told of how many. Redis says where the
recipient is, and passes on what is for other nodes in the same step, which is never tried again: if the
connection breaks in it, the sender is told that nobody knows. What is for this node is handed over by the
courier itself, also to sessions whose login is still on its way to Redis.

What one connection sends comes over each connection of the recipient in its order: there is one way between
the two, through one call at a time and one control channel, or through neither. Between two connections of
the recipient there is no order, nor between two devices of the sender. And a call that broke off, whose
sender was told so, may be run by Redis after a later one.

One call is under way at a time, in a thread; messages gather meanwhile, and for a few milliseconds more.
"""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog
import trio

from presence import protocol
from presence.common.backoff import jittered
from presence.common.circuit_breaker import CircuitBreaker
from presence.common.clock import Clock
from presence.common.errors import StoreInterrupted
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.core.registry import Registry, Session
from presence.core.requests import Message
from presence.messaging.letters import Answer, Delivery, MessageBus, OutgoingMessage, RouteResult
from presence.messaging.queue import MessageQueue, PendingMessage, QueueBounds
from presence.protocol import Code, Packet

GATHER_S: Final = 0.005  # between two calls, at least: a call costs more than twenty messages in it
PATIENCE_S: Final = 2.0  # whoever waited longer is refused: by then a client had better know
RETRY_MIN_S, RETRY_MAX_S = 0.5, 2.0  # drawn from, so that whoever is refused does not come back at once
RETURN_MIN_S: Final = 0.1  # until a grace that is just over is seen to be
_DEFAULT_BOUNDS: Final = QueueBounds()

_log = structlog.get_logger(__name__)

_OFFLINE: Final = "no session of the recipient could be handed the message"
_LOST: Final = "the recipient has lost its connection and may return; the message was not delivered"
_UNHEARD: Final = "the server that has the recipient cannot be reached at present; nothing was delivered"
_FULL: Final = "too many messages wait here; this one was not delivered"
_AWAY: Final = "Redis cannot be reached at present; the message was not delivered"
_FAILED: Final = "the server failed; it is not known whether the message was delivered"
_UNKNOWN: Final = "the connection to Redis broke: it is not known whether the message was delivered"


@dataclass(slots=True)
class CourierStatistics:
    """Counters since the start, and what waits now; a message has exactly one outcome."""

    taken: int = 0  # messages that clients have sent
    handed: int = 0  # of these, handed to one session or more
    refused_offline: int = 0  # to none: the recipient is offline
    refused_disconnected: int = 0  # to none: the recipient has lost its connection, and may return
    refused_busy: int = 0  # to none: a bound was hit, or Redis or the recipient's node was away
    unknown: int = 0  # Redis broke off in the middle
    waiting: int = 0  # no outcome yet
    calls: int = 0  # of Redis
    delivered_here: int = 0  # packets for connections of this node
    gone_meanwhile: int = 0  # of what other nodes sent, for connections that are no longer here


class ConnectionWrites:
    """Packets of one batch for connections of this node, gathered so that each is written to once."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._packets: dict[Session, list[bytes]] = {}

    def add(self, session: Session, packet: bytes) -> bool:
        """Take a packet for a session's connection, after those before it; False: the connection is gone."""
        if session.link is None:
            return False
        self._packets.setdefault(session, []).append(packet)
        return True

    def send(self) -> None:
        """Write everything."""
        gathered, self._packets = self._packets, {}
        for session, packets in gathered.items():
            if session.link is not None:  # an earlier write may have ended it
                with self._faults.contained("message", partial(self._faults.disconnect, session)):
                    session.link.send(session.handle, b"".join(packets))


class FailingShards:
    """Shards whose last call has failed: whoever writes to a user there is refused at once."""

    def __init__(self, shard_of: Callable[[str], int]) -> None:
        self._shard_of = shard_of
        self._away: dict[int, CircuitBreaker] = {}

    def forbids(self, uid: str, now: float) -> bool:
        """Whether a user's shard has failed, and is not to be asked again yet."""
        if not self._away:
            return False
        reach = self._away.get(self._shard_of(uid))
        return reach is not None and now < reach.retry_at

    def note(self, answers: Iterable[tuple[str, Answer]], begun: float, now: float) -> None:
        """Learn from the answers of a call, by uid; each outage is told once, and its end."""
        asked, failed = set(), {}
        for uid, answer in answers:
            asked.add(shard := self._shard_of(uid))
            if not isinstance(answer, RouteResult):
                failed[shard] = answer
        were_away = bool(self._away)
        for shard in asked - failed.keys():
            self._away.pop(shard, None)
        for shard in failed:
            reach = self._away.setdefault(shard, CircuitBreaker())
            reach.failed(begun, now, jittered(1.0), held_up=len(failed) < len(asked))
        if failed and not were_away:
            error = next(iter(failed.values()))
            _log.warning("message delivery unavailable", error=str(error), shards=len(failed))
        elif were_away and not self._away:
            _log.info("message delivery restored")


class MessageRouter:
    """See the header. All but `run` is called from the event loop and waits for nothing.

    Args:
        shard_of: the shard of a uid: shards may be on several servers, of which one is away.
        post: the way through Redis; nobody else uses it.
        node: this node's id at present.
        ends_at: when a session that lost its connection ends, monotonic seconds.
        faults: contains mistakes: the message is answered with `server_error`.
    """

    def __init__(
        self,
        sessions: Registry,
        shard_of: Callable[[str], int],
        post: MessageBus,
        clock: Clock,
        runtime: Runtime,
        *,
        node: Callable[[], str],
        ends_at: Callable[[Session], float],
        bounds: QueueBounds = _DEFAULT_BOUNDS,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._sessions = sessions
        self._post = post
        self._clock = clock
        self._runtime = runtime
        self._node = node
        self._ends_at = ends_at
        self._waiting = MessageQueue(bounds)
        self._bell = runtime.bell()
        self._refusals, self._refusal_bell = ConnectionWrites(self._faults), runtime.bell()
        self._thread = runtime.caller(post.close)
        self._outages = FailingShards(shard_of)
        self._counted = CourierStatistics()

    def take(self, sender: Session, message: Message) -> None:
        """Take a message of a client; its answer follows, soon if there is no room or Redis is away."""
        now = self._clock.now()
        self._counted.taken += 1
        if self._outages.forbids(message.to, now):
            self._refuse_now(sender, message, _AWAY)
        elif not self._waiting.has_room(sender):
            self._refuse_now(sender, message, _FULL)
        else:
            packet = protocol.deliver(sender.uid, message.body, self._clock.seen_ms(now))
            letter = OutgoingMessage(message.to, protocol.encode(packet))
            self._waiting.add(PendingMessage(sender, message.id, letter, now))
            self._bell.ring()

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Hand what other nodes have sent to the sessions here; whose connection is gone gets nothing."""
        handing = ConnectionWrites(self._faults)
        for uid, devices, frame in deliveries:
            with self._faults.contained("delivery"):
                for device in devices:
                    session = self._sessions.get((uid, device) if device else uid)
                    if session is not None and handing.add(session, frame):
                        self._counted.delivered_here += 1
                    else:
                        self._counted.gone_meanwhile += 1
        handing.send()

    def statistics(self) -> CourierStatistics:
        """Return the counters."""
        return replace(self._counted, waiting=self._waiting.items)

    async def run(self) -> None:
        """Carry messages for ever; cancel it to stop. What waits then gets no answer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._refuse)
            await self._carry()

    async def _refuse(self) -> None:
        while True:
            await self._refusal_bell.wait(math.inf)
            with self._faults.contained("message"):
                self._refusals.send()

    async def _carry(self) -> None:
        while True:
            begun = self._clock.now()
            if (wait_s := self._waiting.next_at() - begun) > 0:
                await self._bell.wait(wait_s)
                continue
            taken = self._waiting.take(begun)
            try:
                called = await self._call(taken, begun)
            except Exception as error:  # at most once: none of them may be tried again
                self._faults.note("message", error)
                with self._faults.contained("message"):
                    self._break_off(taken)
                called = True
            # Without a call the next ones follow without a pause; others have a turn between.
            await self._runtime.sleep(begun + GATHER_S - self._clock.now() if called else 0)

    async def _call(self, taken: list[PendingMessage], begun: float) -> bool:
        """Hand on what was taken, in one call; False: there was nothing to call for."""
        if not (batch := self._still_wanted(taken, begun)):
            return False
        letters = [pending.letter for pending in batch]
        deliver = partial(self._post.deliver, self._node(), letters, self._here(batch, begun))
        answers = await self._thread.call(deliver)
        self._settle(batch, answers, begun)
        return True

    def _here(self, batch: list[PendingMessage], now: float) -> dict[str, dict[str, int]]:
        """Return which devices of the recipients have a connection here, and for how many ms."""
        here: dict[str, dict[str, int]] = {}
        for to in {pending.letter.to for pending in batch}:
            ages_ms = {
                session.device: round((now - session.login_at) * 1000)
                for session in self._sessions.of(to)
                if session.link is not None
            }
            if ages_ms:
                here[to] = ages_ms
        return here

    def _still_wanted(self, batch: list[PendingMessage], now: float) -> list[PendingMessage]:
        """Refuse what has waited for too long, or cannot go out at present; return the others."""
        wanted, handing = [], ConnectionWrites(self._faults)
        for pending in batch:
            if now - pending.taken_at > PATIENCE_S:
                self._refuse_busy(pending, _FULL, handing)
            elif self._outages.forbids(pending.letter.to, now):
                self._refuse_busy(pending, _AWAY, handing)
            else:
                wanted.append(pending)
        handing.send()
        return wanted

    # Answers

    def _settle(self, batch: list[PendingMessage], answers: list[Answer], begun: float) -> None:
        """Do what is left to do after a call: sessions here get theirs, and every sender an answer."""
        self._counted.calls += 1
        to = [pending.letter.to for pending in batch]
        self._outages.note(zip(to, answers, strict=True), begun, self._clock.now())
        handing, put_off = ConnectionWrites(self._faults), []
        for pending, answer in zip(batch, answers, strict=True):
            with self._faults.contained("message", partial(self._break_off, [pending])):
                if self._settle_one(pending, answer, handing):
                    put_off.append(pending)
        self._waiting.put_off(put_off, self._clock.now())
        handing.send()

    def _settle_one(self, pending: PendingMessage, answer: Answer, handing: ConnectionWrites) -> bool:
        """Answer a message, or return True: its recipient is to be looked for once more."""
        if isinstance(answer, StoreInterrupted):
            self._counted.unknown += 1
            self._answer(pending, protocol.error(pending.id, Code.SERVER_ERROR, _UNKNOWN), handing)
        elif not isinstance(answer, RouteResult):
            self._refuse_busy(pending, _AWAY, handing)
        elif delivered := answer.handed + self._hand_here(pending.letter, answer.elsewhere, handing):
            self._counted.handed += 1
            self._answer(pending, protocol.ok(pending.id, delivered=delivered), handing)
        elif not pending.is_second_look:
            return True
        elif answer.elsewhere:
            self._refuse_busy(pending, _UNHEARD, handing)
        elif (ends_at := self._grace_ends_at(pending.letter.to)) is not None:
            self._counted.refused_disconnected += 1
            retry_after = round(max(RETURN_MIN_S, ends_at - self._clock.now()), 2)
            refusal = protocol.error(pending.id, Code.RECIPIENT_DISCONNECTED, _LOST, retry_after)
            self._answer(pending, refusal, handing)
        else:
            self._counted.refused_offline += 1
            self._answer(pending, protocol.error(pending.id, Code.RECIPIENT_OFFLINE, _OFFLINE), handing)
        return False

    def _grace_ends_at(self, uid: str) -> float | None:
        """Return when the last session of a user here that lost its connection ends; None: there is none."""
        lost = [session for session in self._sessions.of(uid) if session.link is None]
        return max((self._ends_at(session) for session in lost), default=None)

    def _break_off(self, batch: Iterable[PendingMessage]) -> None:
        """Answer what has no answer yet after a mistake of ours."""
        handing = ConnectionWrites(self._faults)
        for pending in batch:
            if not pending.is_answered:
                self._counted.unknown += 1
                self._answer(pending, protocol.error(pending.id, Code.SERVER_ERROR, _FAILED), handing)
        handing.send()

    def _hand_here(
        self, letter: OutgoingMessage, elsewhere: tuple[str, ...], handing: ConnectionWrites
    ) -> int:
        """Hand a letter to all sessions here whose device has not gone elsewhere; return to how many.

        Those of other nodes are elsewhere as the script says. All others are ours, on record or about to be.
        """
        count = 0
        for session in self._sessions.of(letter.to):
            if session.device not in elsewhere:
                count += handing.add(session, letter.frame)
        self._counted.delivered_here += count
        return count

    def _refuse_busy(self, pending: PendingMessage, message: str, handing: ConnectionWrites) -> None:
        self._counted.refused_busy += 1
        self._answer(pending, _busy(pending.id, message), handing)

    def _answer(self, pending: PendingMessage, packet: Packet, handing: ConnectionWrites) -> None:
        encoded = protocol.encode(packet)
        self._waiting.answered(pending)
        handing.add(pending.sender, encoded)

    def _refuse_now(self, sender: Session, refused: Message, message: str) -> None:
        """Refuse a message that was never put among those who wait, in the next turn.

        Of a client that floods thousands are refused in one turn, and each by itself would cost a write.
        """
        self._counted.refused_busy += 1
        self._refusals.add(sender, protocol.encode(_busy(refused.id, message)))
        self._refusal_bell.ring()


def _busy(id: int | None, message: str) -> Packet:
    retry_after = round(random.uniform(RETRY_MIN_S, RETRY_MAX_S), 2)  # noqa: S311 - jitter protects nothing
    return protocol.error(id, Code.BUSY, message, retry_after)
