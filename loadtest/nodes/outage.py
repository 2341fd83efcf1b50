"""Redis is away for all nodes, or for one of them, while users come, go, move and fall silent."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from loadtest.nodes.crowd import Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, running
from loadtest.nodes.story import (
    DUE_WHEN_CUT,
    enter,
    expectations,
    groups,
    live_through,
    lost,
    noticed,
    wait_told,
)
from loadtest.nodes.trial import CAUGHT_UP_S, NODES, Fault, attempt
from loadtest.nodes.verdict import ONLINE, judge, left_over
from loadtest.proxy import Proxy
from loadtest.scale.reader import Reader
from protocol import Code

SECONDS = 60.0


def outages(setup: Setup, *, seconds: float = SECONDS, users: int = 600) -> list[Outcome]:
    """Let Redis be away for so long in three ways, side by side: frozen, killed, cut off from one node."""
    away = partial(attempt, setup=setup, users=users, seconds=seconds, story_s=seconds)
    cases = (
        partial(away, f"Redis frozen for {seconds:g} s", frozen),
        partial(away, f"Redis killed for {seconds:g} s", killed),
        partial(cut, setup, seconds, users),
    )
    with ThreadPoolExecutor(len(cases)) as pool:
        return [future.result() for future in [pool.submit(case) for case in cases]]


@contextlib.contextmanager
def frozen() -> Iterator[Fault]:
    """Make a Redis that is stopped: it answers nothing, and connections stay as they are."""
    with Data() as data:

        def strike(seconds: float) -> None:
            data.freeze()
            time.sleep(seconds)
            data.thaw()

        yield Fault(data, data.url, strike, were_without)


@contextlib.contextmanager
def killed() -> Iterator[Fault]:
    """Make a Redis that is killed, and started again with its data."""
    with Data(keep=True) as data:

        def strike(seconds: float) -> None:
            data.kill()
            time.sleep(seconds)
            data.start()

        yield Fault(data, data.url, strike, were_without)


def were_without(servers: Sequence[Serving], seconds: float) -> str:
    """Return in words that all nodes were without Redis for most of the time; "" if they were not."""
    gone = noticed(servers, seconds)
    return f"{len(gone)} nodes without Redis for {min(gone):.1f} s or more" if len(gone) == NODES else ""


def cut(setup: Setup, seconds: float, users: int) -> Outcome:
    """Cut one of three nodes off from Redis, while its clients beat."""
    name = f"one of {NODES} nodes cut off from Redis for {seconds:g} s"
    parts = groups(users)
    others = users // 2
    with (
        Data() as data,
        Proxy(data.path) as proxy,
        running([partial(Serving, url, *setup.flags) for url in (proxy.url, data.url, data.url)]) as servers,
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([servers[0].address], "user", users, beat_s=setup.beat_s) as crowd,
        Crowd([each.address for each in servers[1:]], "other", others, beat_s=setup.beat_s) as bystanders,
    ):
        bystanders.bring(range(others))
        enter(data, setup, crowd, parts, others + len(parts.before))
        proxy.blackhole()
        live_through(crowd, parts, seconds)
        proxy.heal()
        back = time.monotonic()
        say(f"{name}: it is mended")
        expected = {
            **expectations(crowd, parts, DUE_WHEN_CUT),
            **{bystanders.uid(n): [ONLINE] for n in range(others)},
        }
        wait_told(lambda: [*reader.events], expected, setup)
        events, broken = [*reader.events], [*reader.broken]
        broken += left_over(*data.compare(setup.keys(), crowd.live() | bystanders.live()))
        broken += lost(crowd, parts)
    down = [event for event in events if event.code == Code.NODE_DOWN]
    returned = [event.read - back for event in events if event.code == Code.RETURNED]
    broken += judge(expected, events).broken
    broken += [failure for server in servers for failure in server.failures()]
    broken += [f"back only after {max(returned):.1f} s"] if max(returned, default=0.0) > CAUGHT_UP_S else []
    alone = noticed(servers[:1], seconds)
    return Outcome(
        name,
        f"it was without Redis for {alone[0]:.1f} s" if alone else "",
        f"of {len(parts.before)} users node_down {len(down)}, of {len(parts.steady)} who beat online again "
        f"{len(returned)}, the last {max(returned, default=0.0):.2f} s after its return",
        broken,
    )
