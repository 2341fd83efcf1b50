"""Keys made once for all tests; an authenticator with manual time; and one whose tokens are plain words."""

from functools import cache
from pathlib import Path
from typing import Any

from presence.auth import key_file
from presence.auth.signing_keys import Keyring
from presence.auth.token_authenticator import TokenAuthenticator, budget_of
from presence.auth.token_signer import Signer, key_set, make_key
from presence.auth.tokens import TokenRules
from presence.common.rate_limit import TokenBucket
from presence.core.authenticator import NO_ROOM_CLAIM, AuthResult, Granted, NamePatterns, Refusal, RoomClaim
from presence.protocol import Code

ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")
AUDIENCE = "presence"
WALL = 1_700_000_000.0  # Unix time at which an authenticator is made
BEGUN = 50.0  # monotonic time then
ADDRESS = "192.0.2.1"


def entry(alg: str, kid: str = "") -> dict[str, Any]:
    """Return a key with its private part; the same one on each call."""
    return _entry(alg, kid or f"key-{alg}")


@cache
def _entry(alg: str, kid: str) -> dict[str, Any]:
    return make_key(kid, alg)


@cache
def signer(alg: str) -> Signer:
    return Signer(entry(alg))


def keyring(*entries: dict[str, Any]) -> Keyring:
    return key_file.parse(key_set([*entries]).encode(), Path("keys.json"))


@cache
def every_key() -> Keyring:
    return keyring(*(entry(alg) for alg in ALGORITHMS))


def token(uid: str = "ann", alg: str = "HS256", ttl_s: float = 60.0, **claims: Any) -> str:
    """Return a token issued at `WALL`."""
    return signer(alg).token(uid, audience=AUDIENCE, now=WALL, ttl_s=ttl_s, **claims)


BOUNDLESS = TokenBucket(1.0, 1e9, 0.0)  # a budget that is never exhausted


class TimedAuthenticator:
    """A token authenticator with manual time.

    Args:
        share: see `budget_of`; None: the budget is unlimited.
        ring: its own keys; None: one of each algorithm, which tests share and must not change.
        leeway_s: see `TokenRules`.

    Attributes:
        now: monotonic seconds.
        step_s: by how much the machine's clock has been set.
    """

    def __init__(
        self,
        *,
        share: float | None = None,
        leeway_s: float = 0.0,
        ring: Keyring | None = None,
    ) -> None:
        self.now = BEGUN
        self.step_s = 0.0
        self.authenticator = TokenAuthenticator(
            ring or every_key(),
            TokenRules((AUDIENCE,), leeway_s),
            BOUNDLESS if share is None else budget_of(share, self.now),
            wall=lambda: WALL + self.now - BEGUN + self.step_s,
        )

    def login(self, text: object, uid: str | None = None, address: str = ADDRESS) -> AuthResult:
        return self.authenticator.login(text, uid, address, self.now)

    def renewal(self, text: object, uid: str = "ann") -> AuthResult:
        return self.authenticator.renewal(text, uid, self.now)

    def check_pass(self, text: object, uid: str = "ann") -> AuthResult:
        return self.authenticator.check_pass(text, uid, self.now)

    def refused(self, text: object, uid: str | None = None, address: str = ADDRESS) -> Refusal:
        result = self.login(text, uid, address)
        assert isinstance(result, Refusal), result
        return result


class WordAuthenticator:
    """Accepts ``UID:SECONDS[:UIDS[:ROSTER[:IN[:JOIN[:WATCH]]]]]`` as a token of that user, and nothing else.

    The third part is whom the user may see: uids, separated by commas. So is the roster, and so are the rooms
    that the session is in, that its client may join, and that it may watch.

    Attributes:
        addresses: the addresses of logins.
        passes: the passes that were checked.
        busy: whether all checks are refused.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.passes = 0
        self.busy = False

    def login(self, token: object, uid: str | None, address: str, now: float) -> AuthResult:
        self.addresses.append(address)
        return self._result(token, uid, now)

    def renewal(self, token: object, uid: str, now: float) -> AuthResult:
        return self._result(token, uid, now)

    def check_pass(self, text: object, uid: str, now: float) -> AuthResult:
        self.passes += 1
        return self._result(text, uid, now)

    def _result(self, token: object, uid: str | None, now: float) -> AuthResult:
        if self.busy:
            return Refusal(Code.BUSY, "busy", 2.5)
        name, seconds, see, roster, inside, join, watch, *_ = *str(token).split(":"), *[""] * 6
        if not seconds.isdigit() or uid not in (None, name):
            return Refusal(Code.AUTH_FAILED, "no")
        sight = NamePatterns(frozenset(see.split(",")))
        may_join, may_watch = (NamePatterns(frozenset(each.split(",")) - {""}) for each in (join, watch))
        rooms = RoomClaim(inside.replace(",", " "), may_join, may_watch)
        rooms = NO_ROOM_CLAIM if rooms == NO_ROOM_CLAIM else rooms
        return Granted(name, now + int(seconds), sight, roster.replace(",", " "), rooms)
