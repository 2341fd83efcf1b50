"""Whether a worker can serve clients, as operators and other nodes see it.

Tests: `tests/server/test_node_assembly.py`, `tests/admin/test_http.py`.
"""

from enum import Enum


class Readiness(Enum):
    """Whether a worker can serve clients, or why not."""

    STARTING = "starting"
    READY = "ready"
    REDIS_AWAY = "redis_away"  # its lease has expired; it serves clients from memory
    FENCED = "fenced"  # other nodes declared it dead; not all sessions are registered again yet
    DRAINING = "draining"

    @property
    def serves(self) -> bool:
        """Whether to send clients here. Yes without Redis, because its outage affects all nodes."""
        return self in {Readiness.READY, Readiness.REDIS_AWAY}
