"""The project's subscribers in the same chaos: a view that begins with a snapshot, and a consumer group."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from loadtest.chaos.plan import Place
from loadtest.chaos.truth import FORGETS, Trouble
from presence.subscriber import Event, Gap, Offline, Online, Snapshot, follow_sync, subscribe_sync

GROUP = "chaos"
CLAIM_IDLE_S = 5.0
AGAIN_S = 1.0
BEHIND_S = 3.0  # a reader is no further behind, unless there was trouble


class Subscribers:
    """Two threads.

    Args:
        url: of Redis, perhaps by way of a proxy.

    Attributes:
        online: who is online, by the view.
        ids: entries that the group was given, by shard and id.
        snapshots: how often the view began anew.
        gaps: what the group was told of as missing.
        again: how often the group was given an entry that it had.
        broken: in words, what a subscriber ended with.
    """

    def __init__(self, url: str) -> None:
        self.online: set[str] = set()
        self.ids: dict[tuple[int, str], float] = {}
        self.snapshots = 0
        self.gaps = 0
        self.again = 0
        self.broken: list[str] = []
        self._is_closing = threading.Event()
        self._view = follow_sync(url)
        self._group = subscribe_sync(url, group=GROUP, consumer="one", after="0", claim_idle_s=CLAIM_IDLE_S)
        runs = {"view": self._follow, "group": self._consume}
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, run), name=name, daemon=True)
            for name, run in runs.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both."""
        self._is_closing.set()
        for thread in self._threads:
            thread.join()
        self._view.close()
        self._group.close()

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        while not self._is_closing.is_set():
            try:
                run()
            except Exception as error:  # whatever ends a subscriber is to be told; a program would begin anew
                self.broken.append(f"the {name} ended: {type(error).__name__}: {error}")
                self._is_closing.wait(AGAIN_S)

    def _follow(self) -> None:
        match self._view.poll():
            case Snapshot() as snapshot:
                self.online = set(snapshot.online)
                self.snapshots += 1
            case Online() as event:
                self.online.add(event.uid)
            case Offline() as event:
                self.online.discard(event.uid)

    def _consume(self) -> None:
        event: Event | None = self._group.poll()
        if isinstance(event, Gap):
            self.gaps += 1
        elif event is not None:
            self.again += (event.shard, event.id) in self.ids
            self.ids[event.shard, event.id] = time.monotonic()


def lost_by_group(
    ids: Mapping[tuple[int, str], float],
    given: Mapping[tuple[int, str], float],
    troubles: Sequence[Trouble],
    path: int,
) -> list[tuple[int, str]]:
    """Return the entries that a group was never given, though Redis had them for long enough.

    Args:
        ids: all entries, and when each stood.
        given: to the group.
        troubles: all that was done.
        path: the number of the subscribers' path to Redis.
    """
    matter = [
        each
        for each in troubles
        if each.scope is Place.REDIS or (each.scope is Place.PATH and each.place == path)
    ]
    behind = [_behind(each, matter) for each in troubles if each.kind in FORGETS]
    return sorted(
        key
        for key, stood in [*ids.items()]  # the collector's thread goes on
        if key not in given and not any(begin <= stood <= end for begin, end in behind)
    )


def _behind(forgets: Trouble, troubles: Sequence[Trouble]) -> tuple[float, float]:
    """Return the span before Redis forgot in which a reader may not have read what was new."""
    begin = forgets.begin - BEHIND_S
    while earlier := [each.begin for each in troubles if each.begin < begin <= each.end + BEHIND_S]:
        begin = min(earlier)
    return begin, forgets.end
