"""The control channel of a node: notices about its sessions, messages to them, and questions.

Notices only arrive faster this way: they are also in the node's inbox, which the relay's probe reads every
few seconds, and duplicates are skipped. Messages have no other way: one that is sent while the channel is
lost is not delivered, and its sender gets an error. Changes of bans, rosters and rooms may be missed, too, so
the table of bans, and the rosters and rooms that sessions watch, are read again after each subscription.
It is subscribed once Redis has answered the node's first write: until then nobody can find the node. It is
subscribed anew when Redis has gone back or is another server: a former primary may keep the connection, and
nothing that the new one publishes arrives there.
Under load the channel is read in batches, because a turn costs as much as a dozen deliveries. Questions of
operators also arrive here; `presence.server.answer_queue` answers them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog
import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.outage import Outage
from presence.common.runtime import LoopCaller, WakeEvent
from presence.messaging.message_bus import ConfirmationReport, Delivery
from presence.outbox.replies import NodeNotice
from presence.server.answer_queue import QUESTION_WORK
from presence.server.node_assembly import Node
from presence.store.control_channel import ChangedRooms, ChangedRosters, ControlMessage
from presence.store.control_messages import BanNotice, Erasure, RebalanceOrder
from presence.store.questions import Question

GATHER_S: Final = 0.004  # after deliveries, before the next read
MAX_DELIVERIES_PER_TURN: Final = 256  # a few milliseconds
BACKOFF_FIRST_S: Final = 0.1
LOST_EVENT: Final = "control channel lost"
BACKOFF_LIMIT_S: Final = 1.0  # messages may be refused for this long after Redis has recovered

_log = structlog.get_logger(__name__)


class ControlSubscription(Protocol):
    """A subscription: blocking calls, one at a time."""

    def subscribe(self, node: str) -> None:
        """Subscribe to the channel of `node` only; raises `StoreUnavailable` or `StoreError`."""

    def next(self) -> list[ControlMessage]:
        """Wait without a time-out, and return everything that has arrived. Raises as `subscribe`."""

    def close(self) -> None:
        """Close the connection, if there is one."""


class ControlListener:
    """Listens to the channel of a node, and follows changes of its id and failovers of Redis.

    Args:
        node: gets notices, erasures and news of bans.
        channel: used by this listener only.
        deliver: takes messages for sessions of this node.
        on_questions: takes questions of operators.
        on_bans: called when the table of bans may have changed.
        on_confirmations: takes what other nodes report on messages of clients of this node.
        on_orders: takes orders to send clients away.
        on_rosters: takes users whose rosters have changed; None: those of any may have.
        on_rooms: takes rooms that have changed; None: any may have.
    """

    def __init__(
        self,
        node: Node,
        channel: ControlSubscription,
        deliver: Callable[[Sequence[Delivery]], object],
        on_questions: Callable[[Sequence[Question]], object] = lambda _: None,
        on_bans: Callable[[], object] = lambda: None,
        *,
        on_confirmations: Callable[[Sequence[ConfirmationReport]], object] = lambda _: None,
        on_orders: Callable[[Sequence[RebalanceOrder]], object] = lambda _: None,
        on_rosters: Callable[[Sequence[str] | None], object] = lambda _: None,
        on_rooms: Callable[[Sequence[str] | None], object] = lambda _: None,
    ) -> None:
        self._node = node
        self._channel = channel
        self._deliver = deliver
        self._on_questions = on_questions
        self._on_bans = on_bans
        self._on_confirmations = on_confirmations
        self._on_orders = on_orders
        self._on_rosters = on_rosters
        self._on_rooms = on_rooms
        self._redis = LoopCaller()
        self._listening = trio.CancelScope()  # under the node's present id
        self._running = trio.CancelScope()
        self._outage = Outage(
            _log,
            unreachable=LOST_EVENT,
            refused=LOST_EVENT,
            failed_otherwise=LOST_EVENT,
            recovered="control channel restored",
            first_s=BACKOFF_FIRST_S,
            limit_s=BACKOFF_LIMIT_S,
        )

    async def run(self) -> None:
        """Listen, from the node's first write on, until it is stopped or cancelled."""
        try:
            with self._running:
                await self._node.redis_changed.wait(math.inf)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen_anew, self._node.renamed)
                    nursery.start_soon(self._listen_anew, self._node.redis_changed)
                    while True:
                        with trio.CancelScope() as self._listening:
                            await self._listen()
        finally:
            self._channel.close()

    def stop(self) -> None:
        """Stop listening, so that senders of messages get an error: no session is left to deliver to."""
        self._running.cancel()

    async def _listen_anew(self, reason: WakeEvent) -> None:
        while True:
            await reason.wait(math.inf)
            self._listening.cancel()

    async def _listen(self) -> None:
        """Subscribe and dispatch what arrives until a call fails; then wait for the backoff."""
        try:
            node = self._node.relay.node
            await self._redis.call(lambda: self._channel.subscribe(node))
            self._outage.worked("listen")
            self._on_bans()
            self._on_rosters(None)
            self._on_rooms(None)
            while True:
                await self._dispatch(await self._redis.call(self._channel.next))
        except Exception as error:
            if not isinstance(error, (StoreUnavailable, StoreError)):
                self._node.faults.record("control channel", error)
            await trio.sleep(self._outage.failed("listen", error))

    async def _dispatch(self, received: list[ControlMessage]) -> None:
        """Apply notices, pass on questions, and deliver messages in slices; then let more messages gather."""
        faults = self._node.faults
        self._node.apply_notices([each for each in received if isinstance(each, NodeNotice)])
        if erasures := [each for each in received if isinstance(each, Erasure)]:
            self._node.log_erasures(erasures)
        if notices := [each for each in received if isinstance(each, BanNotice)]:
            self._node.log_bans(notices)
            self._on_bans()
        for changed in received:
            if isinstance(changed, ChangedRosters):
                self._on_rosters(changed.uids)
            elif isinstance(changed, ChangedRooms):
                self._on_rooms(changed.names)
        self._on_orders([each for each in received if isinstance(each, RebalanceOrder)])
        with faults.contained(QUESTION_WORK):
            self._on_questions([each for each in received if isinstance(each, Question)])
        if reports := [each for each in received if isinstance(each, ConfirmationReport)]:
            self._on_confirmations(reports)
        deliveries = [each for each in received if isinstance(each, Delivery)]
        for start in range(0, len(deliveries), MAX_DELIVERIES_PER_TURN):
            with faults.contained("delivery"):
                self._deliver(deliveries[start : start + MAX_DELIVERIES_PER_TURN])
            with trio.CancelScope(shield=True):  # a change of the node's id must lose none
                await trio.lowlevel.checkpoint()
        if deliveries:
            await trio.sleep(GATHER_S)
