"""Samples for the live page: one snapshot per second, built and encoded once for all viewers.

Without viewers a sample is taken every five seconds, so that the page can show history: it costs each worker
one answer of some 0.5 ms.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

import structlog
import trio

from presence.admin.page_snapshot import History, Rates, RedisStatus, point_of, snapshot
from presence.admin.responses import to_json
from presence.admin.sse import message
from presence.admin.workers import Workers
from presence.common.redaction import redact_text
from presence.common.runtime import run_in_thread
from presence.common.scarcity import fault_fields
from presence.reader import PresenceReader
from presence.store.health import RedisHealth, read_health
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients

SAMPLE_INTERVAL_S: Final = 1.0
UNSEEN_INTERVAL_S: Final = 5.0  # without viewers
NODES_INTERVAL_S: Final = 2.0
ROOMS_INTERVAL_S: Final = 2.0
LARGEST_ROOMS: Final = 10
REDIS_INTERVAL_S: Final = 5.0
REDIS_TIMEOUT_S: Final = 3.0  # values of Redis are shown for no longer if it stops answering

log = structlog.get_logger("presence.admin")


class Sampler:
    """Builds the snapshots; `history` is of the past day, `cluster` has the last values from Redis.

    `has_rooms`: whether the largest rooms are among them.
    """

    def __init__(self, workers: Workers, redis_url: str, prefix: str, *, has_rooms: bool = False) -> None:
        self._workers = workers
        self._reader = PresenceReader(redis_url, prefix=prefix)
        self._access = ShardClients(redis_url)
        self._rates = Rates()
        self._limiter = trio.CapacityLimiter(4)  # a thread per query of `run`
        self._viewers: set[Callable[[bytes], None]] = set()
        self._viewer_came = trio.Event()
        self.history = History()
        self.cluster = RedisStatus(has_rooms=has_rooms)

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, SAMPLE_INTERVAL_S, self._reader.count, "online")
                nursery.start_soon(self._watch, NODES_INTERVAL_S, self._reader.nodes, "nodes")
                nursery.start_soon(self._watch, REDIS_INTERVAL_S, self._read_health, "redis")
                if self.cluster.has_rooms:
                    nursery.start_soon(self._watch, ROOMS_INTERVAL_S, self._read_rooms, "rooms")
                await self._sample_all()
        finally:
            self._reader.close()
            self._access.close()

    def subscribe(self, show: Callable[[bytes], None]) -> None:
        """Call `show` with each snapshot from now on, as a message of an event stream."""
        if not self._viewers:
            self._viewer_came.set()
        self._viewers.add(show)

    def unsubscribe(self, show: Callable[[bytes], None]) -> None:
        self._viewers.discard(show)

    async def _sample_all(self) -> None:
        is_logged = False
        while True:
            try:
                await self._sample()
                is_logged = False
            except Exception as error:  # a value of unknown form must not stop the page
                if not is_logged:
                    log.error("cannot build snapshot from workers", **fault_fields(error))  # noqa: TRY400 - it has the error
                is_logged = True
            self._viewer_came = trio.Event()
            with trio.move_on_after(SAMPLE_INTERVAL_S if self._viewers else UNSEEN_INTERVAL_S):
                await self._viewer_came.wait()

    async def _sample(self) -> None:
        answers = await self._workers.samples()
        at_ms = int(time.time() * 1000)
        speeds = self._rates.update(answers)
        self.history.add(point_of(at_ms, answers, speeds, self.cluster.online))
        if self._viewers:
            encoded = message("sample", to_json(snapshot(at_ms, answers, speeds, self.cluster)))
            for show in list(self._viewers):
                show(encoded)

    async def _watch(self, interval_s: float, ask: Callable[[], object], name: str) -> None:
        """Query Redis periodically, and store the result, or the failure, under a name."""
        while True:
            begun = trio.current_time()
            try:
                with trio.fail_after(REDIS_TIMEOUT_S):
                    result = await run_in_thread(ask, self._limiter)
            except (RedisError, OSError, ValueError, trio.TooSlowError) as error:
                if name != "redis":
                    self._store(name, None)
                known = self.cluster.redis or RedisHealth(status="away")
                text = redact_text(str(error)) or "no answer in time"
                self._store("redis", replace(known, status="away", ping_ms=None, error=text))
            else:
                self._store(name, result)
            await trio.sleep(max(0.05, begun + interval_s - trio.current_time()))

    def _read_health(self) -> RedisHealth:
        return read_health(self._access, self._reader.keys().shards)

    def _read_rooms(self) -> dict[str, int]:
        return self._reader.rooms(largest=LARGEST_ROOMS)

    def _store(self, name: str, result: Any) -> None:
        self.cluster = replace(self.cluster, **{name: result})

    def redis_map(self) -> dict[str, Any] | None:
        """Return the health of Redis as plain data; None: not read yet."""
        return None if self.cluster.redis is None else asdict(self.cluster.redis)
