"""Faults under the load of `benchmarks.watches`: how long until every view is right again, and at what cost.

While users change, Redis is killed and restarted with its data, killed and restarted without, replaced by its
replica, or all workers are replaced one after the other. From the end of the fault on, all views are compared
each second with the events that are older than `LAG_S`: they are equal again when each client that is to be
connected watches, no view is behind, and it stays so. After a while without changes they are compared with
Redis itself.
"""

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.scale.play import GAP
from benchmarks.watches.graph import FriendGraph
from benchmarks.watches.play import WatchesRun
from benchmarks.watches.subjects import PresenceSubject, SubjectKind, running_subject
from loadtest import usage
from loadtest.outcome import markdown, print_progress
from loadtest.redis_sentinel import SentinelSetup
from loadtest.servers import LocalRedis, PresenceServer, wait_for
from presence.store.redis_client import RedisError

BEFORE_S = 5.0  # of changes, before the fault
DOWN_S = 3.0  # that Redis is away: longer than any call waits for it
LAG_S = 2.0  # an event that is older must have reached its watchers
HOLD_S = 3.0  # for so long views must be equal
SAMPLE_S = 1.0
RECOVERY_TIMEOUT_S = 180.0
ROLLING_TIMEOUT_S = 180.0
HEAD = (
    "fault | lasted, s | views equal after, s | connections lost | commands in Redis a second, before, most"
    " | watches a second, most | pushes | views compared"
)


@dataclass
class FaultFigures:
    """What a fault has done."""

    name: str
    lasted_s: float = 0.0
    equal_after_s: float = 0.0  # from its end
    lost: int = 0  # connections
    calls_before: float = 0.0  # commands in Redis a second, those of scripts included
    calls_most: float = 0.0
    watches_most: float = 0.0  # requests of clients in a second
    pushes: int = 0
    views: int = 0  # compared at the end
    broken: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        return [
            self.name,
            f"{self.lasted_s:.1f}",
            f"{self.equal_after_s:.1f}",
            f"{self.lost:,}",
            f"{self.calls_before:,.0f}, {self.calls_most:,.0f}",
            f"{self.watches_most:,.0f}",
            f"{self.pushes:,}",
            f"{self.views:,}",
        ]


class CallRate:
    """Commands that the busiest of some Redis servers runs a second; those of scripts are counted, too."""

    def __init__(self, clients: list[Any]) -> None:
        self._clients = clients
        self._last: list[tuple[float, int]] = [(0.0, 0)] * len(clients)
        self.sample()

    def sample(self) -> float:
        """Return the rate since the last sample; a server that was away or restarted counts from then on."""
        most = 0.0
        for number, client in enumerate(self._clients):
            try:
                calls = sum(usage.redis_calls(client).values())
            except RedisError:
                continue
            now, (before, former) = time.monotonic(), self._last[number]
            if before and calls >= former:
                most = max(most, (calls - former) / (now - before))
            self._last[number] = now, calls
        return most


def play_fault(
    run: WatchesRun, name: str, inject: Callable[[], None], clients: list[Any], per_second: float
) -> FaultFigures:
    """Let users change, inject a fault, and wait until all views are equal again.

    Args:
        inject: returns at the end of the fault.
        clients: a connection to each Redis server.
        per_second: users that begin to do something.
    """
    found, subject = FaultFigures(name), run.subject
    assert isinstance(subject, PresenceSubject)
    run.begin_phase()
    rate = CallRate(clients)
    run.start_changes(per_second)
    run.wait(f"before: {name}", BEFORE_S)
    found.calls_before = rate.sample()
    watches, began = run.status().watches, time.monotonic()
    over_at: list[float] = []

    def run_fault() -> None:
        inject()
        over_at.append(time.monotonic())

    fault = threading.Thread(target=run_fault, daemon=True)
    fault.start()
    equal_at, give_up = 0.0, began + ROLLING_TIMEOUT_S + RECOVERY_TIMEOUT_S
    sampled_at = began
    while time.monotonic() < give_up:
        run.wait(name, SAMPLE_S)
        now, total = time.monotonic(), run.status().watches
        found.watches_most = max(found.watches_most, (total - watches) / (now - sampled_at))
        found.calls_most = max(found.calls_most, rate.sample())
        watches, sampled_at = total, now
        if not over_at:
            if not fault.is_alive():
                found.broken.append(f"{name}: could not be injected")
                break
            continue
        absent, behind = run.count_behind(now - LAG_S)
        print_progress(f"{name}, {now - over_at[0]:.0f} s: {absent:,} do not watch, {behind:,} views behind")
        if absent or behind or not subject.has_event_since(over_at[0]):
            equal_at = 0.0
        elif now >= (equal_at := equal_at or now) + HOLD_S:
            break
    else:
        found.broken.append(f"{name}: not every view is equal after {RECOVERY_TIMEOUT_S:.0f} s")
    run.stop_changes()
    run.rest()
    status = run.status()
    if over_at:
        found.lasted_s, found.equal_after_s = over_at[0] - began, equal_at - over_at[0]
    found.lost, found.pushes = status.lost.total(), status.pushes
    found.views = run.check_views()
    return found


def restart_redis(redis: LocalRedis, *, keeps_data: bool) -> None:
    redis.kill()
    if not keeps_data:
        shutil.rmtree(redis.folder / "appendonlydir", ignore_errors=True)
    time.sleep(DOWN_S)
    redis.start()


def replace_workers(server: PresenceServer) -> None:
    done = len(server.logged("rolling restart finished"))
    server.process.send_signal(signal.SIGUSR2)
    if not wait_for(lambda: len(server.logged("rolling restart finished")) > done, ROLLING_TIMEOUT_S):
        raise TimeoutError("the rolling restart has not finished")


def take_over(setup: SentinelSetup) -> None:
    """Kill the primary, and wait until its replica has taken over."""
    former = setup.primary
    former.kill()
    setup.wait_until_replaced(former)


@dataclass(frozen=True)
class FaultLoad:
    """How large the load is.

    Attributes:
        per_second: users that begin to do something.
    """

    workers: int
    per_second: float
    logins: float
    at_once: int
    idle_timeout: float
    keepalive_s: float
    rest_s: float
    seed: int


@contextlib.contextmanager
def _watching(
    kind: SubjectKind, graph: FriendGraph, load: FaultLoad, url: str, client: Any
) -> Iterator[WatchesRun]:
    """Run a server and clients that watch."""
    flags = ("--idle-timeout", f"{load.idle_timeout:g}")
    with (
        running_subject(kind, load.workers, *flags, redis=(url, client)) as subject,
        contextlib.closing(WatchesRun(subject, graph, load.seed, load.rest_s)) as run,
    ):
        run.rest()
        run.log_in(load.logins, load.keepalive_s)
        run.watch(load.at_once)
        yield run


def play_faults(kind: SubjectKind, graph: FriendGraph, load: FaultLoad) -> list[FaultFigures]:
    """Return what each fault has done; the last one's figures have what was broken in all."""
    with LocalRedis(keep=True) as redis, _watching(kind, graph, load, redis.url, redis.client) as run:
        subject = run.subject
        assert isinstance(subject, PresenceSubject)
        faults: dict[str, Callable[[], None]] = {
            "Redis restarts": partial(restart_redis, redis, keeps_data=True),
            "rolling restart": partial(replace_workers, subject.server),
            "Redis restarts without its data": partial(restart_redis, redis, keeps_data=False),
        }
        found = [
            play_fault(run, name, inject, [redis.client], load.per_second) for name, inject in faults.items()
        ]
        # A Redis without its data has a stream without what was there: no other gap may be.
        found[-1].broken += [what for what in run.finish().broken if not what.startswith(GAP)]
    with SentinelSetup() as setup, _watching(kind, graph, load, setup.url, setup.servers[0].client) as run:
        clients = [each.client for each in setup.servers]
        found.append(play_fault(run, "failover", partial(take_over, setup), clients, load.per_second))
        found[-1].broken += run.finish().broken
    return found


def fault_table(found: list[FaultFigures]) -> str:
    return markdown(HEAD, [each.row() for each in found])
