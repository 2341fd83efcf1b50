"""One server for all tests of a module, which use uids of their own; T is a second."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from loadtest.servers import PresenceServer
from presence.store.embedded import embedded_redis
from tests.support.events import read_events
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

T = 1.0
GRACE_S = 0.3


class QuickServer(NamedTuple):
    """A running server and its Redis."""

    process: PresenceServer
    redis_url: str

    @property
    def address(self) -> tuple[str, int]:
        return self.process.address

    def told(self, uid: str, until: int = 2, seconds: float = 5.0) -> list[str]:
        """Return a user's events, as ``offline logout``, once there are that many."""

        def events() -> list[dict[str, Any]]:
            return [e for e in read_events(self.redis_url) if e["uid"] == uid]

        wait_for(lambda: len(events()) >= until, seconds)
        return [" ".join(filter(None, (e["device"], e["type"], e["reason"]))) for e in events()]


@contextlib.contextmanager
def quick_server() -> Iterator[QuickServer]:
    """Run one for the length of a ``with`` block."""
    flags = ("--idle-timeout", str(T), "--tick", "0.1", "--disconnect-grace", str(GRACE_S))
    with embedded_redis() as redis, running_server("--redis", redis.url, *flags) as server:
        yield QuickServer(server, redis.url)
