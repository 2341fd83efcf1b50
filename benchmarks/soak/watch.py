"""What is looked at meanwhile: events, processes, the server's tables, latencies."""

import json
import math
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.scale.play import GAP, Reader
from benchmarks.soak.load import VISITOR
from loadtest import usage
from loadtest.checker import Periods
from loadtest.outcome import BrokenPromises, percentile
from loadtest.redis_contents import Data
from loadtest.room_members import MemberDifference, differences, recorded_members, stored_members
from loadtest.servers import PresenceServer, wait_for
from presence.protocol import Code
from presence.store.keys import Keys
from presence.subscriber.events import Gap, Item

MB = 1_000_000
SCRAPE_TIMEOUT_S = 10.0
FEATURES = (
    *("presence_rooms", "presence_room_members", "presence_watched_rooms", "presence_room_watches"),
    *("presence_roster_followers", "presence_websocket_connections"),
)
GAUGES = (
    *("presence_connections", "presence_sessions", "presence_process_open_fds", "presence_outbox_changes"),
    *("presence_watch_memory_bytes", *FEATURES),
)
TABLES = "presence_table_entries"
ROOM_CHANGES, ROOM_DIFFERENCES = "presence_room_changes_total", "presence_room_differences_total"
MEMORY, DESCRIPTORS, THREADS = "memory of the server, MB", "descriptors", "threads"
DATA, KEYS = "data of Redis, MB", "keys of Redis"
TABLE_PREFIX = "table "
PROCESS_FIGURES = (MEMORY, DESCRIPTORS, THREADS, DATA, KEYS)
USED = (*FEATURES, *(f"{TABLE_PREFIX}{name}" for name in ("quiet", "watches", "watched_users")))
"""Figures that are above 0 while clients do what the crowd is there for."""
STORED = Keys("presence", 1)
ROOM_POLL_S = 0.5


class EventJudge(Reader):
    """Follows all events: they must alternate for each user, and each offline event name its online event.

    Attributes:
        counts: events by type.
        visits: online and offline events of visitors, by type.
        crowd: the users who were online and are no visitors.
        periods: of all users.
        found: broken promises; if the server is wrong there may be one for each of millions of events.
    """

    def __init__(self, redis_url: str, idle_timeout: float) -> None:
        self.counts: Counter[str] = Counter()
        self.visits: Counter[str] = Counter()
        self.crowd: set[str] = set()
        self.periods = Periods()
        self.found = BrokenPromises()
        self._idle_timeout = idle_timeout
        self._detection_s: list[float] = []
        self._age_s: list[float] = []
        super().__init__(redis_url)

    def take_detection_s(self) -> list[float]:
        """Return, for the events since the last call, how long after T a silent session was ended."""
        taken, self._detection_s = self._detection_s, []
        return taken

    def take_age_s(self) -> list[float]:
        """Return, for the events since the last call, the time from the decision until they were read."""
        taken, self._age_s = self._age_s, []
        return taken

    def _add(self, item: Item) -> None:
        if isinstance(item, Gap):
            self.found.note(GAP, f"{item.reason} after {item.id}")
            return
        fields = item.fields
        self.counts[fields["type"]] += 1
        if fields["type"] not in {"online", "offline"}:
            return
        uid, session, at_ms = fields["uid"], fields["session"], int(fields["at_ms"])
        self._age_s.append(time.time() - at_ms / 1000)
        broken = self.periods.check_order(uid, item.id)
        if uid.startswith(VISITOR):
            self.visits[fields["type"]] += 1
        else:
            self.crowd.add(uid)
        if fields["type"] == "online":
            broken += self.periods.user_online(uid, session, item.id, math.inf)
        else:
            broken += self.periods.user_offline(uid, session, fields["since_id"])
            if int(fields["code"]) == Code.IDLE_TIMEOUT:
                silent_s = (at_ms - int(fields["last_seen_ms"])) / 1000
                self._detection_s.append(silent_s - self._idle_timeout)
        for each in broken:
            self.found.note(each.rule, each.text)


@dataclass
class Samples:
    """Figures over time: by name, the moments in seconds since the start, and the values."""

    times: dict[str, list[float]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    def add(self, name: str, value: float) -> None:
        self.times.setdefault(name, []).append(time.monotonic() - self._started)
        self.values.setdefault(name, []).append(value)

    @property
    def end_s(self) -> float:
        """When the last figure was sampled."""
        return max((times[-1] for times in self.times.values()), default=0.0)

    def add_times(self, name: str, seconds: list[float]) -> None:
        """Add median and 99th percentile, in ms."""
        if seconds:
            self.add(f"{name} p50, ms", percentile(seconds, 0.5) * 1000)
            self.add(f"{name} p99, ms", percentile(seconds, 0.99) * 1000)

    def after(self, name: str, warm_up_s: float) -> tuple[list[float], list[float]]:
        """Return the moments and values of a figure after the warm-up; none of one that was never sampled."""
        kept = [
            (moment, value)
            for moment, value in zip(self.times.get(name, ()), self.values.get(name, ()), strict=True)
            if moment >= warm_up_s
        ]
        return [moment for moment, _ in kept], [value for _, value in kept]

    def as_json(self) -> str:
        return json.dumps({"times": self.times, "values": self.values})


def is_table(name: str) -> bool:
    """Whether a figure is the size of a table of the server."""
    return name.startswith(TABLE_PREFIX)


def sample(samples: Samples, server: PresenceServer, redis: Data) -> None:
    """Look at the server's processes, its tables, and its Redis."""
    pids = usage.server_processes(server.process.pid)
    processes = [psutil.Process(pid) for pid in pids]
    # Pages of files are shared with other programs, whose number changes.
    samples.add(MEMORY, usage.memory(*pids).anonymous / MB)
    samples.add(DESCRIPTORS, sum(each.num_fds() for each in processes))
    samples.add(THREADS, sum(each.num_threads() for each in processes))
    samples.add(DATA, redis.client.info("memory")["used_memory"] / MB)
    samples.add(KEYS, redis.client.dbsize())
    for name, value in figures(scrape(server)):
        samples.add(name, value)


def figures(metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the sizes of all tables, and `GAUGES`."""
    yield from ((name, value) for name, value in metrics.items() if is_table(name) or name in GAUGES)


def scrape(server: PresenceServer) -> dict[str, float]:
    """Return all metrics, each the sum over the workers and labels; only tables by name."""
    url = server.logged("admin HTTP server starting")[-1]["url"].rstrip("/") + "/metrics"
    with urllib.request.urlopen(url, timeout=SCRAPE_TIMEOUT_S) as answer:
        text = answer.read().decode()
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found[TABLE_PREFIX + each.labels["table"] if each.name == TABLES else each.name] += each.value
    return found


def lasting_differences(redis: Data, within_s: float) -> set[MemberDifference]:
    """Return the members of rooms that differ from the records for so long; rooms follow a moment later.

    Raises:
        RedisError: Redis cannot be read.
    """
    lasting: set[MemberDifference] | None = None

    def none_lasts() -> bool:
        nonlocal lasting
        found = differences(
            *(read(lambda _key: redis.client, STORED) for read in (stored_members, recorded_members))
        )
        lasting = found if lasting is None else lasting & found
        return not lasting

    wait_for(none_lasts, within_s, poll_s=ROOM_POLL_S)
    return lasting or set()


def rooms_left(redis: Data) -> list[str]:
    """Return what Redis keeps of rooms, beside the state of the projector and the stream."""
    found = [room.decode() for room in redis.client.zrange(STORED.room_sizes(0), 0, -1)]
    return found + [key.decode() for key in redis.client.scan_iter(f"{STORED.room_prefix(0)}*", count=1000)]
