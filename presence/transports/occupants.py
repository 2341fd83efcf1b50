"""Whose a descriptor of the epoll transport is, when it is neither a guest's nor a session's any more."""

from typing import TypeAlias

from presence.registry import Peer


class Closing:
    """A connection that was hung up.

    Attributes:
        farewell: what is to be said before the sending side is shut; None once it was.
        drained: bytes that were read since, and dropped.
        shut: whether the sending side is.
    """

    __slots__ = ("drained", "farewell", "shut")

    def __init__(self, farewell: bytes | bytearray) -> None:
        self.farewell: bytes | bytearray | None = farewell
        self.drained = 0
        self.shut = False


Occupant: TypeAlias = Peer | Closing | None
