"""A story that is lived through while a fault is at work in Redis, and judged."""

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from loadtest.nodes.crowd import Crowd
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.records import Records
from loadtest.nodes.serving import LOOK_S, Serving, Setup, running
from loadtest.nodes.story import (
    DUE,
    Due,
    enter,
    expectations,
    groups,
    live_through,
    lost,
    wait_told,
)
from loadtest.nodes.verdict import Expected, Verdict, judge, judge_order, left_over
from loadtest.scale.reader import Reader
from loadtest.scale.verdict import Event
from presence.store.client import RedisError

NODES: Final = 3
CAUGHT_UP_S: Final = 5.0  # promised: so soon after Redis answers, what was decided meanwhile is told
EQUAL_S: Final = 5.0  # and so soon it equals the sessions that live
EQUAL_LIMIT_S: Final = 30.0  # for so long it is looked at


@dataclass(frozen=True)
class Fault:
    """Something that can be done to Redis.

    Attributes:
        records: what stands in Redis, read behind the fault's back.
        url: where the nodes find Redis.
        strike: does it for so many seconds; Redis answers as ever when it returns.
        proof: after it, in words that it took place; "" if it did not. Given the servers and the seconds.
        due: what has to stand in the streams in the end.
        forgets: whether Redis may lose entries by it: the whole stream where `due` says so, else the last
            ones before it, which are counted. A user who lost any is told of somehow, but alternately.
    """

    records: Records
    url: str
    strike: Callable[[float], None]
    proof: Callable[[Sequence[Serving], float], str]
    due: Due = field(default_factory=lambda: DUE)
    forgets: bool = False


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
    parts = groups(users)
    with (
        make() as fault,
        running([lambda: Serving(fault.url, "--workers", str(NODES), *setup.flags)]) as (server,),
        contextlib.closing(Reader(fault.url)) as reader,
        Crowd([server.address], "user", users, beat_s=setup.beat_s) as crowd,
        ThreadPoolExecutor(1) as beside,
    ):
        enter(fault.records, setup, crowd, parts, len(parts.before))
        struck = beside.submit(_strike, fault, setup, crowd, seconds)
        live_through(crowd, parts, story_s)
        back, equal_s = struck.result()
        say(f"{name}: over, and equal after {equal_s:.2f} s")
        expected = expectations(crowd, parts, fault.due)
        seen, broken = wait_told(reader, expected, setup)
        broken += left_over(*fault.records.compare(setup.keys(), crowd.live()))
        broken += lost(crowd, parts)
        kept = fault.records.events(setup.keys())
        proof = fault.proof([server], seconds)
    verdict, vanished = weigh(fault, expected, seen, kept)
    waits = [event.read - back for event in seen if reader.clock.latest(event.at_ms) < back < event.read]
    caught_up_s = max(waits, default=0.0)
    broken = [*verdict.broken, *([] if fault.forgets else broken), *server.failures()]
    broken += [f"caught up after {caught_up_s:.1f} s"] if caught_up_s > CAUGHT_UP_S else []
    broken += [f"equal only after {equal_s:.1f} s"] if equal_s > EQUAL_S else []
    return Outcome(name, proof, _figures(verdict, expected, kept, equal_s, waits, vanished), broken)


def weigh(
    fault: Fault, expected: Expected, seen: Sequence[Event], kept: Sequence[Event]
) -> tuple[Verdict, int]:
    """Judge the events, and return how many of them Redis has lost.

    Args:
        fault: what was done.
        expected: everybody who was there.
        seen: what a subscriber read all the time.
        kept: what stands in the streams in the end.
    """
    stands = {(event.uid, event.id) for event in kept}
    vanished = [event for event in seen if (event.uid, event.id) not in stands]
    if not fault.forgets:
        verdict = judge(expected, seen)
        for event in vanished:
            verdict.note("event that Redis has no more", event)
        return verdict, len(vanished)
    touched = {event.uid for event in vanished} if fault.due is DUE else set()
    verdict = judge(
        {uid: due for uid, due in expected.items() if uid not in touched},
        [event for event in kept if event.uid not in touched],
    )
    judge_order(verdict, touched, kept)
    return verdict, len(vanished)


def _strike(fault: Fault, setup: Setup, crowd: Crowd, seconds: float) -> tuple[float, float]:
    """Do it; return the moment of its end, and the seconds from there until Redis equals what lives."""
    fault.strike(seconds)
    back = time.monotonic()
    while (equal_s := time.monotonic() - back) < EQUAL_LIMIT_S:
        with contextlib.suppress(RedisError, LookupError):
            if not any(fault.records.compare(setup.keys(), crowd.sessions())):
                break
        time.sleep(LOOK_S)
    return back, equal_s


def _figures(
    verdict: Verdict,
    expected: Expected,
    kept: Sequence[Event],
    equal_s: float,
    waits: Sequence[float],
    vanished: int,
) -> str:
    kinds = ("false", "lost", "doubled", "out of order")
    counts = ", ".join(f"{kind} {verdict.count(kind)}" for kind in kinds)
    caught_up = (
        f"{len(waits)} decided meanwhile, told {max(waits):.2f} s after" if waits else "none to catch up"
    )
    return (
        f"events {len(kept):,} of {sum(map(len, expected.values())):,}: {counts}; equal to the live sessions "
        f"after {equal_s:.2f} s; {caught_up}" + (f"; entries that Redis lost {vanished}" if vanished else "")
    )
