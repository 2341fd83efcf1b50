"""What is done to a Redis Cluster."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from loadtest.nodes.records import Records
from loadtest.nodes.serving import Serving
from loadtest.nodes.trial import Fault
from loadtest.nodes.weighing import Forgets
from loadtest.redis_cluster import Cluster, Member
from loadtest.redis_faults.between import LAG_S, STRIKES_AT
from loadtest.redis_faults.plain import errors
from presence.store.keys import Keys

SHARDS: Final = 16  # the default of nodes on a cluster
KEYS: Final = Keys(shards=SHARDS)
HALF_MOVED_S: Final = 0.4  # each slot is open for so long, some of its keys here and some there
BETWEEN_S: Final = 0.1


@contextlib.contextmanager
def primary_killed() -> Iterator[Fault]:
    """Make a cluster of three primaries and three replicas; the primary that has the leases is killed."""
    with Cluster(3, 1) as cluster:
        served_after: list[str] = []
        windows: list[tuple[float, float]] = []

        def strike(seconds: float) -> None:
            time.sleep(STRIKES_AT * seconds)
            primary = cluster.primary_of(KEYS.nodes)
            slots = [slot for each in primary.ranges() for slot in each]
            shards = sum(cluster.slot_of(KEYS.online(shard)) in slots for shard in range(SHARDS))
            begun = time.monotonic()
            windows.append((begun - LAG_S, begun))
            cluster.fail_over(primary)
            took_s = time.monotonic() - begun
            served_after.append(f"{shards} of {SHARDS} shards without a primary for {took_s:.1f} s")

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            return "".join(served_after)

        yield Fault(
            _records(cluster), cluster.url, strike, proof, forgets=Forgets.LAST_WRITES, windows=windows
        )


@contextlib.contextmanager
def primaries_replaced() -> Iterator[Fault]:
    """Make a cluster of 3 + 3 in which each primary hands over to its replica."""
    with Cluster(3, 1) as cluster:
        replaced = 0

        def strike(seconds: float) -> None:
            nonlocal replaced
            for primary in cluster.primaries():
                time.sleep(seconds / 4)
                cluster.fail_over(primary, is_graceful=True)
                replaced += 1

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            moved = sum(errors(each.client, "MOVED") for each in cluster.members)
            return f"{replaced} of 3 primaries replaced; answers MOVED {moved:,}" if moved else ""

        yield Fault(_records(cluster), cluster.url, strike, proof)


@contextlib.contextmanager
def primary_stopped() -> Iterator[Fault]:
    """Make a cluster without replicas; the primary that has the leases is stopped, so that all is down."""
    with Cluster() as cluster:

        def strike(seconds: float) -> None:
            primary = cluster.primary_of(KEYS.nodes)
            primary.freeze()
            time.sleep(seconds)
            primary.thaw()
            cluster.wait_until_ok()

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            down = sum(errors(each.client, "CLUSTERDOWN") for each in cluster.members)
            return f"CLUSTERDOWN answered {down:,} times" if down else ""

        yield Fault(_records(cluster), cluster.url, strike, proof)


@contextlib.contextmanager
def moved_by_key() -> Iterator[Fault]:
    """Make a cluster whose slots with presence data move on and on, in the classic way, key by key."""

    def move(cluster: Cluster, slot: int, target: Member) -> None:
        classic = cluster.move(slot, target)
        classic.begin()
        classic.step()
        time.sleep(HALF_MOVED_S)
        while classic.step():
            pass
        classic.finish()

    with _moved(move, ("TRYAGAIN", "ASK", "MOVED")) as fault:
        yield fault


@contextlib.contextmanager
def moved_at_once() -> Iterator[Fault]:
    """Make a cluster whose slots with presence data move on and on, each as a whole (Valkey 9)."""
    with _moved(lambda cluster, slot, target: cluster.move_at_once([slot], target), ("MOVED",)) as fault:
        yield fault


@contextlib.contextmanager
def _moved(move: Callable[[Cluster, int, Member], None], codes: Sequence[str]) -> Iterator[Fault]:
    with Cluster() as cluster:
        names = [*map(KEYS.online, range(SHARDS)), *KEYS.lease_keys, KEYS.meta]
        slots = [*dict.fromkeys(map(cluster.slot_of, names))]
        moves = 0

        def strike(seconds: float) -> None:
            nonlocal moves
            until = time.monotonic() + seconds
            for slot in itertools.cycle(slots):
                if time.monotonic() > until and moves >= len(slots):
                    return
                at = cluster.members.index(cluster.primary_of(slot))
                move(cluster, slot, cluster.members[(at + 1) % len(cluster.members)])
                moves += 1
                time.sleep(BETWEEN_S)

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            counts = {code: sum(errors(each.client, code) for each in cluster.members) for code in codes}
            answered = ", ".join(f"{code} {count:,}" for code, count in counts.items())
            # Who asks for one key or for several, and which of them is there, is chance.
            return f"{moves} moves of {len(slots)} slots; answers {answered}" if counts[codes[0]] else ""

        yield Fault(_records(cluster), cluster.url, strike, proof)


def _records(cluster: Cluster) -> Records:
    return Records(lambda key: cluster.primary_of(key).client)
