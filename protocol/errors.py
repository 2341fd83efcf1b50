"""Two types of errors, for the peer's mistakes and for ours; any other exception of this package is a bug.

Tests: `tests/protocol/test_codec.py`.
"""

from presence.protocol.constants import Code


class ProtocolError(Exception):
    """The peer violated the protocol: the only exception that input can cause.

    Attributes:
        code: the reason code for the peer: ``PROTOCOL_ERROR`` or ``TOO_LARGE``.
        message: description of the error; never contains input.
        kind: the packet's kind, if it was readable; else None.
        id: the request's id, if kind and id were readable and there was one; else None.
    """

    def __init__(self, code: Code, message: str, *, kind: int | None = None, id: int | None = None) -> None:
        super().__init__(f"{code.reason}: {message}")
        self.code = code
        self.message = message
        self.kind = kind
        self.id = id


class PresenceError(Exception):
    """Base of all errors that clients of this protocol raise."""


class EncodeError(PresenceError, ValueError):
    """A packet cannot be encoded: the mistake is on this side."""
