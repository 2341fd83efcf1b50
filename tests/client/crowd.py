"""Hundreds of clients of the library in one process, and when each lost and found its server."""

import time
from collections import Counter
from dataclasses import dataclass, field

import trio

from presence.client import Connected, Disconnected, connect


@dataclass
class Member:
    """One client's story, in monotonic seconds.

    Attributes:
        online: when it came online, each time.
        lost: when it noticed, each time that it had been online, and the reason.
    """

    uid: str
    online: list[float] = field(default_factory=list)
    lost: list[tuple[float, str]] = field(default_factory=list)


class Crowd:
    """Clients `user-0` … of one server."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self.members = [Member(f"user-{number}") for number in range(count)]
        self._address = address

    async def live(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for member in self.members:
                nursery.start_soon(self._live, member)

    async def _live(self, member: Member) -> None:
        host, port = self._address
        async with connect(host, port, uid=member.uid, wait=False) as client:
            async for push in client:
                now = time.monotonic()
                if isinstance(push, Connected):
                    member.online.append(now)
                elif isinstance(push, Disconnected) and len(member.lost) < len(member.online):
                    member.lost.append((now, push.reason))

    async def until_online(self, times: int, seconds: float = 60.0) -> None:
        """Wait until each came online so many times."""
        with trio.fail_after(seconds):
            while not all(len(member.online) >= times for member in self.members):  # noqa: ASYNC110
                await trio.sleep(0.05)

    async def until_lost(self, times: int, seconds: float = 60.0) -> None:
        """Wait until each noticed so many losses."""
        with trio.fail_after(seconds):
            while not all(len(member.lost) >= times for member in self.members):  # noqa: ASYNC110
                await trio.sleep(0.05)

    def returned_after(self, begun: float) -> list[float]:
        """Return seconds from `begun` to each client's last login."""
        return [member.online[-1] - begun for member in self.members]


def histogram(seconds: list[float], width_s: float = 0.25) -> str:
    """Return how many fell into each slice of time, as text."""
    slices = Counter(int(value // width_s) for value in seconds)
    return " ".join(f"{number * width_s:g}s:{slices[number]}" for number in sorted(slices))
