"""The control channel: what others say about this node's sessions, at once.

It only hastens. The same news stands in the node's inbox, which the relay's probe reads every few seconds,
and what comes twice is passed over; so whatever fails here is tried again without haste. At rest a thread
waits in one read, and nothing wakes up.
"""

import math
import random
from typing import Final, Protocol

import structlog
import trio

from presence.node import Node
from presence.runtime import TrioCaller
from presence.store.batches import News, StoreError, StoreUnavailable

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LIMIT_S: Final = 5.0  # the inbox is read more often

_log = structlog.get_logger(__name__)


class Channel(Protocol):
    """A subscription: plain calls that block, made from one thread at a time; see `ControlChannel`."""

    def subscribe(self, node: str) -> None:
        """Listen to the channel of `node` and to no other; raises `StoreUnavailable` or `StoreError`."""

    def next(self) -> News | None:
        """Wait for news, however long; None: of no kind known here. Raises as `subscribe`."""

    def close(self) -> None:
        """Close the connection: a call that waits fails. Any thread may do so."""


class Control:
    """Listens to the channel of a node, whatever its id is by now.

    Args:
        node: is told.
        channel: nobody else uses it.
    """

    def __init__(self, node: Node, channel: Channel) -> None:
        self._node = node
        self._channel = channel
        self._thread = TrioCaller(channel.close)
        self._listening = trio.CancelScope()
        self._failures = 0  # in a row

    async def run(self) -> None:
        """Listen for ever; cancel it to stop."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_id)
            while True:
                with trio.CancelScope() as self._listening:
                    await self._listen()

    async def _follow_id(self) -> None:
        while True:
            await self._node.renamed.wait(math.inf)
            self._listening.cancel()

    async def _listen(self) -> None:
        """Subscribe and pass on what comes, until that fails; then wait."""
        try:
            node = self._node.relay.node
            await self._thread.call(lambda: self._channel.subscribe(node))
            if self._failures:
                _log.info("control channel is back")
            self._failures = 0
            while True:
                if (news := await self._thread.call(self._channel.next)) is not None:
                    self._node.news([news])
        except (StoreUnavailable, StoreError) as error:
            if not self._failures:
                _log.warning(
                    "control channel is lost: what others say comes a little later", error=str(error)
                )
            limit = min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2 ** min(self._failures, 16))
            self._failures += 1
            await trio.sleep(limit * random.uniform(0.5, 1.0))  # noqa: S311 - jitter protects nothing
