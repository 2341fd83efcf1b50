"""How requests about users are answered: with states, or with a time to come back."""

import random
from collections.abc import Mapping
from typing import Final

import protocol
from presence import requests
from presence.registry import Session
from presence.watching.states import UNKNOWN, State
from protocol import Code

RETRY_S: Final = 2.0  # on average: an outage lasts longer than a moment, and not all are to come back at once


def states_packet(id: int | None, states: Mapping[str, State]) -> bytes:
    """Return the packed answer that tells states.

    What Redis holds of one user must not spoil the answer about all others: what no packet can tell is left
    out, first what the client says of itself (`meta`), then all but that the user's state is unknown.
    """
    try:
        return _packed(id, states)
    except protocol.EncodeError:
        return _packed(id, {uid: sound(uid, state) for uid, state in states.items()})


def _packed(id: int | None, states: Mapping[str, State]) -> bytes:
    return protocol.encode(protocol.ok(id, presence={uid: state.shown() for uid, state in states.items()}))


def sound(uid: str, state: State) -> State:
    """Return as much of a user's state as a packet can tell."""
    for each in (state, state._replace(meta="")):
        try:
            _packed(None, {uid: each})
        except protocol.EncodeError:
            continue
        return each
    return State(UNKNOWN)


def send(session: Session, packet: bytes) -> None:
    """Send what is packed already; nothing if the connection is gone."""
    if session.link is not None:
        session.link.send(session.handle, packet)


def refuse_busy(session: Session, id: int | None, message: str, retry_s: float = RETRY_S) -> None:
    """Refuse for now; come back after about so many seconds."""
    retry_after = round(retry_s * random.uniform(0.5, 1.5), 2)  # noqa: S311 - spreads load, no secret
    requests.refuse(session, id, Code.BUSY, message, retry_after)
