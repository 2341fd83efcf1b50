"""The peer's errors and ours are two types; any third exception out of this package is a bug."""

from presence.protocol.constants import Code


class ProtocolError(Exception):
    """The peer sent something that the protocol forbids: the only exception that input can cause.

    Attributes:
        code: what to tell the peer: ``PROTOCOL_ERROR`` or ``TOO_LARGE``.
        message: what is wrong, in words of our own: never a piece of the input.
        kind: the packet's kind, if that much of the frame could be read; else None.
        id: the request's id, if kind and id could be read and there was one; else None.
    """

    def __init__(self, code: Code, message: str, *, kind: int | None = None, id: int | None = None) -> None:
        super().__init__(f"{code.reason}: {message}")
        self.code = code
        self.message = message
        self.kind = kind
        self.id = id


class PresenceError(Exception):
    """Base of all errors that a program meets which uses a client of this protocol."""


class EncodeError(PresenceError, ValueError):
    """A packet of our own cannot be put on the wire: the mistake is on this side."""
