"""Shards that carry no messages at present: whoever writes to a user there is refused at once."""

from collections.abc import Iterable

import structlog

from presence.backoff import jittered
from presence.messaging.letters import Found
from presence.reach import Reach
from presence.store.batches import StoreError, StoreUnavailable
from presence.store.keys import Keys

_log = structlog.get_logger(__name__)


class Outages:
    """Shards whose last call has failed; moments are monotonic seconds.

    Args:
        keys: tells the shard of a uid.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._away: dict[int, Reach] = {}

    def forbids(self, uid: str, now: float) -> bool:
        """Whether a user's shard has failed, and is not to be asked again yet."""
        if not self._away:
            return False
        reach = self._away.get(self._keys.shard(uid))
        return reach is not None and now < reach.retry_at

    def note(
        self, answers: Iterable[tuple[str, Found | StoreUnavailable | StoreError]], begun: float, now: float
    ) -> None:
        """Learn from the answers of a call, by uid; each outage is told once, and its end."""
        asked, failed = set(), {}
        for uid, answer in answers:
            asked.add(shard := self._keys.shard(uid))
            if not isinstance(answer, Found):
                failed[shard] = answer
        were_away = bool(self._away)
        for shard in asked - failed.keys():
            self._away.pop(shard, None)
        for shard in failed:
            reach = self._away.setdefault(shard, Reach())
            reach.failed(begun, now, jittered(1.0), held_up=len(failed) < len(asked))
        if failed and not were_away:
            error = next(iter(failed.values()))
            _log.warning("messages cannot be carried", error=str(error), shards=len(failed))
        elif were_away and not self._away:
            _log.info("messages are carried again")
