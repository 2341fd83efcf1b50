"""What a server needs before it serves: clients of Redis as the settings ask, and a Redis that answers.

Tests: `tests/server/test_serve.py`, `tests/system/end_to_end/test_permissions.py`.
"""

from functools import partial
from typing import Final

import structlog
import trio

from presence.common.background_job import BackgroundJob
from presence.common.errors import StoreUnavailable
from presence.common.redis_url import redacted
from presence.common.runtime import LoopCaller, TrioRuntime
from presence.config.settings import Settings
from presence.followups.run_scheduler import FollowUpScheduler, scheduler_outage
from presence.rooms.projector import RoomProjector, projector_outage
from presence.server.node_assembly import Node
from presence.store import privileges
from presence.store.keys import Keys
from presence.store.redis_store import RedisLeaseTable, RedisStore
from presence.store.room_reads import StoredRooms
from presence.store.roster_table import StoredRosters
from presence.store.script_arguments import Shape
from presence.store.watch_connection import WatchServers
from presence.store.watch_reads import StoredStates
from presence.watching.room_watch_service import RoomSource
from presence.watching.watch_service import Watching

REDIS_TIMEOUT_S: Final = 5.0  # while Redis loads its data; a server has to be ready or fail within 10 s
RETRY_INTERVAL_S: Final = 0.25

log = structlog.get_logger("presence.server.server")


async def wait_for_redis(node: Node, redis_url: str, settings: Settings) -> None:
    """Return once the node has started on its Redis.

    Raises:
        StoreUnavailable, StoreMismatch, StoreError: Redis is unreachable, holds data of another version or
            number of shards, or lacks permissions for us.
    """
    give_up = trio.current_time() + REDIS_TIMEOUT_S
    logged = False
    while True:
        try:
            rights = await _check_rights(node, redis_url, settings)
            await node.start()
        except StoreUnavailable as error:
            if trio.current_time() > give_up:
                raise
            if not logged:
                log.warning("waiting for Redis", redis=redacted(redis_url), error=str(error))
                logged = True
            await trio.sleep(RETRY_INTERVAL_S)
        else:
            break
    if rights.too_much:
        log.warning("Redis user has excess permissions", permissions=rights.too_much)
    if rights.no_events:
        log.warning("Redis user cannot read events", fix=rights.no_events)


async def _check_rights(node: Node, redis_url: str, settings: Settings) -> privileges.Rights:
    """Return what the Redis user may do; the embedded Redis, whose user may do everything, is not checked."""
    if settings.redis is None:
        return privileges.Rights([], "")
    return await LoopCaller().call(partial(privileges.check_server_rights, redis_url, node.keys, settings))


def retention_ms(settings: Settings) -> int:
    """Return how long it is known when an offline user was last seen."""
    return settings.seen_retention_days * 86_400_000


def shape(settings: Settings) -> Shape:
    """Return what all scripts share: keys, bounds of what is kept, and limits per user."""
    return Shape(
        Keys(settings.prefix, settings.shard_count, settings.database),
        maxlen=settings.stream_maxlen,
        seen_retention_ms=retention_ms(settings),
        max_sessions=settings.max_sessions,
        session_policy=settings.session_policy,
        class_limits=settings.class_limits,
        device_events=settings.device_events,
    )


def redis_stores(url: str, settings: Settings) -> tuple[RedisStore, RedisStore, RedisLeaseTable]:
    """Return the stores of relay and lease renewal, each with its own connection, and the lease table."""
    stored = shape(settings)
    leases = RedisLeaseTable(url, stored.keys, settings.lease)
    return RedisStore(url, stored), RedisStore(url, stored), leases


def watching(
    url: str, node: Node, states: StoredStates, rosters: StoredRosters, rooms: StoredRooms
) -> Watching:
    """Return the service for queries and watches."""
    settings, keys = node.settings, node.keys
    source = RoomSource(rooms, settings.max_listed_members, settings.rooms, node.engine.room_claims)
    return Watching(
        keys.shard,
        WatchServers(url, keys, detail=settings.device_events, retention_ms=retention_ms(settings)),
        states,
        max_watches=settings.max_watches,
        memory_bytes=settings.watch_memory * 1_000_000,
        absence_s=settings.lease + settings.idle_timeout,
        shards=keys.shards,
        live_nodes=node.cluster.live_nodes,
        device_events=settings.device_events,
        visibility=node.engine.visibility,
        quiet=node.engine.quiet,
        rosters=rosters,
        claimed_rosters=node.engine.claimed_rosters,
        rooms=source,
        faults=node.faults,
    )


def scheduler(url: str, settings: Settings, keys: Keys) -> BackgroundJob | None:
    """Return the scheduler of follow-ups; None if the settings have no rules."""
    if settings.followups is None:
        return None
    kept = settings.stream_maxlen
    scheduler = FollowUpScheduler(url, keys.prefix, settings.followups, shards=keys.shards, kept=kept)
    return BackgroundJob(
        scheduler, scheduler_outage(structlog.get_logger("presence.followups")), TrioRuntime()
    )


def projector(url: str, settings: Settings, keys: Keys) -> BackgroundJob | None:
    """Return the projector of rooms; None if the settings have no rooms."""
    if settings.rooms == "off":
        return None
    projector = RoomProjector(
        url,
        keys.prefix,
        shards=keys.shards,
        kept=settings.stream_maxlen,
        events=settings.room_events,
        max_rooms=settings.max_rooms,
    )
    return BackgroundJob(projector, projector_outage(structlog.get_logger("presence.rooms")), TrioRuntime())
