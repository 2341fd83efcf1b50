"""The pending entries of one group, seen from one consumer: counting, settling, claiming, handing back.

Redis counts the deliveries of each pending entry. This package keeps that count at *one more than the calls
of a handler*: reading an entry makes it 1, and it rises by one in the moment before the entry is handed out,
in the round trip that acknowledges the entry before. So an entry that was only read ahead never counts as
delivered, whether its consumer stopped or died; and an entry that kills its process counts each time.

A consumer that stops moves its pending entries to a consumer of a fixed name, `HANDED_BACK`, as if they had
been idle for a year. Every consumer asks for the entries of that name whenever it reads new ones. Taking one
ends its idle time, so that only one consumer succeeds.

Tests: `tests/subscriber/test_settling.py`, `tests/subscriber/test_stopping.py`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from presence.store.shard_clients import ShardClients
from presence.subscriber.dead_letters import DeadLetters, stored_error
from presence.subscriber.events import Entry, Gap, Item, read_entry
from presence.subscriber.group_entries import Listed
from presence.subscriber.redis_connections import Shards, unless_missing
from presence.subscriber.source import EntryKey

MAX_PENDING_ROWS_PER_CALL = 100  # of each shard
HANDED_BACK: Final = "handed-back"  # the consumer of entries whose consumer has stopped
HANDED_BACK_IDLE_MS: Final = 365 * 86_400_000  # longer than any entry is pending, and shorter than Unix time
FREE_IDLE_MS: Final = HANDED_BACK_IDLE_MS // 2

# Moves a page of a consumer's pending entries to another consumer. Those that are no longer in the stream
# stay where they are, because XCLAIM would forget them and no consumer would learn of the gap.
# KEYS[1]: the stream. ARGV: group, consumer, the other one, idle ms, first id, size of the page, ids to keep.
# Returns the last id of the page, or false if it is the last page.
_HAND_BACK: Final = """
local stream, group, consumer, other, idle_ms, first, size = KEYS[1], unpack(ARGV, 1, 6)
local kept = {}
for place = 7, #ARGV do kept[ARGV[place]] = true end
local rows = redis.pcall('XPENDING', stream, group, first, '+', size, consumer)
if rows.err then return string.find(rows.err, 'NOGROUP') and false or rows end
local claim = {'XCLAIM', stream, group, other, 0}
local before = #claim
for _, row in ipairs(rows) do
  local id = row[1]
  if not kept[id] and #redis.call('XRANGE', stream, id, id) > 0 then claim[#claim + 1] = id end
end
if #claim > before then
  for _, word in ipairs({'IDLE', idle_ms, 'JUSTID'}) do claim[#claim + 1] = word end
  redis.call(unpack(claim))
end
return #rows == tonumber(size) and rows[#rows][1]
"""


class PendingEntries:
    """The pending entries of `group`, seen from `consumer`.

    Calls with `clients` block and raise `RedisError`.

    `ack`, `give_up` and `note_error` only queue, from any thread; `flush` sends.
    """

    def __init__(
        self, shards: Shards, group: str, consumer: str, *, claim_idle_s: float, max_deliveries: int
    ) -> None:
        self._shards = shards
        self._group = group
        self._consumer = consumer
        self._idle_ms = max(1, round(claim_idle_s * 1000))
        self._max_deliveries = max_deliveries
        self._dead_letters = DeadLetters(shards, group)
        self._acks: dict[EntryKey, Entry] = {}
        self._given_up: dict[EntryKey, tuple[Entry, str | None]] = {}  # with the error
        self._errors: dict[EntryKey, str] = {}

    # Settling

    def ack(self, entry: Entry) -> None:
        """Acknowledge the entry with the next `flush`."""
        self._acks[entry.shard, entry.id] = entry

    def give_up(self, entry: Entry, error: str | None) -> None:
        """Make the entry a dead letter with the next `flush`; without an error, with the one noted last."""
        self._given_up[entry.shard, entry.id] = entry, error

    def note_error(self, entry: Entry, error: str) -> None:
        """Store the error of an entry with the next `flush`, for a dead letter."""
        self._errors[entry.shard, entry.id] = stored_error(error)

    def flush(
        self, clients: ShardClients, handed_out: Sequence[Entry] = (), asked: Iterable[int] = ()
    ) -> set[int]:
        """Send what was queued, and count the calls of handlers that follow, in one round trip.

        If it fails, call it again: nothing is lost or done twice. What belongs to unreachable shards waits.

        Returns:
            Those of the shards `asked` where entries are to be had that were handed back.
        """
        if not (self._acks or self._errors or self._given_up or handed_out):
            return set()
        reachable = set(clients.reachable(self._shards.keys))
        acks = [entry for entry in list(self._acks.values()) if entry.shard in reachable]
        errors = [(key, error) for key, error in list(self._errors.items()) if key[0] in reachable]
        found = self._send(clients, acks, errors, handed_out, asked)
        for entry in acks:
            self._acks.pop((entry.shard, entry.id), None)
        for key, error in errors:
            if self._errors.get(key) == error:
                del self._errors[key]
        for key, (entry, final_error) in list(self._given_up.items()):
            if entry.shard in reachable:
                self._dead_letters.add(clients, entry, self._consumer, final_error)
                del self._given_up[key]
        return found

    def _send(
        self,
        clients: ShardClients,
        acks: Iterable[Entry],
        errors: Iterable[tuple[EntryKey, str]],
        handed_out: Iterable[Entry],
        asked: Iterable[int] = (),
    ) -> set[int]:
        keys, group = self._shards.keys, self._group
        commands: dict[int, list[Sequence[Any]]] = {}
        for (shard, entry_id), error in errors:
            commands.setdefault(shard, []).append(("HSET", keys.errors(shard, group), entry_id, error))
        for shard, done in _by_shard(acks).items():
            of = commands.setdefault(shard, [])
            of.append(("XACK", keys.events(shard), group, *[entry.id for entry in done]))
            if repeated := [entry.id for entry in done if entry.deliveries > 1]:
                of.append(("HDEL", keys.errors(shard, group), *repeated))
        by_count: dict[tuple[int, int], list[str]] = {}
        for entry in handed_out:
            by_count.setdefault((entry.shard, entry.deliveries + 1), []).append(entry.id)
        for (shard, count), ids in by_count.items():
            words = keys.events(shard), group, self._consumer, 0, *ids, "RETRYCOUNT", count, "JUSTID"
            commands.setdefault(shard, []).append(("XCLAIM", *words))
        handed_back = set(asked)
        for shard in handed_back:
            words = "IDLE", FREE_IDLE_MS, "-", "+", 1, HANDED_BACK
            commands.setdefault(shard, []).append(("XPENDING", keys.events(shard), group, *words))
        if not commands:
            return set()
        answers = _check(clients.exchange(keys, commands))  # of an emptied Redis: nothing is pending there
        return {shard for shard in handed_back if answers[shard][-1]}

    def uncount(self, clients: ShardClients, entries: Iterable[Entry]) -> None:
        """Take back the count of entries that were counted and not handed out."""
        self._send(clients, (), (), [each._replace(deliveries=each.deliveries - 1) for each in entries])

    # Listing

    def own(self, clients: ShardClients, after: Mapping[int, str | None]) -> list[Listed]:
        """Return this consumer's pending entries of some shards after an id, or all, oldest first in each."""
        ids = self._ids(clients, after, {"consumername": self._consumer})
        return [Listed(shard, entry_id) for shard, entry_id in ids]

    def handed_back(self, clients: ShardClients, shards: Iterable[int]) -> list[Listed]:
        """Return the entries whose consumers have stopped, oldest first in each shard."""
        of = {"consumername": HANDED_BACK, "idle": FREE_IDLE_MS}
        ids = self._ids(clients, dict.fromkeys(shards), of)
        return [Listed(shard, entry_id, FREE_IDLE_MS) for shard, entry_id in ids]

    def stale(self, clients: ShardClients) -> list[Listed]:
        """Return the entries with a silent consumer, oldest first in each shard."""
        shards = self._shards.selected(clients.reachable(self._shards.keys))
        ids = self._ids(clients, dict.fromkeys(shards), {"idle": self._idle_ms})
        return [Listed(shard, entry_id, self._idle_ms) for shard, entry_id in ids]

    def _ids(
        self, clients: ShardClients, after: Mapping[int, str | None], of: dict[str, Any]
    ) -> list[EntryKey]:
        keys = self._shards.keys
        begins = {shard: f"({entry_id}" if entry_id else "-" for shard, entry_id in after.items()}
        found: list[EntryKey] = []

        def fill(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            pipe.xpending_range(key, self._group, begins[shard], "+", MAX_PENDING_ROWS_PER_CALL, **of)

        while begins:
            pages = clients.ask(keys, begins, fill)
            begins = {}
            for shard, (rows,) in pages.items():
                found += [(shard, row["message_id"].decode()) for row in rows]
                if len(rows) == MAX_PENDING_ROWS_PER_CALL:
                    begins[shard] = f"({found[-1][1]}"
        return found

    # Keeping and claiming

    def renew(self, clients: ShardClients, kept: Collection[EntryKey]) -> set[EntryKey]:
        """Reset the idle time of these entries; return those that are still this consumer's.

        Entries of unreachable shards are kept: at worst another consumer gets them, too.
        """
        keys, group, consumer = self._shards.keys, self._group, self._consumer
        reachable = set(clients.reachable(keys))
        by_shard: dict[int, list[str]] = {}
        for shard, entry_id in kept:
            if shard in reachable:
                by_shard.setdefault(shard, []).append(entry_id)

        def look(pipe: Any, shard: int) -> None:
            key = keys.events(shard)
            for entry_id in by_shard[shard]:
                pipe.xpending_range(key, group, entry_id, entry_id, 1)
                pipe.xrange(key, entry_id, entry_id)

        def looked() -> Iterator[tuple[int, str, Any, Any]]:
            for shard, found in _check(clients.ask(keys, by_shard, look, raise_on_error=False)).items():
                for place, entry_id in enumerate(by_shard[shard]):
                    rows, present = found[2 * place : 2 * place + 2]
                    yield shard, entry_id, rows[0] if rows else None, present

        idle: dict[int, dict[int, list[Any]]] = {}  # by shard and idle time
        for shard, entry_id, row, _ in looked():
            if row and row["consumer"] == consumer.encode():
                idle.setdefault(shard, {}).setdefault(row["time_since_delivered"], []).append(entry_id)

        def renew(pipe: Any, shard: int) -> None:
            for idle_ms, ids in idle[
                shard
            ].items():  # if another has claimed it since, it was not idle so long
                pipe.xclaim(keys.events(shard), group, consumer, idle_ms, ids, justid=True)

        clients.ask(keys, idle, renew)
        kept_ids = {key for key in kept if key[0] not in reachable}
        for shard, entry_id, row, present in looked():
            # What the cap has removed meanwhile is pending no longer, but known here.
            if row["consumer"] == consumer.encode() if row else not present:
                kept_ids.add((shard, entry_id))
        return kept_ids

    def claim(self, clients: ShardClients, listed: Iterable[Listed]) -> list[Item]:
        """Take entries over, to deliver them; this does not count.

        Returns:
            The entries that this consumer has now, and a `Gap` for each that the stream's cap removed before
            it was handled. Others have another consumer by now, or have become dead letters.
        """
        free = self._free(clients, listed)

        def take(pipe: Any, shard: int) -> None:
            key = self._shards.keys.events(shard)
            for entry_id, row in free[shard].items():
                pipe.xrange(key, entry_id, entry_id)
                # If another consumer has claimed it since, it has not been idle for so long.
                idle_ms = row["time_since_delivered"]
                pipe.xclaim(key, self._group, self._consumer, idle_ms, [entry_id], justid=True)

        answers = clients.ask(self._shards.keys, free, take, is_atomic=True, raise_on_error=False)
        found: list[Item] = []
        for shard, answer in answers.items():
            for place, (entry_id, row) in enumerate(free[shard].items()):
                present, claimed = map(unless_missing, answer[2 * place : 2 * place + 2])
                if claimed is None or (present and not claimed):
                    continue
                if not present:
                    self._forget(clients, shard, entry_id)
                    found.append(Gap(shard, entry_id, "trimmed", dropped=1))
                    continue
                calls = row["times_delivered"] - 1
                entry = read_entry(shard, present[0], max(0, calls) + 1)
                if calls < self._max_deliveries:
                    found.append(entry)
                else:
                    entry = entry._replace(deliveries=calls)
                    self._dead_letters.add(clients, entry, row["consumer"].decode(), None)
        return found

    def _free(self, clients: ShardClients, listed: Iterable[Listed]) -> dict[int, dict[str, Any]]:
        """Return the rows of entries that this consumer may have, by shard and id."""
        by_shard: dict[int, list[Listed]] = {}
        for each in listed:
            by_shard.setdefault(each.shard, []).append(each)

        def query(pipe: Any, shard: int) -> None:
            for each in by_shard[shard]:
                pipe.xpending_range(self._shards.keys.events(shard), self._group, each.id, each.id, 1)

        answers = clients.ask(self._shards.keys, by_shard, query, raise_on_error=False)
        free: dict[int, dict[str, Any]] = {}
        for shard, answer in answers.items():
            for each, rows in zip(by_shard[shard], map(unless_missing, answer), strict=True):
                if rows and self._is_free(rows[0], each.min_idle_ms):
                    free.setdefault(shard, {})[each.id] = rows[0]
        return free

    def _is_free(self, row: Any, min_idle_ms: int | None) -> bool:
        # Its own, too, if the answer to a claim was lost.
        is_own = row["consumer"] == self._consumer.encode()
        return bool(is_own or (min_idle_ms is not None and row["time_since_delivered"] >= min_idle_ms))

    # Letting go

    def hand_back(
        self,
        clients: ShardClients,
        shards: Iterable[int],
        kept: Collection[EntryKey],
        delayed: Mapping[EntryKey, int],
    ) -> None:
        """Let the next reader have this consumer's pending entries.

        Args:
            clients: connections to Redis.
            shards: to hand back the entries of.
            kept: entries that stay this consumer's.
            delayed: entries that other consumers may have only after so many ms; at most `claim_idle_s`.
        """
        keys, group = self._shards.keys, self._group
        later: dict[int, list[tuple[str, int]]] = {}
        for (shard, entry_id), delay_ms in delayed.items():
            later.setdefault(shard, []).append((entry_id, max(0, self._idle_ms - delay_ms)))

        def move_delayed(pipe: Any, shard: int) -> None:
            for entry_id, idle_ms in later[shard]:
                pipe.xclaim(keys.events(shard), group, HANDED_BACK, 0, [entry_id], idle=idle_ms, justid=True)

        begins = dict.fromkeys(shards, "-")
        _check(clients.ask(keys, later.keys() & begins.keys(), move_delayed, raise_on_error=False))

        def move(pipe: Any, shard: int) -> None:
            names = group, self._consumer, HANDED_BACK
            page = HANDED_BACK_IDLE_MS, begins[shard], MAX_PENDING_ROWS_PER_CALL
            ids = (entry_id for of, entry_id in kept if of == shard)
            pipe.eval(_HAND_BACK, 1, keys.events(shard), *names, *page, *ids)

        while begins:
            answers = _check(clients.ask(keys, begins, move, raise_on_error=False))
            begins = {shard: f"({last.decode()}" for shard, (last,) in answers.items() if last}

    def _forget(self, clients: ShardClients, shard: int, entry_id: str) -> None:
        keys, group = self._shards.keys, self._group
        with clients.at(keys.events(shard)).pipeline(transaction=False) as pipe:
            pipe.xack(keys.events(shard), group, entry_id)  # Redis 7 did so when it was claimed
            pipe.hdel(keys.errors(shard, group), entry_id)
            pipe.execute()


def _check(answers: dict[int, list[Any]]) -> dict[int, list[Any]]:
    """Raise the first error among answers, except that a stream or group is missing: then it is None."""
    return {shard: list(map(unless_missing, answer)) for shard, answer in answers.items()}


def _by_shard(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.shard, []).append(entry)
    return found
