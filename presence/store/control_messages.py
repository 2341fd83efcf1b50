"""What operators' commands tell all nodes over their control channels, and the JSON text of it.

Questions are in `presence.store.questions`; notices to a single node, which scripts write, in
`presence.store.script_arguments`.

Tests: `tests/store/test_ban_table.py`, `tests/cli/test_forget.py`, `tests/server/test_control_listener.py`,
`tests/store/test_rebalance_orders.py`.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

# The key "type" of the messages.
_FORGOTTEN: Final = "forgotten"
_REBALANCE: Final = "rebalance"
_BANS: Final = {"banned": False, "unbanned": True}  # whether bans were lifted

# Of an order to send clients away: a node takes no other.
MAX_COMMAND_CHARS: Final = 200  # it is shown by `presence nodes --json`, and renewed with the lease
MAX_ORDERED: Final = 1_000_000
MIN_ORDER_S: Final = 1.0
MAX_ORDER_S: Final = 60.0  # so long a node goes on whose command was killed


class Erasure(NamedTuple):
    """A notice that an operator has erased users from Redis."""

    by: str  # the operator's name as the command gave it
    users: int
    uids: tuple[str, ...]  # the first of them


class BanNotice(NamedTuple):
    """A notice that an operator has banned users or addresses, or has lifted bans: the table has changed."""

    by: str  # the operator's name as the command gave it
    lifted: bool
    users: int
    uids: tuple[str, ...]  # the first of them
    addresses: tuple[str, ...] = ()  # the first of those, if the bans are of addresses


class RebalanceOrder(NamedTuple):
    """An order to a node to send clients away, so that they log in elsewhere; the next one replaces it."""

    command: str  # names a call of `presence rebalance`, with its caller; "" of a stop: whichever is obeyed
    clients: int  # how many; 0: the command stops
    over_s: float  # evenly within these seconds
    min_age_s: float  # only clients who logged in before: those that came since are not sent away again


def erasure_text(erasure: Erasure) -> str:
    """Return the control message of an erasure, for `read_erasure`."""
    return json.dumps({"type": _FORGOTTEN, **erasure._asdict()})


def read_erasure(message: Mapping[str, Any]) -> Erasure | None:
    """Return the erasure in a message; None if it is of another kind."""
    values = _read_users(message) if message.get("type") == _FORGOTTEN else None
    return None if values is None else Erasure(*values)


def ban_notice_text(notice: BanNotice) -> str:
    """Return the control message of a change of bans, for `read_ban_notice`."""
    (kind,) = (kind for kind, lifted in _BANS.items() if lifted is notice.lifted)
    message = {"type": kind, "by": notice.by, "users": notice.users, "uids": notice.uids}
    return json.dumps(message | ({"addresses": notice.addresses} if notice.addresses else {}))


def read_ban_notice(message: Mapping[str, Any]) -> BanNotice | None:
    """Return the change of bans in a message; None if it is of another kind."""
    kind = message.get("type")
    values = _read_users(message) if isinstance(kind, str) and kind in _BANS else None
    if values is None:
        return None
    addresses = message.get("addresses", [])
    if not (isinstance(addresses, list) and all(isinstance(each, str) for each in addresses)):
        return None
    return BanNotice(values[0], _BANS[str(kind)], *values[1:], tuple(addresses))


def rebalance_text(order: RebalanceOrder) -> str:
    """Return the control message of an order, for `read_rebalance`."""
    return json.dumps({"type": _REBALANCE, **order._asdict()})


def read_rebalance(message: Mapping[str, Any]) -> RebalanceOrder | None:
    """Return the order in a message; None if it is of another kind, or out of bounds."""
    if message.get("type") != _REBALANCE:
        return None
    command, clients, over_s, min_age_s = (message.get(name) for name in RebalanceOrder._fields)
    if not (isinstance(command, str) and len(command) <= MAX_COMMAND_CHARS):
        return None
    if type(clients) is not int or not 0 <= clients <= MAX_ORDERED:
        return None
    if not (isinstance(over_s, int | float) and isinstance(min_age_s, int | float)):
        return None
    is_timed = MIN_ORDER_S <= over_s <= MAX_ORDER_S and 0 <= min_age_s < math.inf
    return RebalanceOrder(command, clients, float(over_s), float(min_age_s)) if is_timed else None


def _read_users(message: Mapping[str, Any]) -> tuple[str, int, tuple[str, ...]] | None:
    """Return who has acted, on how many users, and the first of them; None if a value is missing."""
    by, users, uids = (message.get(name) for name in ("by", "users", "uids"))
    if not (isinstance(by, str) and isinstance(users, int) and isinstance(uids, list)):
        return None
    return (by, int(users), tuple(uids)) if all(isinstance(each, str) for each in uids) else None
