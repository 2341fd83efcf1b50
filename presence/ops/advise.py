"""Which idle time-out and grace would have spared users a short absence, from the streams of events.

A user who goes offline and is back within seconds had hardly left. Each offline event is followed for a
minute: the user's next online event ends the absence, and the silence behind it is the idle time-out that
would have bridged it. Events do not have the idle time-out of a session; one that ended by it was silent for
so long, and up to a tick longer, so it is known in steps.

A pass over the streams, which are only read: O(entries) of time, and memory for the users who are awaited
(`MAX_AWAITED`) and for counts.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from presence.protocol import Code
from presence.reader import PresenceReader
from presence.store.shard_clients import ShardClients

WITHIN_S: Final = (5, 30, 60)
"""Users are counted who are back within so many seconds; none is awaited for longer than the last."""

SPARED_SHARE: Final = 0.9  # of those who came back within a minute
ENTRIES_PER_PAGE: Final = 1000  # some 200 KB, in 1.3 ms of Redis' time
MAX_AWAITED: Final = 200_000  # users, some 300 bytes each: 3,000 per second go offline
MAX_GROUPS: Final = 100  # reasons and idle time-outs; what is beyond counts without its idle time-out
MAX_SILENCE_S: Final = 86_400  # longer ones count as this: a bound on the counts of damaged entries
TIMEOUT_STEP_S: Final = 5  # idle time-outs are known to this, those below 10 s to a second

Progress = Callable[[int, int], object]
"""Called with the number of entries read so far, and the approximate total."""


class _Absence(NamedTuple):
    """A user who has gone offline, and may come back."""

    group: "Absences"
    at_ms: int  # of the offline event
    last_seen_ms: int  # of the last packet


@dataclass(slots=True)
class Absences:
    """Offline events of one reason, and of one idle time-out if that was the reason."""

    code: int
    idle_timeout_s: int | None
    offline: int = 0
    away_ds: Counter[int] = field(default_factory=Counter)  # of those who came back, 0.1 s; at most a minute
    silences_s: Counter[int] = field(default_factory=Counter)  # theirs, from the last packet to the return

    def returned(self, within_s: float) -> int:
        """Return how many were back within that time."""
        return sum(count for away_ds, count in self.away_ds.items() if away_ds <= within_s * 10)

    def end(self, absence: _Absence, at_ms: int) -> None:
        """Count the return of a user."""
        away_ms = max(0, at_ms - absence.at_ms)
        self.away_ds[math.ceil(away_ms / 100)] += 1
        self.silences_s[min(MAX_SILENCE_S, math.ceil((at_ms - absence.last_seen_ms) / 1000))] += 1


class Tally:
    """Absences of the users of one or several shards, one shard after the other.

    Args:
        until_ms: the present, Unix milliseconds: who went offline within the last minute before it may still
            come back, and is left out.
    """

    def __init__(self, until_ms: int) -> None:
        self._decided_ms = until_ms - 1000 * WITHIN_S[-1]
        self._awaited: dict[bytes, _Absence] = {}  # by uid; the longest absence first
        self.groups: dict[tuple[int, int | None], Absences] = {}
        self.undecided = 0  # users who went offline within the last minute
        self.gaps = 0  # entries that report missing events
        self.forgotten = 0  # users beyond `MAX_AWAITED`, counted as not returned
        self.unreadable = 0  # entries

    def most_frequent(self) -> list[Absences]:
        """Return all groups, that with the most absences first."""
        return sorted(self.groups.values(), key=lambda each: -each.offline)

    def begin_shard(self) -> None:
        """Begin with the first entry of another shard, which has other users."""
        self._awaited.clear()

    def add(self, fields: Mapping[bytes, bytes]) -> None:
        """Count the next entry of the shard."""
        kind = fields.get(b"type")
        try:
            if kind == b"offline":
                self._add_offline(fields[b"uid"], fields)
            elif kind == b"online" and (absence := self._awaited.pop(fields[b"uid"], None)):
                at_ms = int(fields[b"at_ms"])
                if at_ms - absence.at_ms <= 1000 * WITHIN_S[-1]:
                    absence.group.end(absence, at_ms)
            elif kind == b"gap":
                self.gaps += 1
                self._awaited.clear()
        except (KeyError, ValueError):
            self.unreadable += 1

    def _add_offline(self, uid: bytes, fields: Mapping[bytes, bytes]) -> None:
        code, at_ms = int(fields[b"code"]), int(fields[b"at_ms"])
        last_seen_ms = int(fields.get(b"last_seen_ms", at_ms))
        if at_ms > self._decided_ms:
            self.undecided += 1
            return
        group = self._group(code, (at_ms - last_seen_ms) // 1000)
        group.offline += 1
        self._awaited.pop(uid, None)
        self._drop_returned_late(at_ms)
        self._awaited[uid] = _Absence(group, at_ms, last_seen_ms)

    def _group(self, code: int, silence_s: int) -> Absences:
        idle_timeout_s = None
        if code == Code.IDLE_TIMEOUT:
            step_s = TIMEOUT_STEP_S if silence_s >= 2 * TIMEOUT_STEP_S else 1
            idle_timeout_s = silence_s // step_s * step_s
        if (code, idle_timeout_s) not in self.groups and len(self.groups) >= MAX_GROUPS:
            idle_timeout_s = None
        return self.groups.setdefault((code, idle_timeout_s), Absences(code, idle_timeout_s))

    def _drop_returned_late(self, now_ms: int) -> None:
        """Drop the users who are not back within a minute; events are nearly in the order of their times."""
        awaited = self._awaited
        while awaited:
            uid = next(iter(awaited))
            if now_ms - awaited[uid].at_ms <= 1000 * WITHIN_S[-1]:
                if len(awaited) < MAX_AWAITED:
                    return
                self.forgotten += 1
            del awaited[uid]


class Adviser:
    """Reads the streams; calls block.

    Nothing is sent before the first one.

    Raises:
        ValueError: the URL is invalid.
    """

    def __init__(self, url: str, *, prefix: str = "presence") -> None:
        self._reader = PresenceReader(url, prefix=prefix)
        self._access = ShardClients(url)

    def advise(self, last_s: float, progress: Progress = lambda _read, _total: None) -> dict[str, Any]:
        """Return the absences of the last `last_s` seconds, as plain data for JSON.

        It is ``{asked_from_ms, from_ms, to_ms, entries, gaps, undecided, forgotten, unreadable,
        disconnect_grace_s, absences}``. `from_ms`: of the first entry, where the streams begin later than
        asked; of several shards the latest. For `gaps` to `unreadable` see `Tally`; `disconnect_grace_s`: the
        setting of the live nodes, if they share one. `absences` are rows, the most frequent first:
        ``{code, reason, idle_timeout_s, offline, returned, spare}``. `returned`: seconds as text to the
        number of users who were back by then. `spare`: what would have spared 90 % of those who were back
        within a minute, ``{setting, more_s, seconds, idle_timeout_s}``; None if no setting would, or there
        are none. `seconds`: the value of the setting, None if the present one is unknown; `idle_timeout_s`:
        the least that a longer grace needs.

        Raises:
            RedisError: Redis does not answer.
            ValueError: Redis does not hold data of a presence server.
        """
        keys = self._reader.keys()
        now: Any = self._access.at(keys.meta).time()
        until_ms = now[0] * 1000 + now[1] // 1000
        asked_ms = max(0, until_ms - round(last_s * 1000))
        tally, begins_ms, read = Tally(until_ms), asked_ms, 0
        streams = [keys.events(shard) for shard in range(keys.shards)]
        total = sum(self._length(key) for key in streams)
        for key in streams:
            tally.begin_shard()
            begin = str(asked_ms)
            while page := self._page(key, begin, until_ms):
                if begin == str(asked_ms):
                    begins_ms = max(begins_ms, _ms_of(page[0][0]))
                for _, fields in page:
                    tally.add(fields)
                read += len(page)
                progress(read, total)
                begin = f"({page[-1][0].decode()}"
        grace_s = self._disconnect_grace_s()
        return {
            "asked_from_ms": asked_ms,
            "from_ms": begins_ms,
            "to_ms": until_ms,
            "entries": read,
            "gaps": tally.gaps,
            "undecided": tally.undecided,
            "forgotten": tally.forgotten,
            "unreadable": tally.unreadable,
            "disconnect_grace_s": grace_s,
            "absences": [
                _report(each, grace_s)
                for each in sorted(tally.groups.values(), key=lambda each: -each.offline)
            ],
        }

    def _length(self, key: str) -> int:
        return int(self._access.read(lambda clients: clients.at(key).xlen(key)))

    def _page(self, key: str, begin: str, until_ms: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        def read(clients: ShardClients) -> Any:
            return clients.at(key).xrange(key, begin, str(until_ms), count=ENTRIES_PER_PAGE)

        found: list[tuple[bytes, dict[bytes, bytes]]] = self._access.read(read)
        return found

    def _disconnect_grace_s(self) -> float | None:
        """Return the setting of the live nodes; None if they have none, or several."""
        alive = [node for node in self._reader.nodes() if node.status == "alive"]
        found = {node.setting("disconnect_grace") for node in alive}
        return found.pop() if len(found) == 1 else None

    def close(self) -> None:
        self._reader.close()
        self._access.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _report(absences: Absences, grace_s: float | None) -> dict[str, Any]:
    known = absences.code in list(Code)
    return {
        "code": absences.code,
        "reason": Code(absences.code).reason if known else "",
        "idle_timeout_s": absences.idle_timeout_s,
        "offline": absences.offline,
        "returned": {str(within_s): absences.returned(within_s) for within_s in WITHIN_S},
        "spare": _spare(absences, grace_s) if known and absences.away_ds else None,
    }


def _spare(absences: Absences, grace_s: float | None) -> dict[str, Any] | None:
    """Return what would have spared most of the absences that ended."""
    code = Code(absences.code)
    idle_timeout_s = share_below(absences.silences_s, SPARED_SHARE)
    seconds: int | None = idle_timeout_s
    more_s = math.ceil(share_below(absences.away_ds, SPARED_SHARE) / 10)
    if code is Code.IDLE_TIMEOUT:
        setting = "idle_timeout"
    elif code.reconnect and code is not Code.NODE_DOWN:
        setting = "disconnect_grace"
        seconds = None if grace_s is None else math.ceil(grace_s + more_s)
    else:
        return None  # the client left, or must not come back; or its node had died
    return {"setting": setting, "more_s": more_s, "seconds": seconds, "idle_timeout_s": idle_timeout_s}


def share_below(counts: Counter[int], share: float) -> int:
    """Return the least value that is not below so many of the counted ones, which are not none."""
    wanted, seen = share * counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    raise ValueError("nothing is counted")


def _ms_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])
