"""The interfaces of token and certificate checks, as the server's side of the protocol uses them.

Tests: `tests/core/test_server_protocol_tokens.py`, `tests/auth/test_token_authenticator.py`.
"""

from typing import Final, NamedTuple, Protocol, TypeAlias

from presence.protocol import Code


class NamePatterns(NamedTuple):
    """Which users a token or a pass lets its user see, or which rooms it lets its client join or watch.

    Attributes:
        names: uids, or names of rooms.
        prefixes: beginnings of these; an empty one: all.
    """

    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def includes(self, name: str) -> bool:
        """Whether a name is one of these, or begins with a prefix."""
        return name in self.names or name.startswith(self.prefixes)


NO_PATTERNS: Final = NamePatterns()


class RoomClaim(NamedTuple):
    """The claim `rooms` of a token.

    Attributes:
        inside: rooms that the session is in, as the text of `presence.core.rooms`.
        join: others that its client may join, where the server asks for that.
        watch: others that its client may watch, beside all of these, where the server asks for that.
        members: whether its client is shown the members of rooms that it watches; None: it does not say.
    """

    inside: str = ""
    join: NamePatterns = NO_PATTERNS
    watch: NamePatterns = NO_PATTERNS
    members: bool | None = None


NO_ROOM_CLAIM: Final = RoomClaim()


class Granted(NamedTuple):
    """The token, the pass or the certificate is valid, or a login needs none.

    Attributes:
        uid: the user that it names.
        expires_at: monotonic seconds; infinite for a login that needs none.
        sight: whom its user may see, where the server asks for that.
        roster: the users in its claim `roster`, with a space between two.
        rooms: its claim `rooms`, where the server has rooms.
    """

    uid: str
    expires_at: float
    sight: NamePatterns = NO_PATTERNS
    roster: str = ""
    rooms: RoomClaim = NO_ROOM_CLAIM


class Refusal(NamedTuple):
    """A refused connection, login or token.

    Attributes:
        message: for the client; it does not tell what is wrong with an invalid token.
        retry_after: seconds until a retry may succeed; None: it will not, or the wait is unknown.
    """

    code: Code
    message: str
    retry_after: float | None = None


AuthResult: TypeAlias = Granted | Refusal


class Authenticator(Protocol):
    """Checks tokens; never waits."""

    def login(self, token: object, uid: str | None, address: str, now: float) -> AuthResult:
        """Check the token of a login.

        Args:
            token: as the client sent it; None without one.
            uid: the user that the client claims to be; None: the one that the token names.
            address: the client's address as limits count it.
            now: monotonic seconds.
        """

    def renewal(self, token: object, uid: str, now: float) -> AuthResult:
        """Check a new token of a client that is logged in as `uid`."""

    def check_pass(self, text: object, uid: str, now: float) -> AuthResult:
        """Check a pass of a client that is logged in as `uid`."""


class CertificateAuthenticator(Protocol):
    """Finds the user of a client certificate; never waits."""

    def login(self, certificate: bytes, uid: str | None, now: float) -> AuthResult:
        """Check whose certificate it is.

        Args:
            certificate: as DER; TLS has verified it.
            uid: the user that the client claims to be; None: the one that the certificate names.
            now: monotonic seconds.
        """
