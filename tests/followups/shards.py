"""A shard as servers leave it: users come and go, and the scheduler runs when a test says so."""

from collections.abc import Iterable
from contextlib import closing
from typing import Any

from presence.config.followup_rules import Rule
from presence.followups.run_scheduler import FollowUpScheduler
from presence.store.keys import Keys
from presence.store.redis_client import Redis

SINCE_MS = 1000  # last seen, in the tests' own time; it only distinguishes offline periods


class Shard:
    """Shard 0, written by hand in the format of the server's scripts.

    Args:
        client: of an empty Redis.
        url: of the same.
        rules: the rules of each scheduler.
    """

    def __init__(self, client: Redis, url: str, rules: Iterable[Rule] | None = ()) -> None:
        self.client = client
        self.keys = Keys()
        self._url = url
        self._rules = rules if rules is None else tuple(rules)
        self._seen_ms = SINCE_MS
        client.hset(self.keys.meta, mapping={"version": 2, "shards": 1})

    @property
    def now_ms(self) -> int:
        """Redis' time."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def come_online(self, uid: str, *, has_event: bool = True) -> str:
        """Let a user come online."""
        self.client.hset(self.keys.online(0), uid, '{"id":"1-0"}')
        self.client.zrem(self.keys.seen(0), uid)
        return self._event({"type": "online", "uid": uid, "code": "1"}) if has_event else ""

    def go_offline(self, uid: str, reason: str = "idle_timeout", *, has_event: bool = True) -> str:
        """Let a user go offline; return the entry id of the event."""
        self._seen_ms += 1
        self.client.hdel(self.keys.online(0), uid)
        self.client.zadd(self.keys.seen(0), {uid: self._seen_ms})
        fields = {"type": "offline", "uid": uid, "code": "201", "reason": reason}
        return self._event({**fields, "last_seen_ms": str(self._seen_ms)}) if has_event else ""

    def _event(self, fields: dict[Any, Any]) -> str:
        entry_id: Any = self.client.xadd(self.keys.events(0), fields)
        return str(entry_id.decode())

    def scheduler(self, rules: Iterable[Rule] | None = None) -> FollowUpScheduler:
        """Return another scheduler."""
        return FollowUpScheduler(self._url, rules=self._rules if rules is None else rules, shards=1)

    def run_scheduler(self, *, times: int = 1, after_ms: int = 0) -> FollowUpScheduler:
        """Let time pass and run a new scheduler, even if another one held the shard; return it, closed.

        A millisecond passes before each run: a follow-up without delay is due a millisecond after its event.
        """
        self.pass_time(after_ms)
        with closing(self.scheduler()) as scheduler:
            for _ in range(times):
                self.pass_time(1)
                self.release_runner()
                scheduler._due.clear()
                scheduler.run_once()
                assert scheduler.failure is None
        return scheduler

    def release_runner(self) -> None:
        """Release the shard, so that any scheduler may run."""
        self.client.hdel(f"{self.keys.followup_queue(0)}:state", "runner")

    def pass_time(self, ms: int) -> None:
        """Make every planned follow-up due that much earlier, as if time had passed."""
        due = f"{self.keys.followup_queue(0)}:due"
        rows: Any = self.client.zrange(due, 0, -1, withscores=True)
        for followup_id, score in rows:
            if score != float("inf"):
                self.client.zadd(due, {followup_id: score - ms})

    def delivered(self) -> list[dict[str, str]]:
        """Return the follow-ups that were delivered: the entries of their stream."""
        entries: Any = self.client.xrange(self.keys.followups(0))
        return [{key.decode(): value.decode() for key, value in fields.items()} for _, fields in entries]

    def delivered_to(self) -> list[str]:
        """Return the users of the delivered follow-ups, in order."""
        return [fields["uid"] for fields in self.delivered()]

    def counts(self) -> dict[str, int]:
        found: Any = self.client.hgetall(f"{self.keys.followup_queue(0)}:counts")
        return {name.decode(): int(value) for name, value in found.items()}
