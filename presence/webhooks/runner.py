"""One of the runners of a group: sends the shards of which it has the lock, each in a task of its own."""

import logging
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from presence.common.async_threads import call_in_thread
from presence.common.scarcity import scarcity
from presence.webhooks.http_client import WebhookClient
from presence.webhooks.metrics import RunnerMetrics
from presence.webhooks.shard_locks import RETRIED, ShardLock, ShardLocks
from presence.webhooks.shard_sender import SendOptions, ShardSender

LOCK_REQUESTS: Final = 3  # a lock lasts for the time of so many; it is renewed after a third of that
MIN_LOCK_S: Final = 15.0
LEAVE_S: Final = 5.0  # to release the locks at the end; later, they expire
SPARE_THREADS: Final = 8  # beside one for each shard, which reads it

log = logging.getLogger("presence.webhooks")


class _Sending:
    """A shard that is sent now."""

    def __init__(self, lock: ShardLock) -> None:
        self.lock = lock
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class Runner:
    """A runner; `name` is one that no other runner of the group has."""

    def __init__(
        self,
        redis_url: str,
        prefix: str,
        options: SendOptions,
        client: WebhookClient,
        *,
        metrics: RunnerMetrics,
        name: str,
    ) -> None:
        self._metrics = metrics
        self._sender = partial(ShardSender, redis_url, prefix, options, client, metrics=metrics)
        self._lock_s = max(MIN_LOCK_S, LOCK_REQUESTS * client.timeout_s)
        self._locks = ShardLocks(
            redis_url, prefix, options.group, name, lock_s=self._lock_s, kind=options.kind
        )
        self._share: set[int] = set()
        self._sending: dict[int, _Sending] = {}

    async def join(self) -> None:
        """Announce this runner, before it is run.

        Raises:
            RedisError: Redis cannot be reached.
            ValueError: it does not hold data of a presence server.
        """
        self._share = await self._renew()

    async def run(self, stop: anyio.Event) -> None:
        """Send until `stop` is set; requests under way are completed."""
        try:
            async with anyio.create_task_group() as tasks:
                while not stop.is_set():
                    await self._divide(tasks)
                    with anyio.move_on_after(self._lock_s / 3):
                        await stop.wait()
                        break
                    try:
                        self._share = await self._renew()
                    except RETRIED as error:
                        log.warning("cannot renew the locks of shards: %s", scarcity(error) or error)
                await self._end([*self._sending])
            with suppress(*RETRIED), anyio.move_on_after(LEAVE_S):
                await call_in_thread(self._locks.leave)
        finally:
            self._locks.close()

    async def _renew(self) -> set[int]:
        return await call_in_thread(self._locks.renew)

    async def _divide(self, tasks: TaskGroup) -> None:
        """Stop sending shards of others, and those whose lock was lost; begin to send new ones."""
        share, held = self._share, self._locks.held
        ended = [
            shard
            for shard, sending in self._sending.items()
            if shard not in share or held.get(shard) is not sending.lock
        ]
        await self._end(ended)
        if others := held.keys() - share:
            try:
                await call_in_thread(partial(self._locks.release, others), abandon_on_cancel=False)
            except RETRIED as error:
                log.warning("cannot release the locks of shards: %s", scarcity(error) or error)
        anyio.to_thread.current_default_thread_limiter().total_tokens = len(share) + SPARE_THREADS
        new = held.keys() - self._sending.keys()
        for shard in new:
            self._sending[shard] = sending = _Sending(held[shard])
            tasks.start_soon(self._send, sending)
        if new or ended:
            log.info("sending shards %s", sorted(self._sending))
        self._metrics.shards.set(len(self._sending))

    async def _send(self, sending: _Sending) -> None:
        with sending.scope:
            await self._sender(lock=sending.lock).run()
        sending.ended.set()

    async def _end(self, shards: list[int]) -> None:
        """Stop sending shards; wait for requests under way."""
        for shard in shards:
            self._sending[shard].scope.cancel()
        for shard in shards:
            await self._sending.pop(shard).ended.wait()
