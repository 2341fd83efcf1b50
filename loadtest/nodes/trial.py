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
from loadtest.scale.reader import GAP, Reader
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
        loses: whether Redis loses all that it had; what was told before is gone then.
        windows: times between which Redis took writes that it lost later, monotonic seconds. How users who
            did something then are told of is counted, and must only be alternate.
        watch_url: where a subscriber finds it; "": as the nodes do.
    """

    records: Records
    url: str
    strike: Callable[[float], None]
    proof: Callable[[Sequence[Serving], float], str]
    due: Due = field(default_factory=lambda: DUE)
    loses: bool = False
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
    parts = groups(users)
    with (
        make() as fault,
        running([lambda: Serving(fault.url, "--workers", str(NODES), *setup.flags)]) as (server,),
        contextlib.closing(Reader(fault.watch_url or fault.url)) as reader,
        Crowd([server.address], "user", users, beat_s=setup.beat_s) as crowd,
        ThreadPoolExecutor(1) as beside,
    ):
        records, keys = fault.records, setup.keys()
        enter(records, setup, crowd, parts, len(parts.before))
        struck = beside.submit(_strike, fault, setup, crowd, seconds)
        live_through(crowd, parts, story_s)
        back, equal_s = struck.result()
        say(f"{name}: over, and equal after {equal_s:.2f} s")
        expected = expectations(crowd, parts, fault.due)
        may_miss = bool(fault.loses or fault.windows)
        wait_told(lambda: records.events(keys) if may_miss else [*reader.events], expected, setup)
        excused = _did_something_in(fault.windows, crowd)
        broken = left_over(*records.compare(keys, crowd.live()))
        broken += lost(crowd, parts, excused)
        seen, kept = [*reader.events], records.events(keys)
        proof = fault.proof([server], seconds)
    verdict, loss = weigh(fault, expected, seen, kept, excused)
    waits = [event.read - back for event in seen if reader.clock.latest(event.at_ms) < back < event.read]
    caught_up_s = max(waits, default=0.0)
    broken += [each for each in reader.broken if not (may_miss and each.startswith(GAP))]
    broken += [*verdict.broken, *server.failures()]
    broken += [f"caught up after {caught_up_s:.1f} s"] if caught_up_s > CAUGHT_UP_S else []
    broken += [f"equal only after {equal_s:.1f} s"] if equal_s > EQUAL_S else []
    return Outcome(name, proof, _figures(verdict, expected, kept, equal_s, waits, loss), broken)


@dataclass(frozen=True)
class Loss:
    """What Redis itself lost: entries that were read and are gone, users who did something that it forgot.

    Attributes:
        entries: how many.
        users: how many.
        wrong: what was told wrong of these users, by its words.
    """

    entries: int
    users: int
    wrong: Verdict

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} x {what}" for what, count in sorted(self.wrong.wrong.items()))
        return f"Redis lost {self.entries} entries, and doings of {self.users} users ({kinds or 'none seen'})"


def weigh(
    fault: Fault,
    expected: Expected,
    seen: Sequence[Event],
    kept: Sequence[Event],
    excused: set[str],
) -> tuple[Verdict, Loss | None]:
    """Judge the events; return what was wrong, and what Redis lost, None if it was to lose nothing.

    Args:
        fault: what was done.
        expected: everybody who was there.
        seen: what a subscriber read all the time.
        kept: what stands in the streams in the end.
        excused: who did something in the fault's windows.
    """
    stands = {(event.uid, event.id) for event in kept}
    vanished = [event for event in seen if (event.uid, event.id) not in stands]
    if fault.loses:
        return judge(expected, kept), Loss(len(vanished), len(expected), Verdict())
    if not fault.windows:
        verdict = judge(expected, seen)
        for event in vanished:
            verdict.note("event that Redis has no more", event)
        return verdict, None
    touched = excused | {event.uid for event in vanished}
    strict = {uid: due for uid, due in expected.items() if uid not in touched}
    verdict = judge(strict, [event for event in kept if event.uid not in touched])
    judge_order(verdict, touched, kept)
    wrong = judge({uid: expected[uid] for uid in touched}, [event for event in kept if event.uid in touched])
    return verdict, Loss(len(vanished), len(touched), wrong)


def _did_something_in(windows: Sequence[tuple[float, float]], crowd: Crowd) -> set[str]:
    """Return who logged in then; what else happened then is in the entries that are gone."""
    return {
        crowd.uid(number)
        for number, logins in enumerate(crowd.diary.logins)
        if any(begin <= login <= end for login in logins for begin, end in windows)
    }


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
