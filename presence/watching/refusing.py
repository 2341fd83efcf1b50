"""How requests about users are answered: with states, or with a time to come back."""

import random
from collections.abc import Mapping
from typing import Final

import protocol
from presence import requests
from presence.registry import Session
from presence.watching.states import State
from protocol import Code

RETRY_S: Final = 2.0  # on average: an outage lasts longer than a moment, and not all are to come back at once


def answer_states(session: Session, id: int | None, states: Mapping[str, State]) -> None:
    """Answer with the states of users."""
    try:
        requests.grant(session, id, {"presence": {uid: state.shown() for uid, state in states.items()}})
    except protocol.EncodeError:  # Redis holds what no server wrote
        requests.refuse(session, id, Code.SERVER_ERROR, "a state in Redis is damaged")


def refuse_busy(session: Session, id: int | None, message: str, retry_s: float = RETRY_S) -> None:
    """Refuse for now; come back after about so many seconds."""
    retry_after = round(retry_s * random.uniform(0.5, 1.5), 2)  # noqa: S311 - spreads load, no secret
    requests.refuse(session, id, Code.BUSY, message, retry_after)
