"""The message router: from a sender's connection to every session of the recipient, on this node or another.

A message is sent to each device at most once, and its sender learns to how many. Redis knows where the
recipient is, and forwards messages for other nodes in the same step, which is never repeated: if the
connection breaks in it, the sender's error says that the outcome is unknown. The router itself delivers to
sessions of this node, also to those whose login is still on its way to Redis.

Messages of one connection reach each connection of the recipient in order: there is one path between the two,
through one call at a time and one control channel, or through neither. There is no order between two
connections of the recipient, nor between two devices of the sender. A call that broke off, as its sender was
told, may be run by Redis after a later one.

One call is under way at a time; messages gather meanwhile, and for a few milliseconds more.

A message whose sender wants confirmations (`confirmations.py`) takes the same way, and only its answer waits.
The nodes that it was sent to report to this one over its control channel.
"""

import math
import random
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from presence import protocol
from presence.common.backoff import jittered
from presence.common.circuit_breaker import CircuitBreaker
from presence.common.clock import Clock
from presence.common.errors import StoreInterrupted, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.core.registry import Registry, Session
from presence.core.service_requests import MessageRequest
from presence.messaging.confirmations import ConfirmationCounters, Confirmations, Done
from presence.messaging.message_bus import (
    NUMBER_BITS,
    Confirm,
    ConfirmationReport,
    Confirmed,
    Delivery,
    DeliveryReport,
    MessageBus,
    OutgoingMessage,
    ReplyAddress,
    RouteAnswer,
    RouteResult,
)
from presence.messaging.message_queue import MessageQueue, PendingMessage, QueueBounds
from presence.protocol import Code, Packet

GATHER_S: Final = 0.005  # least time between two calls: a call costs more than twenty messages in it
MESSAGE_TIMEOUT_S: Final = 2.0  # messages that waited longer are refused, so that the client knows
RETRY_MIN_S, RETRY_MAX_S = 0.5, 2.0  # random in between, so that refused clients do not retry together
MIN_RETURN_S: Final = 0.1  # until the end of a grace is noticed
_DEFAULT_BOUNDS: Final = QueueBounds()

_log = structlog.get_logger(__name__)

_OFFLINE: Final = "no session of the recipient could be handed the message"
_LOST: Final = "the recipient has lost its connection and may return; the message was not delivered"
_UNREACHABLE: Final = "the server that has the recipient cannot be reached at present; nothing was delivered"
_FULL: Final = "too many messages wait here; this one was not delivered"
_UNAVAILABLE: Final = "Redis cannot be reached at present; the message was not delivered"
_FAILED: Final = "the server failed; it is not known whether the message was delivered"
_UNKNOWN: Final = "the connection to Redis broke: it is not known whether the message was delivered"


@dataclass(slots=True)
class RouterStatistics:
    """Counters since the start, and waiting messages; a message has exactly one outcome."""

    taken: int = 0  # messages that clients have sent
    handed: int = 0  # of these, delivered to one session or more
    refused_offline: int = 0  # to none: the recipient is offline
    refused_disconnected: int = 0  # to none: the recipient has lost its connection, and may return
    refused_busy: int = 0  # to none: a limit was hit, or Redis or the recipient's node was unreachable
    unknown: int = 0  # the connection to Redis broke in the call
    waiting: int = 0  # no outcome yet
    calls: int = 0  # of Redis
    delivered_here: int = 0  # packets to connections of this node
    gone_meanwhile: int = 0  # packets from other nodes whose connection was gone
    awaited: int = 0  # delivered messages whose senders wait for confirmations


class _Awaited(NamedTuple):
    """A delivered message whose sender wants confirmations."""

    pending: PendingMessage
    confirm: Confirm
    reply_to: ReplyAddress
    here: list[Session]
    elsewhere: int  # sessions of other nodes


class ConnectionWrites:
    """Packets of one batch for connections of this node, gathered for one write to each."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._packets: dict[Session, list[bytes]] = {}

    def add(self, session: Session, packet: bytes) -> bool:
        """Add a packet for a session's connection; return False if the connection is gone."""
        if session.transport is None:
            return False
        self._packets.setdefault(session, []).append(packet)
        return True

    def send(self) -> None:
        gathered, self._packets = self._packets, {}
        for session, packets in gathered.items():
            if session.transport is not None:  # an earlier write may have ended it
                with self._faults.contained("message", partial(self._faults.disconnect, session)):
                    session.transport.send(session.handle, b"".join(packets))


class FailingShards:
    """Shards whose last call has failed: messages to their users are refused immediately."""

    def __init__(self, shard_of: Callable[[str], int]) -> None:
        self._shard_of = shard_of
        self._breakers: dict[int, CircuitBreaker] = {}

    def is_failing(self, uid: str, now: float) -> bool:
        """Whether a user's shard has failed, and must not be tried again yet."""
        if not self._breakers:
            return False
        breaker = self._breakers.get(self._shard_of(uid))
        return breaker is not None and now < breaker.retry_at

    def record(self, answers: Iterable[tuple[str, RouteAnswer]], begun: float, now: float) -> None:
        """Record the answers of a call, by uid; log the start and the end of an outage once."""
        asked, failed = set(), {}
        for uid, answer in answers:
            asked.add(shard := self._shard_of(uid))
            if not isinstance(answer, RouteResult):
                failed[shard] = answer
        were_away = bool(self._breakers)
        for shard in asked - failed.keys():
            self._breakers.pop(shard, None)
        for shard in failed:
            breaker = self._breakers.setdefault(shard, CircuitBreaker())
            breaker.record_failure(begun, now, jittered(1.0), held_up=len(failed) < len(asked))
        if failed and not were_away:
            error = next(iter(failed.values()))
            _log.warning("message delivery unavailable", error=str(error), shards=len(failed))
        elif were_away and not self._breakers:
            _log.info("message delivery restored")


class MessageRouter:
    """Routes messages; all calls except `run` come from the event loop and never wait.

    `shard_of` gives the shard of a uid: shards may be on several servers, of which one may be unreachable.
    `bus` is used by this router only. `node` gives this node's id at present, `ends_at` when a session that
    lost its connection ends, monotonic seconds. `report` takes what became of messages from senders that are
    no nodes. If a message causes an error, `faults` contains it, and the answer is `server_error`.
    """

    def __init__(
        self,
        sessions: Registry,
        shard_of: Callable[[str], int],
        bus: MessageBus,
        clock: Clock,
        runtime: Runtime,
        *,
        node: Callable[[], str],
        ends_at: Callable[[Session], float],
        report: Callable[[DeliveryReport], object] = lambda _: None,
        bounds: QueueBounds = _DEFAULT_BOUNDS,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._sessions = sessions
        self._bus = bus
        self._clock = clock
        self._runtime = runtime
        self._node = node
        self._ends_at = ends_at
        self._report = report
        self._queue = MessageQueue(bounds)
        self._bell = runtime.wake_event()
        self._confirmations, self._confirmation_bell = Confirmations(self._faults), runtime.wake_event()
        # By token: reports on the messages of the call that is under way, which may come before its answer.
        self._early_reports: dict[str, list[ConfirmationReport]] = {}
        # For senders, in the next turn: those that were refused, and those that waited for confirmations.
        self._answers, self._answer_bell = ConnectionWrites(self._faults), runtime.wake_event()
        self._redis = runtime.loop_caller()
        self._failing_shards = FailingShards(shard_of)
        self._counters = RouterStatistics()

    def submit(self, sender: Session, message: MessageRequest) -> None:
        """Accept a message of a client; its answer follows, quickly if the queue is full or Redis
        unreachable."""
        now = self._clock.now()
        self._counters.taken += 1
        if self._failing_shards.is_failing(message.to, now):
            self._refuse_now(sender, message, _UNAVAILABLE)
        elif not self._queue.has_room(sender):
            self._refuse_now(sender, message, _FULL)
        else:
            confirm, reply_to = None, None
            if message.confirm_s is not None:
                confirm = Confirm(message.confirm_s, secrets.randbits(NUMBER_BITS), self._node())
                reply_to = ReplyAddress(secrets.token_hex(16), 0)
            number = None if confirm is None else confirm.number
            packet = protocol.deliver(sender.uid, message.body, self._clock.seen_ms(now), number)
            outgoing = OutgoingMessage(
                message.to, protocol.encode(packet), reply_to=reply_to, confirm=confirm
            )
            self._queue.add(PendingMessage(sender, message.id, outgoing, now))
            self._bell.set()

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Deliver messages of other nodes to sessions here, except to those without a connection."""
        writes, confirming = (
            ConnectionWrites(self._faults),
            list[tuple[Confirm, DeliveryReport, list[Session]]](),
        )
        for delivery in deliveries:
            uid, devices, frame, reply_to, confirm = delivery
            with self._faults.contained("delivery"):
                found = []
                for device in devices:
                    session = self._sessions.get((uid, device) if device else uid)
                    if session is not None and writes.add(session, frame):
                        found.append(session)
                delivered = len(found)
                self._counters.delivered_here += delivered
                self._counters.gone_meanwhile += len(devices) - delivered
                if reply_to is not None:
                    grace_s = 0.0 if delivered else self._grace_s(delivery)
                    report = DeliveryReport(uid, reply_to, len(devices), delivered, grace_s)
                    if confirm is not None:
                        confirming.append((confirm, report, found))
                    if confirm is None or not confirm.node:  # a backend learns at once that it was delivered
                        self._report(report)
        writes.send()
        for confirm, report, found in confirming:
            with self._faults.contained("delivery"):
                self._expect(confirm, found, partial(self._report_confirmed, confirm, report))

    def confirmed_by_client(self, session: Session, numbers: Iterable[int]) -> None:
        """A client has confirmed messages."""
        self._confirmations.confirmed_by_client(session, numbers)

    def confirmed_by_nodes(self, reports: Iterable[ConfirmationReport]) -> None:
        """Other nodes have reported which sessions have confirmed messages of clients of this node."""
        for report in reports:
            with self._faults.contained("confirmation"):
                if (early := self._early_reports.get(report.token)) is not None:
                    early.append(report)
                else:
                    self._confirmations.reported(*report)

    def confirmation_counters(self) -> ConfirmationCounters:
        return self._confirmations.statistics()

    def statistics(self) -> RouterStatistics:
        return replace(self._counters, waiting=self._queue.items)

    async def run(self) -> None:
        """Route messages until cancelled; messages waiting then get no answer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_answers)
            nursery.start_soon(self._look_after_confirmations)
            await self._send_batches()

    async def _send_answers(self) -> None:
        while True:
            await self._answer_bell.wait(math.inf)
            with self._faults.contained("message"):
                self._answers.send()

    async def _look_after_confirmations(self) -> None:
        while True:
            if (wait_s := self._confirmations.next_at() - self._clock.now()) > 0:
                await self._confirmation_bell.wait(wait_s)
                continue
            with self._faults.contained("confirmation"):
                self._confirmations.look(self._clock.now())
            await self._runtime.sleep(0)

    async def _send_batches(self) -> None:
        while True:
            begun = self._clock.now()
            if (wait_s := self._queue.next_at() - begun) > 0:
                await self._bell.wait(wait_s)
                continue
            taken = self._queue.next_batch(begun)
            try:
                called = await self._send_batch(taken, begun)
            except Exception as error:  # at most once: none of them may be tried again
                self._faults.record("message", error)
                with self._faults.contained("message"):
                    self._fail(taken)
                called = True
            # Without a call the next batch follows without a pause, after a turn for other tasks.
            await self._runtime.sleep(begun + GATHER_S - self._clock.now() if called else 0)

    async def _send_batch(self, taken: list[PendingMessage], begun: float) -> bool:
        """Send a batch in one call; return False if nothing was left to send."""
        if not (batch := self._refuse_expired(taken, begun)):
            return False
        messages = [pending.message for pending in batch]
        wanting = [each.reply_to for each in messages if each.reply_to is not None]
        self._early_reports = {address.token: [] for address in wanting}
        deliver = partial(self._bus.deliver, self._node(), messages, self._here(batch, begun))
        try:
            answers = await self._redis.call(deliver)
        except StoreUnavailable as error:  # no memory for the call, which was not made
            answers = [error] * len(batch)
        self._handle_answers(batch, answers, begun)
        early, self._early_reports = self._early_reports, {}
        for reports in early.values():
            self.confirmed_by_nodes(reports)
        return True

    def _here(self, batch: list[PendingMessage], now: float) -> dict[str, dict[str, int]]:
        """Return the devices of the recipients with a connection here, and the ms since their login."""
        here: dict[str, dict[str, int]] = {}
        for to in {pending.message.to for pending in batch}:
            ages_ms = {
                session.device: round((now - session.login_at) * 1000)
                for session in self._sessions.sessions_of(to)
                if session.transport is not None
            }
            if ages_ms:
                here[to] = ages_ms
        return here

    def _refuse_expired(self, batch: list[PendingMessage], now: float) -> list[PendingMessage]:
        """Refuse messages that waited too long, or whose shard is failing; return the others."""
        wanted, writes = [], ConnectionWrites(self._faults)
        for pending in batch:
            if now - pending.taken_at > MESSAGE_TIMEOUT_S:
                self._refuse_busy(pending, _FULL, writes)
            elif self._failing_shards.is_failing(pending.message.to, now):
                self._refuse_busy(pending, _UNAVAILABLE, writes)
            else:
                wanted.append(pending)
        writes.send()
        return wanted

    # Answers

    def _handle_answers(self, batch: list[PendingMessage], answers: list[RouteAnswer], begun: float) -> None:
        """Finish a call: deliver to sessions here, and answer every sender."""
        self._counters.calls += 1
        to = [pending.message.to for pending in batch]
        self._failing_shards.record(zip(to, answers, strict=True), begun, self._clock.now())
        writes, retries = ConnectionWrites(self._faults), []
        awaited: list[_Awaited] = []
        for pending, answer in zip(batch, answers, strict=True):
            with self._faults.contained("message", partial(self._fail, [pending])):
                if self._handle_answer(pending, answer, writes, awaited):
                    retries.append(pending)
        self._queue.retry_later(retries, self._clock.now())
        writes.send()
        for each in awaited:
            with self._faults.contained("message", partial(self._fail, [each.pending])):
                done = partial(self._answer_confirmed, each.pending, each.elsewhere + len(each.here))
                self._expect(each.confirm, each.here, done, each.elsewhere, each.reply_to.token)

    def _handle_answer(
        self,
        pending: PendingMessage,
        answer: RouteAnswer,
        writes: ConnectionWrites,
        awaited: "list[_Awaited]",
    ) -> bool:
        """Answer a message, or return True if it needs a second try.

        One that was delivered, and whose sender wants confirmations, is added to `awaited`.
        """
        message = pending.message
        if isinstance(answer, StoreInterrupted):
            self._counters.unknown += 1
            self._answer(pending, protocol.error(pending.id, Code.SERVER_ERROR, _UNKNOWN), writes)
        elif not isinstance(answer, RouteResult):
            self._refuse_busy(pending, _UNAVAILABLE, writes)
        elif delivered := answer.handed + len(here := self._deliver_here(message, answer, writes)):
            self._counters.handed += 1
            if message.confirm is None or message.reply_to is None:
                self._answer(pending, protocol.ok(pending.id, delivered=delivered), writes)
            else:
                self._queue.sent(pending)
                self._counters.awaited += 1
                awaited.append(_Awaited(pending, message.confirm, message.reply_to, here, answer.handed))
        elif not pending.is_retry:
            return True
        elif answer.elsewhere:
            self._refuse_busy(pending, _UNREACHABLE, writes)
        elif not answer.is_hidden and (ends_at := self._grace_ends_at(pending.message.to)) is not None:
            self._counters.refused_disconnected += 1
            retry_after = round(max(MIN_RETURN_S, ends_at - self._clock.now()), 2)
            refusal = protocol.error(pending.id, Code.RECIPIENT_DISCONNECTED, _LOST, retry_after)
            self._answer(pending, refusal, writes)
        else:
            self._counters.refused_offline += 1
            self._answer(pending, protocol.error(pending.id, Code.RECIPIENT_OFFLINE, _OFFLINE), writes)
        return False

    def _grace_s(self, delivery: Delivery) -> float:
        """Return how long a session of the delivery that lost its connection may return; 0 if none may."""
        lost = [
            self._ends_at(session)
            for session in self._sessions.sessions_of(delivery.uid)
            if session.transport is None and session.device in delivery.devices
        ]
        return round(max(MIN_RETURN_S, max(lost) - self._clock.now()), 2) if lost else 0.0

    def _grace_ends_at(self, uid: str) -> float | None:
        """Return when the last disconnected session here of a user ends; None if there is none to tell of."""
        if self._is_invisible_here(uid):
            return None
        lost = [session for session in self._sessions.sessions_of(uid) if session.transport is None]
        return max((self._ends_at(session) for session in lost), default=None)

    def _fail(self, batch: Iterable[PendingMessage]) -> None:
        """Answer the messages without an answer after an error in this server."""
        writes = ConnectionWrites(self._faults)
        for pending in batch:
            if not pending.is_answered:
                self._counters.unknown += 1
                self._answer(pending, protocol.error(pending.id, Code.SERVER_ERROR, _FAILED), writes)
        writes.send()

    def _is_invisible_here(self, uid: str) -> bool:
        """Whether a user is invisible, as known here; Redis may not know yet."""
        profiles = self._sessions.profiles
        return any(profiles.get(session.number).is_invisible for session in self._sessions.sessions_of(uid))

    def _deliver_here(
        self, message: OutgoingMessage, answer: RouteResult, writes: ConnectionWrites
    ) -> list[Session]:
        """Deliver a message to all sessions here whose device is not on another node; return these.

        The script says which devices are elsewhere. All others are ours, on record or about to be. Nothing is
        delivered to an invisible user.
        """
        if answer.is_hidden or self._is_invisible_here(message.to):
            return []
        found = [
            session
            for session in self._sessions.sessions_of(message.to)
            if session.device not in answer.elsewhere and writes.add(session, message.frame)
        ]
        self._counters.delivered_here += len(found)
        return found

    # Confirmations

    def _expect(
        self, confirm: Confirm, here: list[Session], done: Done, elsewhere: int = 0, token: str = ""
    ) -> None:
        """Wait for the confirmations of a message that was just sent."""
        now = self._clock.now()
        self._confirmations.expect(
            here, confirm.number, now, confirm.within_s, done, elsewhere=elsewhere, token=token
        )
        self._confirmation_bell.set()

    def _answer_confirmed(self, pending: PendingMessage, delivered: int, confirmed: Confirmed) -> None:
        """Answer a message whose confirmations were awaited."""
        if pending.is_answered:
            return
        counts = {"confirmed": confirmed.sessions, "by_app": confirmed.by_app}
        counts["unconfirmed"] = max(0, delivered - confirmed.sessions)
        self._answer(pending, protocol.ok(pending.id, delivered=delivered, **counts), self._answers)
        self._answer_bell.set()

    def _report_confirmed(self, confirm: Confirm, report: DeliveryReport, confirmed: Confirmed) -> None:
        """Report to another node, or to a backend, which sessions here have confirmed its message."""
        self._report(report._replace(confirmed=confirmed, to_node=confirm.node))

    def _refuse_busy(self, pending: PendingMessage, message: str, writes: ConnectionWrites) -> None:
        self._counters.refused_busy += 1
        self._answer(pending, _busy(pending.id, message), writes)

    def _answer(self, pending: PendingMessage, packet: Packet, writes: ConnectionWrites) -> None:
        encoded = protocol.encode(packet)
        self._counters.awaited -= pending.is_sent
        self._queue.remove(pending)
        writes.add(pending.sender, encoded)

    def _refuse_now(self, sender: Session, refused: MessageRequest, message: str) -> None:
        """Refuse a message that was not queued, in the next turn.

        A flooding client gets thousands of refusals in one turn, and each by itself would cost a write.
        """
        self._counters.refused_busy += 1
        self._answers.add(sender, protocol.encode(_busy(refused.id, message)))
        self._answer_bell.set()


def _busy(id: int | None, message: str) -> Packet:
    retry_after = round(random.uniform(RETRY_MIN_S, RETRY_MAX_S), 2)  # noqa: S311 - jitter protects nothing
    return protocol.error(id, Code.BUSY, message, retry_after)
