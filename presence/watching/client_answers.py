"""Answers to requests about users: states, or a refusal with a retry time."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from presence.core.registry import Session
from presence.core.service_requests import send_error
from presence.protocol import Code, EncodeError, encode, presence
from presence.protocol.prepacked import (
    change_packet,
    join_changes,
    pack_row,
    pack_state,
    rows_answer,
    states_answer,
)
from presence.watching.user_states import HIDDEN, OFFLINE, UNKNOWN, WatchedState

MAX_CACHED_STATES: Final = 10_000  # packed, some 5 MB: many clients ask about the same users
HIDDEN_STATE: Final = WatchedState(HIDDEN)
NEVER_SEEN: Final = WatchedState(OFFLINE)  # or no longer remembered: of many users who are asked about
MAX_LAST_ROWS: Final = 100  # in a packet: 15 KiB with the longest uids
RETRY_S: Final = 2.0  # on average; randomized, so that clients do not retry together


def states_packet(
    id: int | None,
    states: Mapping[str, WatchedState],
    hidden: Iterable[str] = (),
    *,
    rows: bool = False,
    roster: int | None = None,
) -> bytes:
    """Return the packed answer with states.

    Args:
        id: of the request.
        states: by user.
        hidden: users whom the client may not see, in any case.
        rows: whether the client takes rows.
        roster: number of users in the roster that the client follows; None: it has not asked for it.
    """
    if rows:
        unseen = dict.fromkeys(hidden, HIDDEN_STATE)
        packed_rows = [
            (_row_once if state.meta and not state.devices else _row)(uid, state)
            for uid, state in {**states, **unseen}.items()
        ]
        return rows_answer(id, packed_rows, roster)
    packed = {uid: (_packed if state.devices else _packed_once)(state) for uid, state in states.items()}
    packed.update(dict.fromkeys(hidden, _packed_once(HIDDEN_STATE)))
    return states_answer(id, packed, roster)


def _packed(state: WatchedState) -> bytes:
    return pack_most(state, lambda each: pack_state(each.shown()))


def _row(uid: str, state: WatchedState) -> bytes:
    if state == NEVER_SEEN:
        return pack_row(uid)
    try:
        return pack_row(state.row(uid))
    except EncodeError:
        return pack_most(state, lambda each: pack_row(each.row(uid)))


_row_once = lru_cache(MAX_CACHED_STATES)(_row)  # those with `meta`: they are read and checked
_packed_once = lru_cache(MAX_CACHED_STATES)(_packed)  # not for devices: 10,000 states of many were 176 MB


def pack_most(state: WatchedState, pack: Callable[[WatchedState], bytes]) -> bytes:
    """Return a state as `pack` encodes it, or as much of it as that can encode.

    The record of one user must not spoil the answer about all others: what cannot be encoded is left out,
    first the `meta` of devices, then that of the user, then everything except that the state is unknown.
    """
    try:
        return pack(state)
    except EncodeError:
        pass
    bare = state.devices and tuple(each._replace(meta="") for each in state.devices)
    for each in (state._replace(devices=bare), state._replace(meta="", devices=bare)):
        try:
            return pack(each)
        except EncodeError:
            continue
    return pack(WatchedState(UNKNOWN))


def last_packets(uids: Sequence[str], code: Code, *, rows: bool) -> bytes:
    """Return the packets for a client that no longer watches some users: its last ones about them."""
    if not rows:
        return b"".join(encode(presence(uid, {"status": code.reason}, code.reason)) for uid in uids)
    packets = [change_packet(pack_row([uid, code.reason, int(code)])) for uid in uids]
    starts = range(0, len(packets), MAX_LAST_ROWS)
    return b"".join(join_changes(packets[start : start + MAX_LAST_ROWS]) for start in starts)


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
