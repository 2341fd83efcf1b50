"""What is done between the nodes and a Redis, and to the address by which they know it."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

from loadtest.nodes.data import Data
from loadtest.nodes.serving import Serving, wait_for
from loadtest.nodes.trial import Fault
from loadtest.nodes.weighing import Forgets
from loadtest.proxy import Faults, Proxy
from loadtest.redis_faults.plain import errors
from presence.store.client import open_client
from presence.store.scripting import digest

CALL_S: Final = 0.2  # how long each call takes when Redis is slow
DROP_EVERY_S: Final = 0.1  # more, and a node gets no answer for longer than a client may be gone
STRIKES_AT: Final = 0.2  # of the time: users are coming and moving
SPLIT_S: Final = 0.5  # for so long the old one takes writes that the replica never gets
PROMOTED_AFTER_S: Final = 3.0  # a watcher has to be sure of it
LAG_S: Final = 0.5  # from an act to its write, and from that to the replica, is less
SYNC_TIMEOUT_S: Final = 10.0


@contextlib.contextmanager
def slow() -> Iterator[Fault]:
    """Make a Redis that is far away: each call takes 200 ms."""
    with Data() as data, Proxy(data.path) as proxy:
        calls_s: list[float] = []

        def strike(seconds: float) -> None:
            proxy.disturb(Faults(latency_s=CALL_S / 2))
            with open_client(proxy.url) as client:
                client.ping()
                begun = time.monotonic()
                client.ping()
                calls_s.append(time.monotonic() - begun)
            time.sleep(seconds)
            proxy.heal()

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            return f"PING took {calls_s[0]:.3f} s" if calls_s[0] >= CALL_S else ""

        yield Fault(data, proxy.url, strike, proof, watch_url=data.url)


@contextlib.contextmanager
def replies_lost() -> Iterator[Fault]:
    """Make a Redis that does as it is told, but whose answer is often lost, with the connection."""
    with Data() as data, Proxy(data.path) as proxy:
        batches = others = 0

        def lose(seconds: float, containing: bytes = b"") -> int:
            before = proxy.injected
            proxy.drop_reply(1, containing=containing)
            time.sleep(seconds)
            return proxy.injected.since(before).replies_dropped

        def strike(seconds: float) -> None:
            nonlocal batches, others
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                batches += lose(DROP_EVERY_S, digest("apply").encode())
                others += lose(DROP_EVERY_S)
            proxy.heal()

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            return f"lost the replies to {batches} batches and {others} other calls" if batches else ""

        yield Fault(data, proxy.url, strike, proof, watch_url=data.url)


@contextlib.contextmanager
def failed_over() -> Iterator[Fault]:
    """Make a Redis whose replica takes its place.

    Its address leads to the replica from then on; the old one goes on as a replica of that, and answers
    READONLY to those who stay connected.
    """
    with _pair() as (old, new, proxy, _), Proxy(new.path) as to_new:
        windows: list[tuple[float, float]] = []

        def strike(seconds: float) -> None:
            time.sleep(STRIKES_AT * seconds)
            begun = time.monotonic()
            _promote(new, proxy)
            time.sleep(SPLIT_S)
            old.client.replicaof(*to_new.address)
            windows.append((begun - LAG_S, time.monotonic() + LAG_S))

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            refused = errors(old.client, "READONLY")
            return f"the old one answered READONLY {refused:,} times" if refused else ""

        yield Fault(new, proxy.url, strike, proof, forgets=Forgets.LAST_WRITES, windows=windows)


@contextlib.contextmanager
def crashed() -> Iterator[Fault]:
    """Make a Redis that is killed; its replica, which lagged, takes its place and address a while later."""
    with _pair() as (old, new, proxy, replication):
        windows: list[tuple[float, float]] = []

        def strike(seconds: float) -> None:
            time.sleep(STRIKES_AT * seconds)
            begun = time.monotonic()
            replication.blackhole()
            time.sleep(SPLIT_S)
            old.kill()
            windows.append((begun - LAG_S, time.monotonic() + LAG_S))
            time.sleep(PROMOTED_AFTER_S)
            _promote(new, proxy)
            replication.heal(reset=True)

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            refused = proxy.injected.unreachable
            return f"{refused:,} connections came to nothing meanwhile" if refused else ""

        yield Fault(new, proxy.url, strike, proof, forgets=Forgets.LAST_WRITES, windows=windows)


@contextlib.contextmanager
def _pair() -> Iterator[tuple[Data, Data, Proxy, Proxy]]:
    """Make a Redis, its replica, the address of the first for nodes, and that for the replica."""
    with Data() as old, Proxy(old.path) as replication, Data() as new:
        new.client.replicaof(*replication.address)
        if not wait_for(lambda: new.client.info("replication")["master_link_status"] == "up", SYNC_TIMEOUT_S):
            raise SystemExit("the replica has not got the data")
        with Proxy(old.path) as proxy:
            yield old, new, proxy, replication


def _promote(replica: Data, proxy: Proxy) -> None:
    replica.client.replicaof("NO", "ONE")
    proxy.retarget(replica.path)
