"""Dead letters: the entries that a group has given up, in a stream of their own with the last error."""

from typing import Any

from presence.common.redaction import redact_text
from presence.common.text import printable
from presence.store.shard_clients import ShardClients
from presence.subscriber.events import Entry
from presence.subscriber.redis_connections import Shards, log, unless_missing

MAX_DEAD_LETTERS = 100_000  # of each shard, roughly: some 40 MB
MAX_ERROR_CHARS = 500
_NO_ERROR_REPORTED = "its consumer died, or left the loop without a word"


class DeadLetters:
    """The dead letters of one group."""

    def __init__(self, shards: Shards, group: str) -> None:
        self._shards = shards
        self._group = group

    def add(self, clients: ShardClients, entry: Entry, consumer: str, error: str | None) -> None:
        """Move an entry that is pending for a consumer; without an error, with the one noted last.

        Do nothing if it is not pending: this was done before, and the answer was lost. Raises `RedisError`.
        """
        keys, group = self._shards.keys, self._group
        key, errors = keys.events(entry.shard), keys.errors(entry.shard, group)
        client = clients.at(key)
        with client.pipeline(transaction=False) as pipe:
            pipe.xpending_range(key, group, entry.id, entry.id, 1)
            pipe.hget(errors, entry.id)
            answers: Any = pipe.execute(raise_on_error=False)
        rows, noted = map(unless_missing, answers)
        if not rows:
            return
        if error is None:
            error = noted.decode("utf-8", "backslashreplace") if noted else _NO_ERROR_REPORTED
        error = stored_error(error)
        dead_letter: dict[Any, Any] = {
            "original_id": entry.id,
            "group": group,
            "consumer": consumer,
            "deliveries": entry.deliveries,
            "error": error,
            **entry.fields,
        }
        with client.pipeline(transaction=True) as pipe:
            pipe.xadd(keys.dead(entry.shard), dead_letter, maxlen=MAX_DEAD_LETTERS, approximate=True)
            pipe.xack(key, group, entry.id)
            pipe.hdel(errors, entry.id)
            pipe.execute()
        # A follow-up has an id of its own, with its rule and its user.
        own_id = entry.fields.get("id")
        log.error(
            "gave up %s of shard %d after %d deliveries: %s",
            f"follow-up {printable(own_id)}" if own_id else f"event {entry.id}",
            entry.shard,
            entry.deliveries,
            error,
        )


def stored_error(error: str) -> str:
    """Return an error as it is stored: without secrets, and not too long."""
    return redact_text(error)[:MAX_ERROR_CHARS]
