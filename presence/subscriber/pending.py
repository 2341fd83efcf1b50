"""What a consumer group was given and has not acknowledged: acknowledging, renewing, claiming, giving up."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from presence.redaction import redact_text
from presence.store.client import Redis, RedisError
from presence.subscriber.events import Entry, Gap, read_entry
from presence.subscriber.link import Shards, log
from presence.subscriber.membership import Membership

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

    def flush(self, client: Redis) -> None:
        """Send acknowledgements and errors. If it fails, call it again: nothing is lost or done twice."""
        if not (self._handled or self._errors):
            return
        keys, group = self._shards.keys, self._member.group
        with client.pipeline(transaction=False) as pipe:
            for entry in self._handled:
                pipe.xack(keys.events(entry.shard), group, entry.id)
                if entry.deliveries > 1:
                    pipe.hdel(keys.errors(entry.shard, group), entry.id)
            for (shard, entry_id), error in self._errors.items():
                pipe.hset(keys.errors(shard, group), entry_id, error)
            pipe.execute()
        self._handled.clear()
        self._errors.clear()

    def own(self, client: Redis, shard: int) -> list[Waiting]:
        """Return what this consumer had not acknowledged when it ended, oldest first."""
        key = self._shards.keys.events(shard)
        found: list[Waiting] = []
        begin = "-"
        while True:
            rows: Any = client.xpending_range(
                key, self._member.group, begin, "+", ROWS_PER_LOOK, consumername=self._member.consumer
            )
            found += [Waiting(shard, row["message_id"].decode()) for row in rows]
            if len(rows) < ROWS_PER_LOOK:
                return found
            begin = f"({found[-1].id}"

    def stale(self, client: Redis) -> tuple[list[Waiting], bool]:
        """Return entries whose consumer is silent, oldest first in each shard, and whether these are all."""
        keys, idle_ms = self._shards.keys, self._idle_ms
        with client.pipeline(transaction=False) as pipe:
            for shard in range(keys.shards):
                pipe.xpending_range(
                    keys.events(shard), self._member.group, "-", "+", ROWS_PER_LOOK, idle=idle_ms
                )
            answers = pipe.execute()
        found = [
            Waiting(shard, row["message_id"].decode(), idle_ms)
            for shard, rows in enumerate(answers)
            for row in rows
        ]
        return found, all(len(rows) < ROWS_PER_LOOK for rows in answers)

    def renew(self, client: Redis, held: Sequence[Entry]) -> set[tuple[int, str]]:
        """Tell Redis that these entries are not forgotten; return those that are still this consumer's.

        One that was silent for too long is left to whoever claims it: between the look and the renewal
        nobody else can then have become entitled to what is renewed.
        """
        keys, member = self._shards.keys, self._member
        with client.pipeline(transaction=False) as pipe:
            for entry in held:
                pipe.xpending_range(
                    keys.events(entry.shard),
                    member.group,
                    entry.id,
                    entry.id,
                    1,
                    consumername=member.consumer,
                )
            rows = pipe.execute()
        ours = [
            entry
            for entry, row in zip(held, rows, strict=True)
            if row and row[0]["time_since_delivered"] < self._idle_ms * 0.8
        ]
        with client.pipeline(transaction=False) as pipe:
            for shard, ids in _ids_by_shard(ours).items():
                pipe.xclaim(keys.events(shard), member.group, member.consumer, 0, ids, justid=True)
            pipe.execute()
        return {(entry.shard, entry.id) for entry in ours}

    def claim(self, client: Redis, waiting: Waiting) -> Entry | Gap | None:
        """Take an entry over, to deliver it again.

        Returns:
            The entry; a `Gap` if the stream's cap removed it before it was handled; None if somebody else
            has it by now, or if it was given up.
        """
        keys, member = self._shards.keys, self._member
        key = keys.events(waiting.shard)
        if not waiting.min_idle_ms and not self._is_ours(client, waiting):
            return None
        with client.pipeline(transaction=True) as pipe:
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
            self._forget(client, waiting)
            return Gap(waiting.shard, waiting.id, "trimmed", dropped=1)
        before = rows[0]
        deliveries = before["times_delivered"]
        if deliveries >= member.max_deliveries:
            self._give_up(
                client, read_entry(waiting.shard, present[0], deliveries), before["consumer"].decode()
            )
            return None
        return read_entry(waiting.shard, present[0], deliveries + 1)

    def _is_ours(self, client: Redis, waiting: Waiting) -> bool:
        key, member = self._shards.keys.events(waiting.shard), self._member
        rows: Any = client.xpending_range(
            key, member.group, waiting.id, waiting.id, 1, consumername=member.consumer
        )
        return bool(rows)

    def _give_up(self, client: Redis, entry: Entry, consumer: str) -> None:
        """Move the entry to the dead letters."""
        keys, group = self._shards.keys, self._member.group
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

    def _forget(self, client: Redis, waiting: Waiting) -> None:
        keys, group = self._shards.keys, self._member.group
        with client.pipeline(transaction=False) as pipe:
            pipe.xack(keys.events(waiting.shard), group, waiting.id)  # Redis 7 did so when it was claimed
            pipe.hdel(keys.errors(waiting.shard, group), waiting.id)
            pipe.execute()

    @property
    def _idle_ms(self) -> int:
        return max(1, round(self._member.claim_idle_s * 1000))


def _ids_by_shard(entries: Iterable[Entry]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for entry in entries:
        found.setdefault(entry.shard, []).append(entry.id)
    return found
