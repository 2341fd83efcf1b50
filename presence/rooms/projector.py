"""The projector of rooms: keeps the members of rooms as the events of users say. Calls block.

Any number of processes may run one; in each shard one at a time is active. `source_shard` has the protocol
between the events of users and the rooms, `comparison` that by which differences are found.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import structlog

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.loop_calls import Pacer
from presence.common.outage import EventLog, Outage
from presence.common.redis_url import database
from presence.rooms.away_shards import AwayShards
from presence.rooms.comparison import MemberWalk
from presence.rooms.counters import RoomCounters
from presence.rooms.script_calls import (
    DEFAULT_KEPT,
    DEFAULT_MAX_ROOMS,
    project_call,
    read_call,
    unpacked,
)
from presence.rooms.source_shard import PAGE_INTERVAL_S, SourceShard
from presence.store.cluster_routes import Connect
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.script_runner import Call, Scripting
from presence.store.shard_job import RETRY_FIRST_S, RETRY_MAX_S, ShardJob

WALK_INTERVAL_S: Final = 0.2  # between two steps of the comparison of members with records
PAGES_PER_S: Final = 8  # of the comparison of records with members, of all shards
_WAITING_EVENT: Final = "rooms waiting for Redis"

log = structlog.get_logger("presence.rooms")


class RoomProjector(ShardJob):
    """Reads the events of each shard when it is due, and changes rooms. Used from one thread at a time.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        prefix: of the keys.
        shards: number of shards; None: as stored by a server.
        kept: cap of each stream of rooms, roughly.
        events: "occupancy", or "all": members that join and leave have entries in the stream, too.
        max_rooms: in Redis, of all shards together.
        connect: makes the client of one Redis server.
        clock: seconds that only rise.
        name: tells projectors apart; None: a random one.

    Attributes:
        counters: results so far.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "presence",
        *,
        shards: int | None = None,
        kept: int = DEFAULT_KEPT,
        events: str = "occupancy",
        max_rooms: int = DEFAULT_MAX_ROOMS,
        connect: Connect = open_client,
        clock: Callable[[], float] = time.monotonic,
        name: str | None = None,
    ) -> None:
        self.counters = RoomCounters()
        super().__init__(Scripting(url, connect), prefix, shards, self.counters)
        self._database = database(url)
        self._bounds: dict[str, Any] = {
            "kept": kept,
            "has_member_events": events == "all",
            "max_rooms": max_rooms,
        }
        self._clock = clock
        self._name = name or secrets.token_hex(8)
        self._away = AwayShards()
        self._sources: list[SourceShard] = []
        self._walks: list[MemberWalk] = []
        self._walk_shard, self._walk_at = 0, 0.0

    def _run(self, shards: int) -> float:
        if not self._sources:
            self._begin(Keys(self._prefix, shards, self._database))
        now, away = self._clock(), self._away
        retried = away.begin_run(now)
        due = [each for each in self._sources if each.due <= now or each.shard in retried]
        self._project(self._read([source for source in due if source.shard not in away.unread]))
        away.end_run(self._clock())
        self._report()
        is_more = not (self.failure or away.unchanged) and self._compare_members()
        next_due = min(
            away.retry_at if source.shard in away.unread else source.due for source in self._sources
        )
        return 0.0 if is_more else max(0.0, next_due - self._clock())

    def _begin(self, keys: Keys) -> None:
        self._keys = keys
        self._project_call: Callable[..., Call] = partial(project_call, keys, **self._bounds)
        shards = range(keys.shards)
        self._sources = [SourceShard(shard, keys.shards, self.counters) for shard in shards]
        self._walks = [MemberWalk(keys, shard, self._project_call, self.counters) for shard in shards]

    def _read(self, due: Sequence[SourceShard]) -> list[SourceShard]:
        """Read the events of shards; return those that answered."""
        arguments = [source.read_arguments(self._clock()) for source in due]
        calls = [
            read_call(self._keys, source.shard, self._name, **words)
            for source, words in zip(due, arguments, strict=True)
        ]
        answered = []
        pacer = Pacer()
        for source, words, answer in zip(due, arguments, self._evaluate(calls), strict=True):
            if isinstance(answer, StoreUnavailable):
                self._away.not_read(source.shard)
                self._lose(source.shard)
                continue
            if isinstance(answer, Exception):
                source.due = self._clock() + self._retry_s()
                continue
            self.counters.reads += 1
            pacer.note(len(answer))
            connection = self._scripting.connection_number(self._keys.online(source.shard))
            source.process(unpacked(answer), self._clock(), words, connection)
            answered.append(source)
        return answered

    def _project(self, sources: Sequence[SourceShard]) -> None:
        """Send what was read to the rooms, one call after the other to each shard of rooms."""
        pacer = Pacer()
        while True:
            now = self._clock()
            sent = [
                (source, call) for source in sources for call in source.outgoing(now, self._away.unchanged)
            ]
            if not sent:
                break
            calls = [
                self._project_call(
                    each.place,
                    source.shard,
                    position=each.position,
                    to=each.to,
                    groups=each.groups,
                    kind=each.kind,
                    walk=each.walk,
                )
                for source, each in sent
            ]
            for (source, call), answer in zip(sent, self._evaluate(calls), strict=True):
                pacer.note()
                if isinstance(answer, StoreUnavailable):
                    self._away.not_changed(call.place)
                    self._lose(call.place)
                elif isinstance(answer, Exception):
                    source.refused(call.place, self._clock())
                else:
                    source.answered(call, unpacked(answer))
        for source in sources:
            source.settle(self._clock())

    def _lose(self, place: int) -> None:
        """Have no source take a room shard that is away for one that has what was read."""
        for source in self._sources:
            source.lost(place)

    def _evaluate(self, calls: list[Call]) -> list[Any]:
        answers = self._scripting.evaluate(calls) if calls else []
        for answer in answers:
            if isinstance(answer, Exception):
                self._note_failure(answer)
        return answers

    def _report(self) -> None:
        """Log what happened to shards, and sum up those that this projector is active in."""
        active = [source for source in self._sources if source.is_active]
        self.counters.rooms = sum(source.rooms for source in active)
        self.counters.members = sum(source.members for source in active)
        now = self._clock()
        self.counters.lag_s = max((max(each.lag_s, now - each.passed_on_at) for each in active), default=0.0)
        for source in active:
            source.page_interval_s = max(PAGE_INTERVAL_S, len(active) / PAGES_PER_S)
        for source in self._sources:
            for is_done, fields in source.news:
                if is_done:
                    log.info("rooms rebuilt", **fields)
                else:
                    log.info("rooms being rebuilt", **fields)
            source.news.clear()

    def _compare_members(self) -> bool:
        """Make the next steps of comparisons that are wanted, and of the one that runs all the time.

        Returns whether more is to be done immediately.
        """
        is_more = False
        for source, walk in zip(self._sources, self._walks, strict=True):
            if source.is_active and source.walk:
                walk.begin(source.walk)
                if self._step(walk):
                    source.note_walked(walk.token, walk.removed)
                is_more = is_more or walk.has_more
        if any(source.is_rebuilding for source in self._sources):
            self._walk_at = self._clock() + WALK_INTERVAL_S  # what it corrects is no difference
        active = [each.shard for each in self._sources if each.is_active and each.members and not each.walk]
        if self._clock() < self._walk_at or not active:
            return is_more and not self.failure
        self._walk_at = self._clock() + WALK_INTERVAL_S
        shard = next((shard for shard in active if shard >= self._walk_shard), active[0])
        is_complete = self._step(self._walks[shard])
        self._walk_shard = shard + 1 if is_complete or self.failure else shard
        return is_more and not self.failure

    def _step(self, walk: MemberWalk) -> bool:
        try:
            return walk.step(self._scripting, self._clock())
        except (StoreUnavailable, StoreError) as error:
            self._note_failure(error)
            return False


def projector_outage(events: EventLog) -> Outage:
    """Return the log of a projector's failed runs."""
    return Outage(
        events,
        unreachable=_WAITING_EVENT,
        refused=_WAITING_EVENT,
        failed_otherwise="projector of rooms failed",
        recovered="rooms resumed",
        first_s=RETRY_FIRST_S,
        limit_s=RETRY_MAX_S,
    )
