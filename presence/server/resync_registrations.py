"""The registrations of all sessions of a shard, which the relay sends when it opens a generation there.

One pass over all sessions serves all shards that are opened in one round.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final
from weakref import ref

from presence.common.clock import Clock
from presence.core.changes import Change
from presence.core.engine import Engine
from presence.core.registry import Session
from presence.server.by_shard import ByShard
from presence.store.keys import Keys

FRESH_S: Final = 0.05  # a pass is shared for as long, unless sessions have changed


class SharedRegistrations:
    def __init__(self, engine: Engine, keys: Keys, clock: Clock) -> None:
        self._engine = engine
        self._keys = keys
        self._clock = clock
        # The latest pass; a weak reference, so that it lives only as long as a reader holds it.
        self._pass: Callable[[], ByShard[Session] | None] = lambda: None
        self._began_at = -math.inf
        self._version = -1  # of the registry, when it began

    def of_shard(self, shard: int) -> Iterable[Change]:
        """Return the registrations of a shard's sessions."""
        now, version = self._clock.now(), self._engine.registry.version
        shared = self._pass()
        stale = version != self._version or now - self._began_at > FRESH_S
        if shared is None or stale or not shared.is_untaken(shard):
            sessions = iter([*self._engine.registry])
            shared = ByShard(sessions, lambda session: self._keys.shard(session.uid), self._keys.shards)
            self._pass = ref(shared)
            self._began_at, self._version = now, version
        return self._engine.registration.registrations(shared.items_of(shard))
