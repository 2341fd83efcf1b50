"""What is said of a token, between whoever checks tokens and the protocol's side."""

from typing import NamedTuple, Protocol, TypeAlias

from presence.protocol import Code


class Granted(NamedTuple):
    """The token is good.

    Attributes:
        uid: who the client is.
        expires_at: until when, in monotonic seconds.
    """

    uid: str
    expires_at: float


class Denied(NamedTuple):
    """It is not, or it was not looked at.

    Attributes:
        code: `AUTH_FAILED` for whatever is wrong with it, in the same words each time, except where there is
            none; `BUSY`: not checked.
        message: for the client.
        retry_after: seconds, with `BUSY`.
    """

    code: Code
    message: str
    retry_after: float | None = None


AuthResult: TypeAlias = Granted | Denied


class Authenticator(Protocol):
    """Whoever checks tokens. Nothing here waits."""

    def login(self, token: object, uid: str | None, address: str, now: float) -> AuthResult:
        """Check the token of a login.

        Args:
            token: as the client sent it; None without one.
            uid: whom the client says to be, None if it leaves that to the token.
            address: what limits count the client's address by.
            now: monotonic seconds.
        """

    def renewal(self, token: object, uid: str, address: str, now: float) -> AuthResult:
        """Check a token that a client sends while it is logged in as `uid`."""
