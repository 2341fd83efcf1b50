"""The order in which a node tells a shard, anew, how things are and what happened meanwhile."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from presence.changes import Change, Op
from presence.store.batches import Item
from protocol.constants import Code


class Parted:
    """One pass over changes, of which each shard takes its own as it needs them: O(1) for each change.

    Args:
        changes: changes of all shards.
        shard_of: the shard of a uid, from 0 to `shards` - 1.
        shards: how many shards there are.
    """

    def __init__(self, changes: Iterator[Change], shard_of: Callable[[str], int], shards: int) -> None:
        self._changes = changes
        self._shard_of = shard_of
        self._found: list[deque[Change]] = [deque() for _ in range(shards)]
        self._asked = [False] * shards

    def has(self, shard: int) -> bool:
        """Whether nobody has asked for this shard yet."""
        return not self._asked[shard]

    def of(self, shard: int) -> Iterator[Change]:
        """Return what belongs to a shard, in order; to be asked once for each shard."""
        self._asked[shard] = True
        return self._of(shard)

    def _of(self, shard: int) -> Iterator[Change]:
        found = self._found[shard]
        while True:
            while found:
                yield found.popleft()
            for change in self._changes:
                self._found[self._shard_of(change.uid)].append(change)
                if found:
                    break
            else:
                return


class Plan(NamedTuple):
    """What to send after the opening batch: first `standing`, then `replayed`.

    `covered` is not sent: updates of sessions whose registrations say how they are shown now, and of such as
    have ended, of which it does not matter.
    """

    standing: Iterator[Item]
    replayed: list[Item]
    covered: list[Item]


def plan(waiting: Iterable[Item], live: Iterable[Change], *, lost: bool, skipped_from: float) -> Plan:
    """Return what to send after the opening batch.

    First the live sessions as they stood before the waiting changes, then these in order. The sessions are
    looked at only as they are asked for: there may be a hundred thousand, and clients wait.

    Args:
        waiting: what Redis has not acknowledged, oldest first; snapshots of an earlier resync are left out.
        live: registrations of the sessions that live now, when all of `waiting` has happened.
        lost: whether Redis lost what it had acknowledged: then an end may have to tell its period whole.
        skipped_from: earliest `Change.at` that a full outbox skips, monotonic seconds; infinity if none. Who
            logged in since then came after all of `waiting`, and is left to the resync that follows it.
    """
    changes = [item for item in waiting if not item.snapshot]
    arriving = {item.change.session for item in changes if item.change.op not in (Op.END, Op.UPDATE)}
    standing = (
        Item(change, snapshot=True)
        for change in live
        if change.session not in arriving and change.at < skipped_from
    )
    covered = [
        item for item in changes if item.change.op is Op.UPDATE and item.change.session not in arriving
    ]
    return Plan(standing, list(_replay(changes, arriving, lost)), covered)


def _replay(changes: list[Item], arriving: set[str], lost: bool) -> Iterator[Item]:
    replayed = []
    ended_later: set[str] = set()
    for item in reversed(changes):
        change = item.change
        if change.op is Op.UPDATE and change.session not in arriving:
            continue  # it is covered
        if change.op is not Op.END:
            replayed.append(Item(change))  # it waited as in any outage, and its age decides
            continue
        # A replaced session was no longer in the record. Of a user's several sessions the last to end tells
        # the period: while one of them lived the user was online.
        forgotten = lost and change.session not in arriving and change.code != Code.REPLACED
        restores = item.restores or (forgotten and change.uid not in ended_later)
        replayed.append(Item(change, restores=restores))
        if forgotten:
            ended_later.add(change.uid)
    return reversed(replayed)
