"""The faults of a plan, carried out on real processes, sockets and a real Redis; each proves that it was.

Each returns its proof in words, or "" if it injected nothing.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, Final

from loadtest.redis_sentinel import SentinelSetup, TcpRedis
from loadtest.servers import error_count, wait_for
from presence.store.keys import Keys
from tests.support.proxy import Proxy, ProxyFaults
from tests.support.redis_cluster import Cluster, Member
from tests.system.chaos.bounds import Troubles
from tests.system.chaos.collector import Collector
from tests.system.chaos.nodes import ANSWER_TIMEOUT_S, ChaosNode, Clustered, DurableRedis, Plain, Watched
from tests.system.chaos.plan import ALL_PLACES, CLUSTER_FAULTS, ChaosFault, ChaosFaultKind, Place
from tests.system.chaos.rooms import ProjectorProcess
from tests.system.chaos.truth import Trouble

REPEAT_S: Final = 0.1  # between two blows of a fault that comes again and again
PROXY_FAULTS: Final = {
    ChaosFaultKind.PATH_LATENCY: ProxyFaults(latency_s=0.1, jitter_s=0.15),
    ChaosFaultKind.CLIENTS_LATENCY: ProxyFaults(latency_s=0.2, jitter_s=0.6),
    ChaosFaultKind.PATH_SLICES: ProxyFaults(slice_bytes=7),
    ChaosFaultKind.CLIENTS_SLICES: ProxyFaults(slice_bytes=2),
}
BLACKHOLES: Final = {  # which ways nothing goes: up, down
    **dict.fromkeys(
        (ChaosFaultKind.PATH_HOLE, ChaosFaultKind.PATH_HOLE_LONG, ChaosFaultKind.CLIENTS_HOLE), (True, True)
    ),
    **dict.fromkeys((ChaosFaultKind.PATH_HOLE_UP, ChaosFaultKind.CLIENTS_HOLE_UP), (True, False)),
    **dict.fromkeys((ChaosFaultKind.PATH_HOLE_DOWN, ChaosFaultKind.CLIENTS_HOLE_DOWN), (False, True)),
}
DROPS: Final = 3
SPLIT_BRAIN_S: Final = 0.5  # for so long the old one takes writes that the replica never gets
SWEEP_LATENCY: Final = ProxyFaults(latency_s=0.05)  # so that there is time to kill a sweeper in mid-sweep
SWEPT_SHARE: Final = 0.2  # of what the dead node owned; then its sweeper is killed
SWEEP_POLL_INTERVAL_S: Final = 0.01
OUT_OF_MEMORY_BYTES: Final = 1  # of memory: whatever needs some is refused
HALF_MOVED_S: Final = 0.4  # each slot is open for so long, some of its keys here and some there
BETWEEN_S: Final = 0.1
PAUSED_MS: Final = 2000
WAIT_MS: Final = 1000


class Injector:
    """Carries faults out; `subscribers` is their path to Redis, None without a proxy."""

    def __init__(
        self,
        data: Plain | Clustered | Watched,
        keys: Keys,
        nodes: list[ChaosNode],
        subscribers: Proxy | None,
        collector: Collector,
        troubles: Troubles,
        projector: ProjectorProcess | None = None,
    ) -> None:
        self._data, self._keys, self._nodes = data, keys, nodes
        self._paths = [path for path in (*(node.path for node in nodes), subscribers) if path]
        self._collector, self._troubles = collector, troubles
        self._projector = projector
        self._locks: defaultdict[tuple[Place, int], Lock] = defaultdict(Lock)

    def inject(self, fault: ChaosFault) -> str:
        """Carry a fault out; return the proof that it took place, when it is over.

        A fault that takes longer than planned, as a start without Redis does, delays the next one of the same
        target.
        """
        if fault.place == ALL_PLACES:
            each = [replace(fault, place=place) for place in range(len(self._nodes))]
            with ThreadPoolExecutor(len(each)) as pool:
                proofs = [*pool.map(self.inject, each)]
            return proofs[0] if all(proofs) else ""
        if fault.kind is ChaosFaultKind.ROLLING:
            return self._rolling(fault)
        if fault.kind is ChaosFaultKind.SWEEPER:
            return self._sweeper(fault)
        with self._locks[fault.kind.value.place, fault.place], self._recorded(fault):
            if fault.kind in CLUSTER_FAULTS:
                assert isinstance(self._data, Clustered)
                return _inject_into_cluster(self._data.cluster, self._keys, fault)
            if fault.kind in {*PROXY_FAULTS, *BLACKHOLES}:
                return self._disturb(fault)
            act: Callable[[ChaosFault], str] = getattr(self, f"_{fault.kind.name.lower()}")
            return act(fault)

    @classmethod
    def supports(cls, kind: ChaosFaultKind) -> bool:
        """Whether a kind of fault can be injected into a plain Redis."""
        return kind in {*PROXY_FAULTS, *BLACKHOLES} or hasattr(cls, f"_{kind.name.lower()}")

    @contextmanager
    def _recorded(self, fault: ChaosFault, place: int | None = None) -> Iterator[None]:
        trouble = Trouble(fault.kind, fault.place if place is None else place, time.monotonic())
        self._troubles.add(trouble)
        try:
            yield
        finally:
            trouble.end = time.monotonic()

    @property
    def _plain(self) -> Plain:
        assert isinstance(self._data, Plain)
        return self._data

    @property
    def _store(self) -> DurableRedis:
        return self._plain.server

    # Nodes

    def _stop(self, fault: ChaosFault) -> str:
        node = self._nodes[fault.place]
        started = time.monotonic()
        node.freeze()
        time.sleep(fault.seconds / 2)
        was_stopped = node.is_frozen()
        time.sleep(max(0.0, started + fault.seconds - time.monotonic()))
        node.thaw()
        return f"process {node.pid} was seen stopped" if was_stopped else ""

    _stop_long = _stop

    def _kill(self, fault: ChaosFault) -> str:
        node = self._nodes[fault.place]
        pid, status = node.pid, node.kill()
        time.sleep(fault.seconds)
        node.restart()
        return f"process {pid} ended by signal {-status}" if status < 0 else ""

    def _projector_kill(self, fault: ChaosFault) -> str:
        if self._projector is None:
            return ""
        pid, status = self._projector.pid, self._projector.kill()
        time.sleep(fault.seconds)
        self._projector.start()
        return f"process {pid} ended by signal {-status}" if status < 0 else ""

    def _rolling(self, fault: ChaosFault) -> str:
        statuses = []
        for place, node in enumerate(self._nodes):
            with self._locks[Place.NODE, place], self._recorded(fault, place):
                statuses.append(node.drain())
                node.restart()
        return "" if any(statuses) else f"{len(statuses)} processes replaced"

    def _sweeper(self, fault: ChaosFault) -> str:
        """Kill a node, and its sweeper in mid-sweep; restart both."""
        records, keys = self._data.records, self._keys
        ids = {stats["pid"]: node for node, stats in records.nodes(keys).items()}
        places = {ids[node.pid]: place for place, node in enumerate(self._nodes)}
        dead = ids[self._nodes[fault.place].pid]
        with self._recorded(fault):
            self._nodes[fault.place].kill()
            for path in self._paths:
                path.disturb(SWEEP_LATENCY)
            owned, sweeper = records.owned(keys, dead), ""

            def is_half_swept() -> bool:
                nonlocal sweeper
                sweeper = sweeper or records.sweeper(keys, dead)
                return bool(sweeper) and records.owned(keys, dead) <= owned * (1 - SWEPT_SHARE)

            wait_for(is_half_swept, fault.seconds, poll_s=SWEEP_POLL_INTERVAL_S)
            if not sweeper:
                return ""
            with self._recorded(fault, places[sweeper]):
                self._nodes[places[sweeper]].kill()
                for path in self._paths:
                    path.heal()
                left = records.owned(keys, dead)
                both = (dead, sweeper)
                wait_for(lambda: records.is_swept(keys, both[0]), fault.seconds)
                wait_for(lambda: records.is_swept(keys, both[1]), fault.seconds)
                for node in both:
                    self._nodes[places[node]].restart()
        return f"{owned - left:,} of {owned:,} sessions were swept" if 0 < left < owned else ""

    # Redis

    def _redis_kill(self, fault: ChaosFault) -> str:
        self._store.kill()
        time.sleep(fault.seconds)
        was_unreachable = not self._store.is_answering(ANSWER_TIMEOUT_S)
        self._store.start()
        return "no answer meanwhile" if was_unreachable else ""

    def _redis_stop(self, fault: ChaosFault) -> str:
        self._store.freeze()
        time.sleep(fault.seconds / 2)
        was_unreachable = not self._store.is_answering(ANSWER_TIMEOUT_S)
        time.sleep(fault.seconds / 2)
        self._store.thaw()
        return "no answer meanwhile" if was_unreachable else ""

    def _redis_empty(self, fault: ChaosFault) -> str:
        with self._collector.writes_paused():
            keys = self._store.client.dbsize()
            self._store.kill()
            self._collector.data_lost()
        time.sleep(fault.seconds)
        self._store.discard_data(back=False)
        self._store.start()
        return _proof(keys, "keys forgotten")

    def _redis_back(self, fault: ChaosFault) -> str:
        with self._collector.writes_paused():
            self._store.save_state()
            number = self._collector.state_saved()
            offset = self._store.aof_bytes()
        time.sleep(fault.seconds)
        with self._collector.writes_paused():
            lost = self._store.aof_bytes() - offset
            self._store.kill()
            self._collector.data_lost(number)
        self._store.discard_data(back=True)
        self._store.start()
        return _proof(lost, "bytes of changes forgotten")

    def _await_copy(self, old: DurableRedis, replica: DurableRedis) -> None:
        offset = old.replication_offset()
        wait_for(lambda: replica.replication_offset() >= offset, SPLIT_BRAIN_S)

    def _failover(self, fault: ChaosFault) -> str:
        old, (replica, _) = self._store, self._plain.make_replica()
        with self._collector.writes_paused():
            self._await_copy(old, replica)
            number = self._collector.state_saved()
            self._plain.promote(replica, self._paths)
            self._collector.data_lost(number)
        old.client.execute_command("CLIENT", "UNPAUSE")
        lost = old.aof_bytes()
        time.sleep(SPLIT_BRAIN_S)
        lost = old.aof_bytes() - lost
        refused = old.error_count("READONLY")
        old.client.replicaof(*self._plain.proxy_to_server().address)
        time.sleep(fault.seconds)
        refused = old.error_count("READONLY") - refused
        return f"{lost} bytes of changes forgotten, READONLY {refused} times" if lost and refused else ""

    def _failover_kill(self, fault: ChaosFault) -> str:
        old, (replica, way) = self._store, self._plain.make_replica()
        with self._collector.writes_paused():
            self._await_copy(old, replica)
            way.blackhole()
            number = self._collector.state_saved()
            lost = old.aof_bytes()
        time.sleep(SPLIT_BRAIN_S)
        with self._collector.writes_paused():
            lost = old.aof_bytes() - lost
            old.kill()
            self._collector.data_lost(number)
        time.sleep(fault.seconds)
        self._plain.promote(replica, self._paths)
        way.heal(reset=True)
        return _proof(lost, "bytes of changes forgotten")

    def _flush(self, _fault: ChaosFault) -> str:
        return _proof(self._collector.flush_all(), "keys forgotten")

    def _script_flush(self, fault: ChaosFault) -> str:
        before = self._store.error_count("NOSCRIPT")
        _repeat(fault.seconds, self._store.client.script_flush)
        return _proof(self._store.error_count("NOSCRIPT") - before, "calls found no script")

    def _client_kill(self, fault: ChaosFault) -> str:
        def kill() -> int:
            words = (("CLIENT", "KILL", "TYPE", kind, "SKIPME", "YES") for kind in ("NORMAL", "PUBSUB"))
            return sum(self._store.client.execute_command(*each) for each in words)

        return _proof(_repeat(fault.seconds, kill), "connections killed")

    def _memory(self, fault: ChaosFault) -> str:
        before = self._store.error_count("OOM")
        self._store.client.config_set("maxmemory", OUT_OF_MEMORY_BYTES)
        time.sleep(fault.seconds)
        self._store.client.config_set("maxmemory", 0)
        return _proof(self._store.error_count("OOM") - before, "calls refused")

    # A Redis watched by Sentinels

    @property
    def _watched(self) -> Watched:
        assert isinstance(self._data, Watched)
        return self._data

    def _sentinel_kill(self, _fault: ChaosFault) -> str:
        setup = self._watched.setup
        old = setup.primary
        with self._collector.writes_paused():  # what a replica may lack is tried by SENTINEL_FAILOVER
            _await_copies(setup)
            old.kill()
        proof = _replacement(setup, old)
        setup.wait_until_calm()
        old.start()
        return proof

    def _sentinel_stop(self, fault: ChaosFault) -> str:
        setup = self._watched.setup
        old = setup.primary
        with self._collector.writes_paused():
            _await_copies(setup)
            old.freeze()
        started = time.monotonic()
        proof = _replacement(setup, old)
        time.sleep(max(0.0, started + fault.seconds - time.monotonic()))
        old.thaw()
        return proof if old.is_primary else ""

    def _sentinel_failover(self, fault: ChaosFault) -> str:
        setup = self._watched.setup
        old = setup.primary
        (replica,) = (each for each in setup.servers if each is not old)
        with self._collector.writes_paused():
            _await_copies(setup)
            number = self._collector.state_saved()
            setup.fail_over()
            if not wait_for(lambda: replica.is_primary, fault.seconds):
                return ""
            self._watched.promoted = replica  # the Sentinels still name the old one, whose writes are lost
            self._collector.data_lost(number)
        before = old.offset()
        old.client.client_unpause()
        proof = _replacement(setup, old)
        time.sleep(fault.seconds)  # by then all have left it, and it is still a primary
        lost = old.offset() - before
        self._watched.promoted = None
        return f"{proof}; {lost} bytes of changes forgotten" if lost and old.is_primary else ""

    # Paths

    def _disturb(self, fault: ChaosFault) -> str:
        """Make a path a blackhole, or slow, or cut its bytes into pieces."""
        is_path = fault.kind.value.place is Place.PATH
        proxies = [self._paths[fault.place]] if is_path else self._nodes[fault.place].clients
        before, faults = [each.injected for each in proxies], PROXY_FAULTS.get(fault.kind)
        for proxy in proxies:
            if faults:
                proxy.disturb(faults)
            else:
                up, down = BLACKHOLES[fault.kind]
                proxy.blackhole(up=up, down=down)
        time.sleep(fault.seconds)
        for proxy in proxies:
            proxy.heal()
        done = [proxy.injected.since(earlier) for proxy, earlier in zip(proxies, before, strict=True)]
        if faults is None:
            return _proof(sum(each.held_bytes for each in done), "bytes held")
        if faults.slice_bytes:
            return _proof(sum(each.cuts for each in done), "cuts")
        return _proof(sum(each.delayed_bytes for each in done), "bytes delayed")

    def _path_reset(self, fault: ChaosFault) -> str:
        return _proof(_repeat(fault.seconds, self._paths[fault.place].reset), "connections reset")

    def _path_drop(self, fault: ChaosFault) -> str:
        path = self._paths[fault.place]
        before = path.injected
        _repeat(fault.seconds, lambda: path.drop_reply(DROPS))
        path.drop_reply(0)
        return _proof(path.injected.since(before).replies_dropped, "replies lost")

    def _clients_reset(self, fault: ChaosFault) -> str:
        count = sum(proxy.reset(0.5) for proxy in self._nodes[fault.place].clients)
        return _proof(count, "connections reset")


def _proof(count: int, words: str) -> str:
    return f"{count} {words}" if count else ""


def _repeat(seconds: float, blow: Callable[[], Any]) -> int:
    """Repeat an action for some seconds; return the sum of its results."""
    until, found = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        found += int(blow() or 0)
        time.sleep(REPEAT_S)
    return found


def _await_copies(setup: SentinelSetup) -> None:
    offset = setup.primary.offset()
    wait_for(lambda: all(each.offset() >= offset for each in setup.servers), SPLIT_BRAIN_S)


def _replacement(setup: SentinelSetup, old: TcpRedis) -> str:
    """Wait until the Sentinels have replaced the primary; return how long it took them."""
    started = time.monotonic()
    setup.wait_until_replaced(old)
    return f"the Sentinels named the replica after {time.monotonic() - started:.1f} s"


def _inject_into_cluster(cluster: Cluster, keys: Keys, fault: ChaosFault) -> str:
    """Carry a fault out; return the proof that it took place."""
    match fault.kind:
        case ChaosFaultKind.PRIMARY_KILL:
            return _kill_primary(cluster, keys, fault.seconds)
        case ChaosFaultKind.PRIMARY_STOP:
            return _stop_primary(cluster, keys, fault.seconds)
        case ChaosFaultKind.HANDOVER:
            return _hand_over(cluster, fault.seconds)
        case ChaosFaultKind.MOVE_KEYS:
            return _move_slots(cluster, keys, fault.seconds, _move_by_key, ("TRYAGAIN", "ASK", "MOVED"))
        case _:
            return _move_slots(cluster, keys, fault.seconds, _move_atomically, ("MOVED",))


def _kill_primary(cluster: Cluster, keys: Keys, seconds: float) -> str:
    primary = cluster.primary_of(keys.nodes)
    slots = [slot for each in primary.slot_ranges() for slot in each]
    shards = sum(cluster.slot_of(keys.online(shard)) in slots for shard in range(keys.shards))
    primary.call("CLIENT", "PAUSE", PAUSED_MS, "WRITE")  # what a replica may lack is tried by a failover
    primary.call("WAIT", 1, WAIT_MS)
    started = time.monotonic()
    cluster.fail_over(primary)
    took_s = time.monotonic() - started
    time.sleep(seconds)
    return f"{shards} of {keys.shards} shards without a primary for {took_s:.1f} s"


def _stop_primary(cluster: Cluster, keys: Keys, seconds: float) -> str:
    before = _error_count(cluster, "CLUSTERDOWN")
    primary = cluster.primary_of(keys.nodes)
    primary.freeze()
    time.sleep(seconds)
    primary.thaw()
    cluster.wait_until_ok()
    down = _error_count(cluster, "CLUSTERDOWN") - before
    return f"CLUSTERDOWN answered {down:,} times" if down else ""


def _hand_over(cluster: Cluster, seconds: float) -> str:
    before, replaced = _error_count(cluster, "MOVED"), 0
    for primary in cluster.primaries():
        time.sleep(seconds / 4)
        cluster.fail_over(primary, is_graceful=True)
        replaced += 1
    moved = _error_count(cluster, "MOVED") - before
    return f"{replaced} of 3 primaries replaced; answers MOVED {moved:,}" if moved else ""


def _move_by_key(cluster: Cluster, slot: int, target: Member) -> None:
    classic = cluster.move(slot, target)
    classic.begin()
    classic.step()
    time.sleep(HALF_MOVED_S)
    while classic.step():
        pass
    classic.finish()


def _move_atomically(cluster: Cluster, slot: int, target: Member) -> None:
    cluster.move_atomically([slot], target)


def _move_slots(
    cluster: Cluster,
    keys: Keys,
    seconds: float,
    move: Callable[[Cluster, int, Member], None],
    codes: tuple[str, ...],
) -> str:
    """Move the slots with presence data from primary to primary, each at least once."""
    names = [*map(keys.online, range(keys.shards)), *keys.lease_keys, keys.meta]
    slots = [*dict.fromkeys(map(cluster.slot_of, names))]
    before = {code: _error_count(cluster, code) for code in codes}
    moves, until = 0, time.monotonic() + seconds
    for slot in itertools.cycle(slots):
        if time.monotonic() > until and moves >= len(slots):
            break
        primaries = cluster.primaries()
        at = primaries.index(cluster.primary_of(slot))
        move(cluster, slot, primaries[(at + 1) % len(primaries)])
        moves += 1
        time.sleep(BETWEEN_S)
    counts = {code: _error_count(cluster, code) - before[code] for code in codes}
    answered = ", ".join(f"{code} {count:,}" for code, count in counts.items())
    # Who asks for one key or for several, and which of them is there, is chance.
    return f"{moves} moves of {len(slots)} slots; answers {answered}" if counts[codes[0]] else ""


def _error_count(cluster: Cluster, code: str) -> int:
    return sum(error_count(each.client, code) for each in cluster.members if each.is_running)
