"""How clients are asked to leave a stopping server: when to return, and the goodbye that says so.

Tests: `tests/server/test_serve.py`, `tests/system/end_to_end/test_serve.py`.
"""

import random
from collections.abc import Callable
from itertools import islice
from typing import Final

import structlog
import trio

from presence import protocol
from presence.config.settings import Settings
from presence.core.engine import Engine
from presence.protocol import Code

MAX_GOODBYES_PER_TURN: Final = 256
GOODBYES_PER_S: Final = 4000  # half of the rate that the transport sends without hurry
MIN_RETURN_SPREAD_S: Final = 2.0  # the shortest span over which clients are asked to return
RETURNS_PER_S: Final = 2000  # the rate that longer spans are made for

log = structlog.get_logger("presence.server.server")


def return_delays(settings: Settings, sessions: int) -> Callable[[], float]:
    """Return a function that picks the seconds after which a client may return, spread over all clients."""
    spread_s = max(MIN_RETURN_SPREAD_S, sessions / RETURNS_PER_S)
    # The user of a client that returns later than this may have gone offline already.
    limit_s = (settings.lease + settings.idle_timeout) / 2
    if spread_s > limit_s:
        log.warning("reconnect window shorter than capacity allows", spread_s=limit_s)
        spread_s = limit_s
    return lambda: round(random.uniform(0.1, spread_s), 2)  # noqa: S311 - spreads load, no secret


async def say_goodbyes(engine: Engine, return_after: Callable[[], float]) -> None:
    """Send every session a goodbye with a return time of its own, in slices between which others run."""

    def goodbye() -> bytes:
        return protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=return_after()))

    remaining = iter(list(engine.registry))
    while turn := list(islice(remaining, MAX_GOODBYES_PER_TURN)):
        engine.terminator.disconnect_all(turn, goodbye)
        await trio.lowlevel.checkpoint()
