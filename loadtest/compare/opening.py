"""Techniques by name, ready to be played."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from loadtest.compare.in_loop import Service, TrioDeadlines
from loadtest.compare.in_process import Heap, Nothing, RearmedHeap, Wheel
from loadtest.compare.in_redis import WheelInRedis, rescheduled
from loadtest.compare.technique import NOTHING, Technique
from presence.timers.service import open_timer_service


@asynccontextmanager
async def opened(kind: str, timeout_s: float, url: str) -> AsyncIterator[Technique]:
    """Give a technique, for the length of an ``async with`` block.

    Args:
        kind: a key of `technique.NAMES`, or `technique.NOTHING`.
        timeout_s: T.
        url: of a Redis, for those that need one.

    Raises:
        ValueError: there is no such kind.
    """
    async with trio.open_nursery() as nursery:
        match kind:
            case "wheel":
                yield Wheel(timeout_s, time.monotonic())
            case "heap":
                yield Heap(timeout_s)
            case "rearmed":
                yield RearmedHeap(timeout_s)
            case "trio":
                yield TrioDeadlines(timeout_s, nursery)
            case "redis-wheel":
                yield WheelInRedis(timeout_s, url)
            case "queue" | "ring" | "expiry":
                with rescheduled(kind, timeout_s, url) as technique:
                    yield technique
            case "service":
                async with open_timer_service() as timers:
                    yield Service(timeout_s, timers)
            case _ if kind == NOTHING:
                yield Nothing()
            case _:
                raise ValueError(f"no such technique: {kind}")
        nursery.cancel_scope.cancel()
