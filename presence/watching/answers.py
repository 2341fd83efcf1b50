"""How requests about users are answered: with states, or with a time to come back."""

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from presence import protocol
from presence.core import requests
from presence.core.registry import Session
from presence.protocol import Code
from presence.protocol.prepacked import pack_state, states_answer
from presence.watching.states import OFFLINE, UNKNOWN, WatchedState

MAX_CACHED_STATES: Final = 10_000  # packed, some 5 MB: many ask about the same users
RETRY_S: Final = 2.0  # on average: an outage lasts longer than a moment, and not all are to come back at once


def states_packet(id: int | None, states: Mapping[str, WatchedState]) -> bytes:
    """Return the packed answer that tells states: the same of a user, wherever they were read.

    Redis keeps of a user offline only when he was last seen, so an answer tells no more of him even where an
    event was heard that says more.
    """
    return states_answer(id, {uid: _packed(state) for uid, state in states.items()})


@lru_cache(MAX_CACHED_STATES)
def _packed(state: WatchedState) -> bytes:
    if state.status == OFFLINE:
        state = WatchedState(OFFLINE, last_seen_ms=state.last_seen_ms)
    try:
        return pack_state(state.shown())
    except protocol.EncodeError:
        return pack_state(encodable(state).shown())


def encodable(state: WatchedState) -> WatchedState:
    """Return as much of a state as a packet can tell.

    What Redis holds of one user must not spoil the answer about all others: what no packet can tell is left
    out, first what the client says of itself (`meta`), then all but that the state is unknown.
    """
    for each in (state, state._replace(meta="")):
        try:
            pack_state(each.shown())
        except protocol.EncodeError:
            continue
        return each
    return WatchedState(UNKNOWN)


def send(session: Session, packet: bytes) -> None:
    """Send what is packed already; nothing if the connection is gone."""
    if session.link is not None:
        session.link.send(session.handle, packet)


def refuse_failed(session: Session, id: int | None) -> None:
    """Refuse because of a mistake of this server."""
    requests.refuse(session, id, Code.SERVER_ERROR, "the server failed to carry this out")


def refuse_busy(session: Session, id: int | None, message: str, retry_s: float = RETRY_S) -> None:
    """Refuse for now; come back after about so many seconds."""
    retry_after = round(retry_s * random.uniform(0.5, 1.5), 2)  # noqa: S311 - spreads load, no secret
    requests.refuse(session, id, Code.BUSY, message, retry_after)
