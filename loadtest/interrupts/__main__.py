"""``python -m loadtest.interrupts``: cancel calls of Redis at random points; none may get another's answer.

Calls of the store are made as a node makes them, by the caller of its runtime, on a Redis of its own; a tenth
of them by way of a proxy that slices and jitters. Each is cancelled at a random moment of its life; the calls
after it must succeed, and get their own answers. In the end the stream must hold what the answers said. The
exit status is 1 if an answer was another's, or if no call was interrupted. Needs the ``loadtest`` and
``embedded`` extras, and Linux.
"""

import argparse
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

import trio

from loadtest.interrupts.calls import NODES, SHAPE, SHARDS, Talker
from loadtest.interrupts.careless import CarelessOpener
from loadtest.proxy import Faults, Proxy
from loadtest.redis_cluster import Cluster
from presence.embedded import embedded_redis
from presence.runtime import Caller, TrioRuntime
from presence.store.access import Access
from presence.store.batches import StoreError, StoreUnavailable
from presence.store.client import open_client
from presence.store.redis_store import RedisStore
from presence.store.routes import Connect

PROXIED_EVERY: Final = 10  # of so many stretches one goes by way of the proxy
STRETCH: Final = 50  # interruptions in a row on the same way
WEATHER: Final = Faults(jitter_s=0.001, slice_bytes=200)
FOLLOWED: Final = 0.7  # share of the attempts after which a call is left alone; else the next one connects
UNBEGUN: Final = 0.05  # share of the attempts that are cancelled whether a thread has begun with them or not
LONGER, SHORTER = 1.01, 0.97  # the range of moments grows and shrinks so that three of four are in time
SWITCH_S: Final = 0.0001  # in which threads take turns: finer than a call is long
SHOWN: Final = 5


@dataclass
class Figures:
    """What happened.

    Attributes:
        interrupted: calls that were cancelled while they were under way.
        by_proxy: of these, by way of the proxy.
        not_begun: calls that were cancelled before a thread had taken them.
        over: calls that were over before they were cancelled.
        answers: that came whole and were checked.
        waits_s: how long the calls took that nobody cancelled, each of them after one that was interrupted.
        failed: of these, those that Redis did not answer.
        crossed: answers that were not the call's own.
    """

    interrupted: int = 0
    by_proxy: int = 0
    not_begun: int = 0
    over: int = 0
    answers: int = 0
    waits_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    crossed: list[str] = field(default_factory=list)

    def lines(self, seconds: float, calls: int) -> list[str]:
        """Return them in words; `calls` is how many scripts Redis has run."""
        waits = quantiles(self.waits_s, n=100) if len(self.waits_s) > 1 else [0.0] * 99
        return [
            f"interrupted under way: {self.interrupted:,} in {seconds:.0f} s, {self.by_proxy:,} by way of the"
            f" proxy (not begun: {self.not_begun:,}; over before: {self.over:,})",
            f"scripts that Redis ran: {calls:,}",
            f"answers checked: {self.answers:,}, crossed: {len(self.crossed)}",
            f"the call after an interrupted one: median {waits[49] * 1000:.2f} ms,"
            f" p99 {waits[98] * 1000:.1f} ms, max {max(self.waits_s, default=0.0) * 1000:.0f} ms;"
            f" failed: {len(self.failed)}",
            *self.crossed[:SHOWN],
            *self.failed[:SHOWN],
        ]


class Way:
    """A store, as a node uses it."""

    def __init__(self, url: str, connect: Connect, *, is_proxied: bool) -> None:
        self.is_proxied = is_proxied
        self.range_s = 0.001  # after a call has begun, in which it is cancelled
        self.store = RedisStore(url, SHAPE, connect)
        self.caller: Caller = TrioRuntime().caller(self.store.close)


class Cancelled:
    """A call that is cancelled so long after it has begun, by a thread: no timer of a loop is fine enough.

    Attributes:
        has_begun, has_ended: how far it has got.
    """

    def __init__(self, blocking: Callable[[], object], scope: trio.CancelScope, wait_s: float) -> None:
        self.has_begun = self.has_ended = False
        self._blocking = blocking
        self._scope = scope
        self._token = trio.lowlevel.current_trio_token()
        self._timer = threading.Timer(wait_s, self._cancel)
        self._timer.daemon = True

    def __call__(self) -> object:
        """Make the call."""
        self.has_begun = True
        self.start()
        try:
            return self._blocking()
        finally:
            self.has_ended = True

    def start(self) -> None:
        """Let the time run, if it does not yet."""
        if not self._timer.ident:
            self._timer.start()

    def _cancel(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)


class Trial:
    """Makes calls, interrupts them, and looks at the answers of the others."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.talkers = [Talker(number) for number in range(NODES)]

    async def interrupt(self, way: Way) -> None:
        """Make a call and cancel it at a random moment."""
        figures = self._figures
        blocking, judge = random.choice(self.talkers).call(way.store)
        is_over = False
        with trio.CancelScope() as scope:
            call = Cancelled(blocking, scope, random.uniform(0, way.range_s))
            if random.random() < UNBEGUN:
                call.start()
            answer = await self._call(way, call)
            is_over = True
        if is_over:
            figures.over += 1
            way.range_s *= SHORTER
            self._check(answer, judge)
        elif not call.has_begun:
            figures.not_begun += 1
        elif not call.has_ended:
            figures.interrupted += 1
            way.range_s *= LONGER
            figures.by_proxy += way.is_proxied

    async def follow(self, way: Way) -> None:
        """Make a call that nobody cancels."""
        begun = time.perf_counter()
        blocking, judge = random.choice(self.talkers).call(way.store)
        answer = await self._call(way, blocking)
        self._figures.waits_s.append(time.perf_counter() - begun)
        self._check(answer, judge)

    async def _call(self, way: Way, blocking: Callable[[], object]) -> object:
        try:
            return await way.caller.call(blocking)
        except Exception as error:  # an answer of another form than that of the call can break anything
            return error

    def _check(self, answer: object, judge: Callable[[object], str]) -> None:
        failures = [each for each in _parts(answer) if isinstance(each, (StoreUnavailable, StoreError))]
        if failures:
            self._figures.failed.append(str(failures[0]))
            return
        self._figures.answers += 1
        if wrong := judge(answer):
            self._figures.crossed.append(wrong)


def _parts(answer: object) -> list[object]:
    if isinstance(answer, dict):
        return list(answer.values())
    return answer if isinstance(answer, list) else [answer]


async def _play(ways: list[Way], figures: Figures, count: int) -> list[Talker]:
    stretch = 0
    trial = Trial(figures)
    while figures.interrupted < count:
        way = ways[stretch % PROXIED_EVERY == 0]
        stretch += 1
        for _ in range(STRETCH):
            await trial.interrupt(way)
            if random.random() < FOLLOWED:
                await trial.follow(way)
    return trial.talkers


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.interrupts", description=__doc__)
    add = parser.add_argument
    add("--count", type=int, default=100_000, help="calls to interrupt while they are under way")
    add("--seed", type=int, default=1, help="of what is called, and when it is cancelled")
    add("--cluster", action="store_true", help="on a cluster of three, without a proxy")
    add(
        "--guard-off", action="store_true", help="keep connections whose call was interrupted, for comparison"
    )
    return parser.parse_args(words)


def run(
    count: int, seed: int, *, guard_off: bool = False, in_cluster: bool = False
) -> tuple[Figures, list[str]]:
    """Interrupt so many calls; return what happened, and the same in words."""
    random.seed(seed)
    figures, careless = Figures(), CarelessOpener()
    connect: Connect = careless if guard_off else open_client
    begun = time.monotonic()
    with _cluster() if in_cluster else _one_redis() as (url, second_url):
        ways = [
            Way(url, connect, is_proxied=False),
            Way(second_url, connect, is_proxied=second_url != url),
        ]
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        talkers = trio.run(_play, ways, figures, count)
        sys.setswitchinterval(switch_s)
        seconds = time.monotonic() - begun
        scripts, rows = _carried_out(url)
        for way in ways:
            way.store.close()
        careless.close()
    figures.crossed += _misfits(talkers, rows)
    return figures, figures.lines(seconds, scripts)


@contextlib.contextmanager
def _one_redis() -> Iterator[tuple[str, str]]:
    """Run a Redis; give its URL, and another one by way of a proxy."""
    with embedded_redis() as server, Proxy(server.url.removeprefix("unix://")) as proxy:
        proxy.disturb(WEATHER)
        yield server.url, proxy.url


@contextlib.contextmanager
def _cluster() -> Iterator[tuple[str, str]]:
    """Run a cluster; give its URL twice."""
    with Cluster() as cluster:
        yield cluster.url, cluster.url


def _carried_out(url: str) -> tuple[int, Any]:
    """Return how many scripts Redis has run, and what stands in the streams."""
    scripts, rows = 0, []
    with Access(url) as access:
        for shard in range(SHARDS):
            key = SHAPE.keys.events(shard)
            found: Any = access.at(key).xrange(key)
            rows += found
        for server in access.primaries():
            stats: Any = server.info("commandstats")
            scripts += sum(
                stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")
            )
    return scripts, rows


def _misfits(talkers: list[Talker], rows: Any) -> list[str]:
    ours: dict[str, dict[str, tuple[str, str]]] = {talker.uid: {} for talker in talkers}
    for entry_id, fields in rows:
        uid = fields[b"uid"].decode()
        ours[uid][entry_id.decode()] = (uid, fields[b"type"].decode())
    return [wrong for talker in talkers for wrong in talker.misfits(ours[talker.uid])]


def main(words: list[str] | None = None) -> int:
    """Run, and print the figures."""
    given = parse(words)
    figures, lines = run(given.count, given.seed, guard_off=given.guard_off, in_cluster=given.cluster)
    print("\n".join(lines))
    failed = bool(figures.crossed) or not figures.interrupted
    print("loadtest.interrupts: " + ("FAILED" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
