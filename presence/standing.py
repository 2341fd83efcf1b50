"""When a session's time is up, as things stand at one moment: what is told of it to operators."""

from typing import NamedTuple


class Standing(NamedTuple):
    """Where a session stands in wheel and tables; times are monotonic seconds.

    Attributes:
        slot: the wheel's absolute slot in which it is due; None: its time is up, and it ends in this moment.
        hand: the last slot that was swept to its end.
        slot_s: seconds that a slot covers.
        due_at: when its slot begins; None without one.
        away_at: when it is away by itself, if nothing but keepalives comes; None: never.
        token_ends_at: when its token ends, to the step of that table; None without a token.
        vouched: whether Redis is told that it lives, see `presence.vouching`.
    """

    slot: int | None
    hand: int
    slot_s: float
    due_at: float | None
    away_at: float | None
    token_ends_at: float | None
    vouched: bool


class Connected(NamedTuple):
    """What a transport tells of a connection.

    Attributes:
        transport: ``plain``, ``tls`` or ``stream``.
        address: what limits count the client's address by, see `presence.networks.client_of`; "": none.
        unsent_bytes: what waits for a reader who is slow.
    """

    transport: str
    address: str
    unsent_bytes: int
