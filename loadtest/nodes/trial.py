"""A story that is lived through while a fault is at work in Redis, and judged."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from loadtest.nodes.crowd import Crowd
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.records import Records
from loadtest.nodes.serving import Serving, Setup, running
from loadtest.nodes.story import (
    DUE,
    Due,
    come_back,
    enter,
    expectations,
    groups,
    live_through,
    lost,
    wait_told,
)
from loadtest.nodes.verdict import Expected, Verdict, left_over
from loadtest.nodes.weighing import Forgets, Loss, weigh
from loadtest.scale.reader import GAP, Reader
from loadtest.scale.verdict import Event

NODES: Final = 3
ACQUAINTED_S: Final = 3.0  # a node looks around every 2.5 s, and waits for nobody of whom it has never heard
CAUGHT_UP_S: Final = 5.0  # promised: so soon after Redis answers, what was decided meanwhile is told
EQUAL_S: Final = 5.0  # and so soon it equals the sessions that live
PROBE_S: Final = 2.5  # a node at rest finds out so late that Redis has lost something while it answered
EQUAL_LIMIT_S: Final = 30.0  # for so long it is looked at


@dataclass(frozen=True)
class Fault:
    """Something that can be done to Redis.

    Attributes:
        records: what stands in Redis, read behind the fault's back.
        url: where the nodes find Redis.
        strike: does it for so many seconds; Redis answers as ever when it returns.
        proof: after it, in words that it took place; "" if it did not. Given the servers and the seconds.
        due: what has to be told.
        forgets: what Redis may lose by it.
        windows: between which moments it took last writes that it lost, monotonic seconds.
        watch_url: where a subscriber finds it; "": as the nodes do.
    """

    records: Records
    url: str
    strike: Callable[[float], None]
    proof: Callable[[Sequence[Serving], float], str]
    due: Due = field(default_factory=lambda: DUE)
    forgets: Forgets = Forgets.NOTHING
    windows: list[tuple[float, float]] = field(default_factory=list)
    watch_url: str = ""


def attempt(
    name: str,
    make: Callable[[], AbstractContextManager[Fault]],
    setup: Setup,
    *,
    users: int,
    seconds: float,
    story_s: float,
) -> Outcome:
    """Let users live through a fault, on three nodes; judge what was told of them.

    Args:
        name: of the case.
        make: makes the Redis.
        setup: of the servers.
        users: how many there are.
        seconds: how long the fault is at work; it begins as the story does.
        story_s: how long the story takes.
    """
    parts, keys = groups(users), setup.keys()
    with (
        make() as fault,
        running([lambda: Serving(fault.url, "--workers", str(NODES), *setup.flags)]) as (server,),
        contextlib.closing(Reader(fault.watch_url or fault.url)) as reader,
        Crowd([server.address], "user", users, beat_s=setup.beat_s) as crowd,
        ThreadPoolExecutor(2) as beside,
        _set_at_end() as is_over,
    ):
        records, loses = fault.records, fault.forgets is not Forgets.NOTHING
        enter(records, setup, crowd, parts, len(parts.before))
        if fault.forgets is Forgets.ALL:
            time.sleep(ACQUAINTED_S)  # afterwards nothing tells of others
        beside.submit(come_back, crowd, parts, is_over)
        struck = beside.submit(_strike, fault, setup, crowd, seconds)
        live_through(crowd, parts, story_s)
        back, equal_s = struck.result()
        say(f"{name}: over, and equal after {equal_s:.2f} s")
        expected = expectations(crowd, parts, fault.due)
        wait_told(lambda: records.events(keys) if loses else [*reader.events], expected, setup)
        excused = _entered_in(fault.windows, crowd)
        broken = [*left_over(*records.compare(keys, crowd.live())), *lost(crowd, parts, excused)]
        seen, kept = [*reader.events], records.events(keys)
        proof = fault.proof([server], seconds)
    verdict, loss = weigh(expected, seen, kept, fault.forgets, excused)
    waits = [event.read - back for event in seen if reader.clock.latest(event.at_ms) < back < event.read]
    broken += [each for each in reader.broken if not (loses and each.startswith(GAP))]
    broken += [*verdict.broken, *server.failures(), *_late(equal_s, waits, loses=loses)]
    return Outcome(name, proof, _figures(verdict, expected, kept, equal_s, waits, loss), broken)


@contextlib.contextmanager
def _set_at_end() -> Iterator[threading.Event]:
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def _entered_in(windows: Sequence[tuple[float, float]], crowd: Crowd) -> frozenset[str]:
    """Return who logged in then: who only moved is missing in no stream. All else done then is an entry."""
    return frozenset(
        crowd.uid(number)
        for number, logins in enumerate(crowd.diary.logins)
        if any(begin <= login <= end for login in logins for begin, end in windows)
    )


def _strike(fault: Fault, setup: Setup, crowd: Crowd, seconds: float) -> tuple[float, float]:
    """Do it; return the moment of its end, and the seconds from there until Redis equals what lives."""
    fault.strike(seconds)
    back = time.monotonic()
    return back, fault.records.equal_after(setup.keys(), crowd.sessions, EQUAL_LIMIT_S)


def _late(equal_s: float, waits: Sequence[float], *, loses: bool) -> list[str]:
    """Return in words what came later than promised."""
    caught_up_s, promised_s = max(waits, default=0.0), EQUAL_S + (PROBE_S if loses else 0.0)
    found = [f"caught up after {caught_up_s:.1f} s"] if caught_up_s > CAUGHT_UP_S else []
    return found + ([f"equal only after {equal_s:.1f} s"] if equal_s > promised_s else [])


def _figures(
    verdict: Verdict,
    expected: Expected,
    kept: Sequence[Event],
    equal_s: float,
    waits: Sequence[float],
    loss: Loss | None,
) -> str:
    kinds = ("false", "lost", "doubled", "out of order")
    counts = ", ".join(f"{kind} {verdict.count(kind)}" for kind in kinds)
    caught_up = (
        f"{len(waits)} decided meanwhile, told {max(waits):.2f} s after" if waits else "none to catch up"
    )
    return (
        f"events {len(kept):,} of {sum(map(len, expected.values())):,}: {counts}; equal to the live sessions "
        f"after {equal_s:.2f} s; {caught_up}" + (f"; {loss}" if loss else "")
    )
