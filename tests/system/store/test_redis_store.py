"""A call of the store to a Redis that does not answer ends in time."""

import time

from presence.common.errors import StoreUnavailable
from tests.store.driving import Hand
from tests.store.servers import Server
from tests.store.test_redis_store import answer, ask


def test_a_call_is_bounded_in_time(a: Hand, server: Server) -> None:
    ask(server, "CLIENT", "PAUSE", "2500")
    started = time.monotonic()
    assert isinstance(answer(a), StoreUnavailable)
    assert 1.5 < time.monotonic() - started < 2.4
