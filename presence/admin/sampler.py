"""The pulse of the live page: one picture a second, made and encoded once for all who look.

It runs whether anybody looks or not, for whoever comes wants to see how things went. A second costs each
worker one answer of some 0.15 ms, and Redis one HLEN for each shard.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

import structlog
import trio

from presence.admin.answers import to_json
from presence.admin.snapshot import History, Rates, RedisStatus, picture, point_of
from presence.admin.streaming import message
from presence.admin.workers import Workers
from presence.common.redaction import redact_text
from presence.reader import PresenceReader
from presence.store.client import RedisError
from presence.store.health import RedisHealth, read_health
from presence.store.shard_clients import ShardClients

SAMPLE_S: Final = 1.0
NODES_S: Final = 2.0
REDIS_S: Final = 5.0
CHANGES_MAX_S: Final = 3.0  # what Redis said is shown for no longer if it says nothing more

log = structlog.get_logger("presence.admin")


class Sampler:
    """Takes the pictures.

    Args:
        workers: who is asked.
        redis_url: of the servers' Redis.
        prefix: what the keys begin with.

    Attributes:
        history: of the past day.
        cluster: what Redis said last.
    """

    def __init__(self, workers: Workers, redis_url: str, prefix: str) -> None:
        self._workers = workers
        self._reader = PresenceReader(redis_url, prefix=prefix)
        self._access = ShardClients(redis_url)
        self._rates = Rates()
        self._limiter = trio.CapacityLimiter(3)  # a thread for each question of `run`
        self._viewers: set[Callable[[bytes], None]] = set()
        self.history = History()
        self.cluster = RedisStatus()

    async def run(self) -> None:
        """Take pictures until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, SAMPLE_S, self._reader.count, "online")
                nursery.start_soon(self._watch, NODES_S, self._reader.nodes, "nodes")
                nursery.start_soon(self._watch, REDIS_S, self._read_health, "redis")
                await self._sample_all()
        finally:
            self._reader.close()
            self._access.close()

    def look(self, show: Callable[[bytes], None]) -> None:
        """Have `show` called with each picture from now on: a message of an event stream."""
        self._viewers.add(show)

    def look_away(self, show: Callable[[bytes], None]) -> None:
        """Have it called no more."""
        self._viewers.discard(show)

    async def _sample_all(self) -> None:
        due, is_told = trio.current_time(), False
        while True:
            try:
                await self._sample()
                is_told = False
            except Exception:  # a figure of unknown form must not end the page
                if not is_told:
                    log.exception("cannot build snapshot from workers")
                is_told = True
            now = trio.current_time()
            due = max(due + SAMPLE_S, now)
            await trio.sleep_until(due)

    async def _sample(self) -> None:
        answers = await self._workers.samples()
        at_ms = int(time.time() * 1000)
        speeds = self._rates.take(answers)
        self.history.add(point_of(at_ms, answers, speeds, self.cluster.online))
        if self._viewers:
            encoded = message("sample", to_json(picture(at_ms, answers, speeds, self.cluster)))
            for show in list(self._viewers):
                show(encoded)

    async def _watch(self, interval_s: float, ask: Callable[[], object], name: str) -> None:
        """Ask Redis again and again, and keep what it says under a name, or that it says nothing."""
        while True:
            begun = trio.current_time()
            try:
                with trio.fail_after(CHANGES_MAX_S):
                    said = await trio.to_thread.run_sync(ask, limiter=self._limiter, abandon_on_cancel=True)
            except (RedisError, OSError, ValueError, trio.TooSlowError) as error:
                if name != "redis":
                    self._note(name, None)
                known = self.cluster.redis or RedisHealth(status="away")
                text = redact_text(str(error)) or "no answer in time"
                self._note("redis", replace(known, status="away", ping_ms=None, error=text))
            else:
                self._note(name, said)
            await trio.sleep(max(0.05, begun + interval_s - trio.current_time()))

    def _read_health(self) -> RedisHealth:
        return read_health(self._access, self._reader.keys().shards)

    def _note(self, name: str, said: Any) -> None:
        self.cluster = replace(self.cluster, **{name: said})

    def redis_map(self) -> dict[str, Any] | None:
        """Return how Redis is, as plain data; None: it was not asked yet."""
        return None if self.cluster.redis is None else asdict(self.cluster.redis)
