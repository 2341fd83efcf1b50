"""Answers to requests about users: states, or a refusal with a retry time."""

import random
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from presence import protocol
from presence.core.registry import Session
from presence.core.service_requests import send_error
from presence.protocol import Code
from presence.protocol.prepacked import pack_state, states_answer
from presence.watching.user_states import HIDDEN, UNKNOWN, WatchedState

MAX_CACHED_STATES: Final = 10_000  # packed, some 5 MB: many clients ask about the same users
HIDDEN_STATE: Final = WatchedState(HIDDEN)
RETRY_S: Final = 2.0  # on average; randomized, so that clients do not retry together


def states_packet(id: int | None, states: Mapping[str, WatchedState], hidden: Iterable[str] = ()) -> bytes:
    """Return the packed answer with states; `hidden`: users whom the client may not see, in any case."""
    packed = {uid: (_packed if state.devices else _packed_once)(state) for uid, state in states.items()}
    packed.update(dict.fromkeys(hidden, _packed_once(HIDDEN_STATE)))
    return states_answer(id, packed)


def _packed(state: WatchedState) -> bytes:
    try:
        return pack_state(state.shown())
    except protocol.EncodeError:
        return pack_state(encodable(state).shown())


_packed_once = lru_cache(MAX_CACHED_STATES)(_packed)  # not for devices: 10,000 states of many were 176 MB


def encodable(state: WatchedState) -> WatchedState:
    """Return as much of a state as a packet can encode.

    The record of one user must not spoil the answer about all others: what cannot be encoded is left out,
    first the `meta` of devices, then that of the user, then everything except that the state is unknown.
    """
    bare = state.devices and tuple(each._replace(meta="") for each in state.devices)
    for each in (state, state._replace(devices=bare), state._replace(meta="", devices=bare)):
        try:
            pack_state(each.shown())
        except protocol.EncodeError:
            continue
        return each
    return WatchedState(UNKNOWN)


def send(session: Session, packet: bytes) -> None:
    """Send an encoded packet; do nothing if the connection is gone."""
    if session.transport is not None:
        session.transport.send(session.handle, packet)


def refuse_failed(session: Session, id: int | None) -> None:
    """Refuse because of an error in this server."""
    send_error(session, id, Code.SERVER_ERROR, "the server failed to carry this out")


def refuse_busy(session: Session, id: int | None, message: str, retry_s: float = RETRY_S) -> None:
    """Refuse for now, with a retry after about `retry_s` seconds."""
    retry_after = round(retry_s * random.uniform(0.5, 1.5), 2)  # noqa: S311 - spreads load, no secret
    send_error(session, id, Code.BUSY, message, retry_after)
