"""What is done to a Redis Cluster; each returns its proof in words, or "" if it injected nothing."""

import itertools
import time
from collections.abc import Callable
from typing import Final

from loadtest.chaos.plan import Fault, Kind
from loadtest.redis_cluster import Cluster, Member
from loadtest.servers import errors
from presence.store.keys import Keys

HALF_MOVED_S: Final = 0.4  # each slot is open for so long, some of its keys here and some there
BETWEEN_S: Final = 0.1
PAUSED_MS: Final = 2000
WAIT_MS: Final = 1000


def carry_out(cluster: Cluster, keys: Keys, fault: Fault) -> str:
    """Do it; return when it is over, with the proof that it took place."""
    match fault.kind:
        case Kind.PRIMARY_KILL:
            return _kill(cluster, keys, fault.seconds)
        case Kind.PRIMARY_STOP:
            return _stop(cluster, keys, fault.seconds)
        case Kind.HANDOVER:
            return _hand_over(cluster, fault.seconds)
        case Kind.MOVE_KEYS:
            return _move(cluster, keys, fault.seconds, _by_key, ("TRYAGAIN", "ASK", "MOVED"))
        case _:
            return _move(cluster, keys, fault.seconds, _at_once, ("MOVED",))


def _kill(cluster: Cluster, keys: Keys, seconds: float) -> str:
    primary = cluster.primary_of(keys.nodes)
    slots = [slot for each in primary.ranges() for slot in each]
    shards = sum(cluster.slot_of(keys.online(shard)) in slots for shard in range(keys.shards))
    primary.call("CLIENT", "PAUSE", PAUSED_MS, "WRITE")  # what a replica may lack is tried by a failover
    primary.call("WAIT", 1, WAIT_MS)
    begun = time.monotonic()
    cluster.fail_over(primary)
    took_s = time.monotonic() - begun
    time.sleep(seconds)
    return f"{shards} of {keys.shards} shards without a primary for {took_s:.1f} s"


def _stop(cluster: Cluster, keys: Keys, seconds: float) -> str:
    before = _counts(cluster, "CLUSTERDOWN")
    primary = cluster.primary_of(keys.nodes)
    primary.freeze()
    time.sleep(seconds)
    primary.thaw()
    cluster.wait_until_ok()
    down = _counts(cluster, "CLUSTERDOWN") - before
    return f"CLUSTERDOWN answered {down:,} times" if down else ""


def _hand_over(cluster: Cluster, seconds: float) -> str:
    before, replaced = _counts(cluster, "MOVED"), 0
    for primary in cluster.primaries():
        time.sleep(seconds / 4)
        cluster.fail_over(primary, is_graceful=True)
        replaced += 1
    moved = _counts(cluster, "MOVED") - before
    return f"{replaced} of 3 primaries replaced; answers MOVED {moved:,}" if moved else ""


def _by_key(cluster: Cluster, slot: int, target: Member) -> None:
    classic = cluster.move(slot, target)
    classic.begin()
    classic.step()
    time.sleep(HALF_MOVED_S)
    while classic.step():
        pass
    classic.finish()


def _at_once(cluster: Cluster, slot: int, target: Member) -> None:
    cluster.move_at_once([slot], target)


def _move(
    cluster: Cluster,
    keys: Keys,
    seconds: float,
    move: Callable[[Cluster, int, Member], None],
    codes: tuple[str, ...],
) -> str:
    """Let the slots with presence data move on and on, each at least once."""
    names = [*map(keys.online, range(keys.shards)), *keys.lease_keys, keys.meta]
    slots = [*dict.fromkeys(map(cluster.slot_of, names))]
    before = {code: _counts(cluster, code) for code in codes}
    moves, until = 0, time.monotonic() + seconds
    for slot in itertools.cycle(slots):
        if time.monotonic() > until and moves >= len(slots):
            break
        primaries = cluster.primaries()
        at = primaries.index(cluster.primary_of(slot))
        move(cluster, slot, primaries[(at + 1) % len(primaries)])
        moves += 1
        time.sleep(BETWEEN_S)
    counts = {code: _counts(cluster, code) - before[code] for code in codes}
    answered = ", ".join(f"{code} {count:,}" for code, count in counts.items())
    # Who asks for one key or for several, and which of them is there, is chance.
    return f"{moves} moves of {len(slots)} slots; answers {answered}" if counts[codes[0]] else ""


def _counts(cluster: Cluster, code: str) -> int:
    return sum(errors(each.client, code) for each in cluster.members if each.is_running)
