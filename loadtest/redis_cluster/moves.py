"""Slots that move from one primary to another while clients go on: key by key, or all at once."""

from collections.abc import Iterable, Sequence
from typing import Final

from loadtest.redis_cluster.members import HOST, Member, agree, wait

MIGRATE_TIMEOUT_MS: Final = 5000  # for one call; keys move in milliseconds
MOVE_TIMEOUT_S: Final = 30.0


class Move:
    """A slot that moves in the classic way, step by step: `begin`, `step` until it returns 0, `finish`.

    Between `begin` and `finish` the source answers ASK for keys that it has not (any more), TRYAGAIN to who
    asks for both kinds at once; the target takes only who says ASKING.

    Args:
        slot: the slot.
        source: who serves it now.
        target: who will.
        members: all that run; each has to know where the slot is before it moves again.
    """

    def __init__(self, slot: int, source: Member, target: Member, members: Sequence[Member]) -> None:
        self.slot, self.source, self.target = slot, source, target
        self._members = members

    def begin(self) -> None:
        """Open the slot on both sides; no key moves yet."""
        self.target.call("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.name)
        self.source.call("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.name)

    def step(self, keys: int = 1) -> int:
        """Move at most so many keys; return how many were there to move."""
        names = self.source.call("CLUSTER", "GETKEYSINSLOT", self.slot, keys)
        if names:
            to = (HOST, self.target.port, "", 0, MIGRATE_TIMEOUT_MS)
            self.source.call("MIGRATE", *to, "KEYS", *names)
        return len(names)

    def finish(self) -> None:
        """Give the slot to the target; no key may be left. Return when all members know.

        A slot that goes straight back may be lost otherwise: what members still hear of the first move then
        contradicts the second, and in the end each of the two primaries takes the other for the owner.

        Raises:
            RedisError: the source still has keys.
            TimeoutError: the members do not come to agree.
        """
        others = [
            each for each in self._members if each not in (self.target, self.source) and each.is_primary
        ]
        for member in (self.target, self.source, *others):
            member.call("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.name)
        wait(lambda: agree(self._members), MOVE_TIMEOUT_S, f"all know where slot {self.slot} is")

    def run(self) -> int:
        """Move the slot from beginning to end; return how many keys it had."""
        self.begin()
        moved = 0
        while count := self.step():
            moved += count
        self.finish()
        return moved


def move_at_once(slots: Iterable[int], source: Member, target: Member) -> None:
    """Move slots as a whole (Valkey from version 9): they are the source's until all are the target's.

    Raises:
        RedisError: the server does not know how.
        TimeoutError: it does not come about in time.
        RuntimeError: the source has given up.
    """
    words = [word for slot in slots for word in (slot, slot)]
    before = {job[b"name"] for job in _jobs(source)}
    source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *words, "NODE", target.name)

    def is_done() -> bool:
        mine = [job for job in _jobs(source) if job[b"name"] not in before]
        if broken := [job for job in mine if job[b"state"] in {b"failed", b"cancelled"}]:
            raise RuntimeError(f"Redis Cluster: slots did not move: {broken}")
        return all(job[b"state"] == b"success" for job in mine)

    wait(is_done, MOVE_TIMEOUT_S, "slots moved at once")


def _jobs(member: Member) -> list[dict[bytes, bytes]]:
    """Return what a member knows of moves, old ones too."""
    answer = member.call("CLUSTER", "GETSLOTMIGRATIONS")
    return [dict(zip(job[::2], job[1::2], strict=True)) for job in answer]
