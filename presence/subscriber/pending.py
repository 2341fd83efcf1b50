"""What a consumer group was given and has not acknowledged: acknowledging, renewing, claiming, giving up."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from presence.redaction import redact_text
from presence.store.access import Access
from presence.store.client import RedisError
from presence.subscriber.events import Entry, Gap, read_entry
from presence.subscriber.link import Shards, log
from presence.subscriber.source import Membership

ROWS_PER_LOOK = 100  # pending entries looked at in one call, of each shard
DEAD_LETTERS_MAX = 100_000  # of each shard, roughly: some 40 MB; somebody should have looked long before
ERROR_MAX_CHARS = 500
_NO_WORD = "its consumer died, or left the loop without a word"


class Waiting(NamedTuple):
    """A pending entry that is to be delivered again; `min_idle_ms` 0 where it is this consumer's own."""

    shard: int
    id: str
    min_idle_ms: int = 0


class Pending:
    """The pending entries of one group, seen from one consumer. All calls raise `RedisError`."""

    def __init__(self, shards: Shards, member: Membership) -> None:
        self._shards = shards
        self._member = member
        self._handled: list[Entry] = []
        self._errors: dict[tuple[int, str], str] = {}

    def handled(self, entry: Entry) -> None:
        """Acknowledge the entry with the next `flush`."""
        self._handled.append(entry)

    def failed(self, entry: Entry, error: str) -> None:
        """Keep with the next `flush` why the entry was not handled, for the case that it is given up."""
        self._errors[entry.shard, entry.id] = redact_text(error)[:ERROR_MAX_CHARS]

    def flush(self, access: Access) -> None:
        """Send acknowledgements and errors. If it fails, call it again: nothing is lost or done twice."""
        if not (self._handled or self._errors):
            return
        keys, group = self._shards.keys, self._member.group
        acknowledged, noted = _by_shard(self._handled), self._errors
        due = {*acknowledged, *(shard for shard, _ in noted)}.intersection(access.reachable(keys))

        def fill(pipe: Any, shard: int) -> None:
            for entry in acknowledged.get(shard, ()):
                pipe.xack(keys.events(shard), group, entry.id)
                if entry.deliveries > 1:
                    pipe.hdel(keys.errors(shard, group), entry.id)
            for (of, entry_id), error in noted.items():
                if of == shard:
                    pipe.hset(keys.errors(shard, group), entry_id, error)

        access.ask(keys, due, fill)
        self._handled = [entry for entry in self._handled if entry.shard not in due]
        self._errors = {name: error for name, error in noted.items() if name[0] not in due}

    def own(self, access: Access, shard: int, after: str | None = None) -> list[Waiting]:
        """Return what this consumer was given after an entry and has not acknowledged, oldest first."""
        key = self._shards.keys.events(shard)
        client = access.at(key)
        found: list[Waiting] = []
        begin = f"({after}" if after else "-"
        while True:
            rows: Any = client.xpending_range(
                key, self._member.group, begin, "+", ROWS_PER_LOOK, consumername=self._member.consumer
            )
            found += [Waiting(shard, row["message_id"].decode()) for row in rows]
            if len(rows) < ROWS_PER_LOOK:
                return found
            begin = f"({found[-1].id}"

    def stale(self, access: Access) -> tuple[list[Waiting], bool]:
        """Return entries whose consumer is silent, oldest first in each shard, and whether these are all."""
        keys, idle_ms = self._shards.keys, self._idle_ms

        def fill(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            pipe.xpending_range(key, self._member.group, "-", "+", ROWS_PER_LOOK, idle=idle_ms)

        answers = access.ask(keys, access.reachable(keys), fill)
        found = [
            Waiting(shard, row["message_id"].decode(), idle_ms)
            for shard, (rows,) in answers.items()
            for row in rows
        ]
        return found, all(len(rows) < ROWS_PER_LOOK for (rows,) in answers.values())

    def renew(self, access: Access, held: Sequence[Entry]) -> set[tuple[int, str]]:
        """Tell Redis that these entries are not forgotten; return those that are still this consumer's.

        One that was silent for too long is left to whoever claims it: between the look and the renewal
        nobody else can then have become entitled to what is renewed. What is held of shards that cannot be
        reached is kept: at worst another gets it too.
        """
        keys, member = self._shards.keys, self._member
        reachable = set(access.reachable(keys))
        by_shard = _by_shard(entry for entry in held if entry.shard in reachable)

        def look(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            for entry in by_shard[shard]:
                pipe.xpending_range(key, member.group, entry.id, entry.id, 1, consumername=member.consumer)

        rows = access.ask(keys, by_shard, look)
        ours = _by_shard(
            entry
            for shard, entries in by_shard.items()
            for entry, row in zip(entries, rows[shard], strict=True)
            if row and row[0]["time_since_delivered"] < self._idle_ms * 0.8
        )

        def renew(pipe: Any, shard: int) -> None:
            ids: list[Any] = [entry.id for entry in ours[shard]]
            pipe.xclaim(keys.events(shard), member.group, member.consumer, 0, ids, justid=True)

        access.ask(keys, ours, renew)
        others = (entry for entry in held if entry.shard not in reachable)
        return {(entry.shard, entry.id) for entry in (*others, *chain.from_iterable(ours.values()))}

    def claim(self, access: Access, waiting: Waiting) -> Entry | Gap | None:
        """Take an entry over, to deliver it again.

        Returns:
            The entry; a `Gap` if the stream's cap removed it before it was handled; None if somebody else
            has it by now, or if it was given up.
        """
        keys, member = self._shards.keys, self._member
        key = keys.events(waiting.shard)
        if not waiting.min_idle_ms and not self._is_ours(access, waiting):
            return None
        with access.at(key).pipeline(transaction=True) as pipe:
            pipe.xrange(key, waiting.id, waiting.id)
            pipe.xpending_range(key, member.group, waiting.id, waiting.id, 1)
            pipe.xclaim(key, member.group, member.consumer, waiting.min_idle_ms, [waiting.id])
            present, rows, claimed = pipe.execute(raise_on_error=False)
        for answer in (present, rows, claimed):
            if isinstance(answer, RedisError) and not str(answer).startswith("NOGROUP"):
                raise answer
            if isinstance(answer, RedisError):
                return None
        is_taken = not rows or rows[0]["time_since_delivered"] < waiting.min_idle_ms
        if is_taken or (present and not claimed):
            return None
        if not present:
            self._forget(access, waiting)
            return Gap(waiting.shard, waiting.id, "trimmed", dropped=1)
        before = rows[0]
        deliveries = before["times_delivered"]
        if deliveries >= member.max_deliveries:
            self._give_up(
                access, read_entry(waiting.shard, present[0], deliveries), before["consumer"].decode()
            )
            return None
        return read_entry(waiting.shard, present[0], deliveries + 1)

    def _is_ours(self, access: Access, waiting: Waiting) -> bool:
        key, member = self._shards.keys.events(waiting.shard), self._member
        rows: Any = access.at(key).xpending_range(
            key, member.group, waiting.id, waiting.id, 1, consumername=member.consumer
        )
        return bool(rows)

    def _give_up(self, access: Access, entry: Entry, consumer: str) -> None:
        """Move the entry to the dead letters."""
        keys, group = self._shards.keys, self._member.group
        client = access.at(keys.events(entry.shard))
        noted: Any = client.hget(keys.errors(entry.shard, group), entry.id)
        error = noted.decode("utf-8", "backslashreplace") if noted else _NO_WORD
        letter: dict[Any, Any] = {
            "original_id": entry.id,
            "group": group,
            "consumer": consumer,
            "deliveries": entry.deliveries,
            "error": error,
            **entry.fields,
        }
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd(keys.dead(entry.shard), letter, maxlen=DEAD_LETTERS_MAX, approximate=True)
            pipe.xack(keys.events(entry.shard), group, entry.id)
            pipe.hdel(keys.errors(entry.shard, group), entry.id)
            pipe.execute()
        log.error(
            "gave up %s of shard %d after %d deliveries: %s", entry.id, entry.shard, entry.deliveries, error
        )

    def _forget(self, access: Access, waiting: Waiting) -> None:
        keys, group = self._shards.keys, self._member.group
        with access.at(keys.events(waiting.shard)).pipeline(transaction=False) as pipe:
            pipe.xack(keys.events(waiting.shard), group, waiting.id)  # Redis 7 did so when it was claimed
            pipe.hdel(keys.errors(waiting.shard, group), waiting.id)
            pipe.execute()

    @property
    def _idle_ms(self) -> int:
        return max(1, round(self._member.claim_idle_s * 1000))


def _by_shard(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.shard, []).append(entry)
    return found
