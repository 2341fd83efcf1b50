"""The control channel: what others say about this node's sessions, and what they send them, at once.

News it only hastens: they stand in the node's inbox too, which the relay's probe reads every few seconds,
and what comes twice is passed over. Deliveries have no other way: what is sent while nobody listens is not
handed to anybody here, and its sender is told so. At rest a thread waits in one read, and nothing wakes up;
when much comes it is read in batches, for each turn of the thread costs as much as a dozen deliveries. What
operators ask comes this way, too; it is answered elsewhere.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import TrioThreadCaller
from presence.messaging.letters import Delivery
from presence.outbox.outage_log import Outage
from presence.outbox.replies import Erasure, NodeNotice, Question
from presence.server.node import Node

GATHER_S: Final = 0.004  # after deliveries, until the channel is read again
MAX_DELIVERIES_PER_TURN: Final = 256  # a few milliseconds
BACKOFF_FIRST_S: Final = 0.1
LOST_EVENT: Final = "control channel lost"
BACKOFF_LIMIT_S: Final = 1.0  # so long messages may still be refused once Redis is back

_log = structlog.get_logger(__name__)


class ControlSubscription(Protocol):
    """A subscription: plain calls that block, made from one thread at a time; see `ControlChannel`."""

    def subscribe(self, node: str) -> None:
        """Listen to the channel of `node` and to no other; raises `StoreUnavailable` or `StoreError`."""

    def next(self) -> list[NodeNotice | Delivery | Question | Erasure]:
        """Wait for something, however long, and return all that there is. Raises as `subscribe`."""

    def close(self) -> None:
        """Close the connection: a call that waits fails. Any thread may do so."""


@dataclass(eq=False, repr=False)
class ControlListener:
    """Listens to the channel of a node, whatever its id is by now."""

    node: Node  # is told the news
    channel: ControlSubscription  # nobody else uses it
    deliver: Callable[[Sequence[Delivery]], object]  # takes what others have sent to sessions of this node
    on_questions: Callable[[Sequence[Question]], object] = lambda _: None  # takes what operators ask

    def __post_init__(self) -> None:
        self._thread = TrioThreadCaller(self.channel.close)
        self._listening = trio.CancelScope()
        self._running = trio.CancelScope()
        self._outage = Outage(
            _log,
            away=LOST_EVENT,
            refused=LOST_EVENT,
            back="control channel restored",
            first_s=BACKOFF_FIRST_S,
            limit_s=BACKOFF_LIMIT_S,
        )

    async def run(self) -> None:
        """Listen until it is stopped or cancelled."""
        try:
            with self._running:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._follow_id)
                    while True:
                        with trio.CancelScope() as self._listening:
                            await self._listen()
        finally:  # while it passes messages on, no blocked call is there to interrupt
            self.channel.close()

    def stop(self) -> None:
        """Listen no more: nobody is here who could be handed anything, and senders had better know."""
        self._running.cancel()

    async def _follow_id(self) -> None:
        while True:
            await self.node.renamed.wait(math.inf)
            self._listening.cancel()

    async def _listen(self) -> None:
        """Subscribe and pass on what comes, until that fails; then wait."""
        try:
            node = self.node.relay.node
            await self._thread.call(lambda: self.channel.subscribe(node))
            self._outage.worked("listen")
            while True:
                await self._dispatch(await self._thread.call(self.channel.next))
        except Exception as error:
            if not isinstance(error, (StoreUnavailable, StoreError)):
                self.node.faults.note("control channel", error)
            await trio.sleep(self._outage.failed("listen", error))

    async def _dispatch(self, received: list[NodeNotice | Delivery | Question | Erasure]) -> None:
        """Do what news say; hand over deliveries in turns, and let more of them gather."""
        faults = self.node.faults
        self.node.apply_notices([each for each in received if isinstance(each, NodeNotice)])
        if erasures := [each for each in received if isinstance(each, Erasure)]:
            self.node.log_erasures(erasures)
        with faults.contained("explain request"):
            self.on_questions([each for each in received if isinstance(each, Question)])
        deliveries = [each for each in received if isinstance(each, Delivery)]
        for start in range(0, len(deliveries), MAX_DELIVERIES_PER_TURN):
            with faults.contained("delivery"):
                self.deliver(deliveries[start : start + MAX_DELIVERIES_PER_TURN])
            with trio.CancelScope(shield=True):  # another id of this node is no reason to lose any
                await trio.lowlevel.checkpoint()
        if deliveries:
            await trio.sleep(GATHER_S)
