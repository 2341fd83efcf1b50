"""A server's first contact with Redis: whether it is there, lets this user do its work, and has our data."""

from functools import partial
from typing import Final

import structlog
import trio

from presence.node import Node
from presence.settings import Settings
from presence.store import privileges
from presence.store.address import redacted
from presence.store.batches import StoreUnavailable

PATIENCE_S: Final = 5.0  # a Redis that loads its data is waited for; the answer is due within 10 s
RETRY_S: Final = 0.25

log = structlog.get_logger("presence.server")


async def first_contact(node: Node, redis_url: str, settings: Settings) -> None:
    """Return once the node knows its Redis.

    Raises:
        StoreUnavailable, StoreMismatch, StoreError: it is not there, not ours, or lacks rights for us.
    """
    give_up = trio.current_time() + PATIENCE_S
    told = False
    while True:
        try:
            rights = await _look_at_rights(node, redis_url, settings)
            await node.start()
        except StoreUnavailable as error:
            if trio.current_time() > give_up:
                raise
            if not told:
                log.warning("waiting for Redis", redis=redacted(redis_url), error=str(error))
                told = True
            await trio.sleep(RETRY_S)
        else:
            break
    if rights.too_much:
        log.warning("this user of Redis may do more than servers need", may=rights.too_much)
    if rights.no_events and not settings.no_admin:
        log.warning("this user of Redis may not read events", fix=rights.no_events)


async def _look_at_rights(node: Node, redis_url: str, settings: Settings) -> privileges.Rights:
    """Return what the user may do; nothing is said of our own Redis, where it may do all."""
    if settings.redis is None:
        return privileges.Rights([], "")
    followups = settings.followups is not None
    look = partial(privileges.look, redis_url, node.keys, followups=followups)
    return await trio.to_thread.run_sync(look, abandon_on_cancel=True)
