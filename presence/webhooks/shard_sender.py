"""Sends the events of one shard, one request at a time: the next one waits until this one is accepted.

A receiver that cannot be reached, asks for a later retry, or is away by the word of a proxy, is tried again
for as long as it takes. If it answers with an error, or not in time, the events are sent one by one, and each
is retried after a growing pause; after some attempts an event becomes a dead letter, and the next is sent.

Tests: `tests/webhooks/test_runner.py`.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio

from presence.common.backoff import backoff_s, jittered
from presence.common.scarcity import scarcity
from presence.store.keys import Keys
from presence.subscriber.async_subscription import Subscription
from presence.subscriber.events import Entry, Item
from presence.subscriber.group import ConsumerOptions, GroupConsumer
from presence.subscriber.redis_connections import RedisConnections
from presence.webhooks.http_client import Failure, WebhookClient
from presence.webhooks.metrics import RunnerMetrics
from presence.webhooks.shard_locks import RETRIED, ShardLock

# The same for every runner: the next holder of a lock continues with what the last one left unacknowledged.
CONSUMER: Final = "webhooks"
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
LOCK_POLL_S: Final = 0.1
REDIS_RETRY_S: Final = 1.0
ACKNOWLEDGE_S: Final = 5.0  # Redis answers in milliseconds; later, the events are sent again
# Never reached: no other consumer reads the shard, and attempts are counted here.
_CLAIM_IDLE_S: Final = 86400.0
_MAX_DELIVERIES: Final = 10**9

log = logging.getLogger("presence.webhooks")


@dataclass(frozen=True, slots=True)
class SendOptions:
    """What is sent, and how.

    Attributes:
        group: the consumer group.
        types: of the entries to send; gaps are always sent.
        batch: most events of one request.
        attempts: an event becomes a dead letter after so many requests that were answered with an error.
        after: where a new group begins: an entry id, ``0`` for all that is kept, None for new events only.
        kind: class of key names, if the streams are not those of users.
    """

    group: str
    types: frozenset[str]
    batch: int
    attempts: int
    after: str | None = None
    kind: type[Keys] = Keys


class ShardSender:
    """Sends the events of the shard of `lock`, while it is held; at least once, and in order.

    `clock`: that of the lock. `wall`: Unix seconds.
    """

    def __init__(
        self,
        redis_url: str,
        prefix: str,
        options: SendOptions,
        client: WebhookClient,
        *,
        metrics: RunnerMetrics,
        lock: ShardLock,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._redis_url = redis_url
        self._prefix = prefix
        self._lock = lock
        self._client = client
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._failures = 0  # since the last request that was accepted
        self._logged = ""  # the last error, until a request is accepted

    async def run(self) -> None:
        """Send until cancelled; a request under way is completed and acknowledged."""
        while True:
            try:
                async with self._subscription() as events:
                    while True:
                        await self._send(events, await events.batch(self._options.batch))
            except RETRIED as error:
                log.warning("shard %d: Redis: %s", self._lock.shard, scarcity(error) or error)
                await anyio.sleep(REDIS_RETRY_S)

    def _subscription(self) -> Subscription[Item]:
        options = ConsumerOptions(
            self._options.group, CONSUMER, _MAX_DELIVERIES, _CLAIM_IDLE_S, prefetch=self._options.batch
        )
        source = GroupConsumer(
            RedisConnections(self._redis_url),
            self._prefix,
            options,
            self._options.after,
            kind=self._options.kind,
            shard=self._lock.shard,
            owns_name=lambda: self._lock.until > self._clock(),
        )
        return Subscription(source, lambda item: item)

    async def _send(self, events: Subscription[Item], items: list[Item]) -> None:
        wanted = [item for item in items if self._is_wanted(item)]
        self._metrics.events.labels("skipped").inc(len(items) - len(wanted))
        if len(wanted) > 1 and await self._attempt(events, wanted) is None:
            return
        for item in wanted:
            await self._send_one(events, item)

    def _is_wanted(self, item: Item) -> bool:
        return not isinstance(item, Entry) or item.fields.get("type") in {"gap", *self._options.types}

    async def _send_one(self, events: Subscription[Item], item: Item) -> None:
        attempts = 0
        while failure := await self._attempt(events, [item]):
            attempts += not failure.is_away
            if attempts >= self._options.attempts:
                await self._give_up(events, item, failure)
                return
            pause_s = backoff_s(self._failures - 1, RETRY_FIRST_S, RETRY_MAX_S)
            await anyio.sleep(max(jittered(pause_s), failure.retry_after_s))

    async def _attempt(self, events: Subscription[Item], items: list[Item]) -> Failure | None:
        """Send one request; acknowledge its events if it is accepted."""
        while self._lock.until < self._clock() + self._client.timeout_s:  # noqa: ASYNC110 - a thread renews it
            await anyio.sleep(LOCK_POLL_S)
        with anyio.CancelScope(shield=True):
            begun = self._clock()
            failure = await self._client.post(items)
            self._metrics.note_request(failure, self._clock() - begun)
            if failure is None:
                # If Redis fails here, they are acknowledged before the next events are read.
                with suppress(*RETRIED), anyio.move_on_after(ACKNOWLEDGE_S):
                    for item in items:
                        events.ack(item)
                    await events.flush()
        if failure is None:
            self._note_accepted(items)
        else:
            self._note_failure(failure)
        return failure

    async def _give_up(self, events: Subscription[Item], item: Item, failure: Failure) -> None:
        events.term(item, failure.error)
        with suppress(*RETRIED):  # the next call for events tries again
            await events.flush()
        self._metrics.events.labels("dead_letter").inc()
        self._failures = 0  # the next event may well be accepted

    def _note_accepted(self, items: list[Item]) -> None:
        self._metrics.note_accepted(items, self._wall())
        if self._failures:
            log.warning("shard %d: requests are accepted again", self._lock.shard)
        self._failures, self._logged = 0, ""

    def _note_failure(self, failure: Failure) -> None:
        self._failures += 1
        if failure.error != self._logged:
            log.warning("shard %d: request failed, retrying: %s", self._lock.shard, failure.error)
            self._logged = failure.error
