"""The authenticator of a fuzzed session: the real one, with known keys and tokens made with them."""

import base64
import hashlib
from typing import Any, Final, NamedTuple

import jwt

from presence.auth.issuing import make_token
from presence.auth.key_file import key_of
from presence.auth.keys import Keyring
from presence.auth.token_authenticator import BURST_S, CallerTrust, TokenAuthenticator, budget_of
from presence.auth.tokens import TokenRules
from presence.common.clock import Clock
from presence.core import token_expiry
from presence.core.authenticator import AuthResult, Granted

WALL_S: Final = 1_700_000_000.0  # Unix time at which each run begins
AUDIENCE: Final = "presence"
UIDS: Final = ("ada", "bob", "eve")
CHECKS_LEFT: Final = 1  # that an anonymous client is granted when the budget is nearly exhausted

# An hour of slots takes milliseconds to make, and no run is that long.
vars(token_expiry)["REACH_SLOTS"] = 12


class Made(NamedTuple):
    """The parts of a token: the key's name, the user, and its expiry in Unix seconds."""

    kid: str
    uid: str
    ends: float


def _key(kid: str, secret: str) -> dict[str, Any]:
    digest = hashlib.sha256(secret.encode()).digest()
    k = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return {"kid": kid, "alg": "HS256", "kty": "oct", "k": k}


_OLD: Final = _key("old", "old")
_NEW: Final = _key("new", "new")
KEYRINGS: Final = tuple(
    Keyring(key_of(entry) for entry in entries) for entries in ([_OLD], [_OLD, _NEW], [_NEW])
)


def _token(key: dict[str, Any], uid: str, seconds: float, audience: str = AUDIENCE, **claims: Any) -> str:
    ends = {} if seconds > 0 else {"exp": WALL_S + seconds}
    return make_token(key, uid, audience=audience, now=WALL_S, ttl_s=max(1, seconds), **ends, **claims)


GOOD: Final = {
    _token(key, uid, seconds): Made(key["kid"], uid, WALL_S + seconds)
    for key in (_OLD, _NEW)
    for uid in UIDS
    for seconds in (3, 10, 40)
}
"""Tokens that are to be let in while they last, and while their key is there; no other is, ever."""

_HEADS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("HS256", {}),
    ("HS384", {"kid": "old"}),
    ("HS256", {"kid": "old", "crit": ["exp"]}),
)
_SIGNED, _, _SIGNATURE = next(iter(GOOD)).rpartition(".")
_BAD: Final = (
    _token(_OLD, "ada", 40, audience="elsewhere"),
    _token(_OLD, "ada", 0),
    _token(_OLD, "ada", 10**6, nbf=WALL_S + 10**5),
    _token(_OLD, "a b", 40),
    _token(_OLD, "ada", 40, exp="soon"),
    _token(_key("old", "another's"), "ada", 40),
    _token(_key("stolen", "old"), "ada", 40),
    f"{_SIGNED}.{_SIGNATURE[::-1]}",
    f"{_SIGNED}.",
    *(jwt.encode({"sub": "ada"}, "k" * 48, alg, head) for alg, head in _HEADS),
    "ada",
)
TOKENS: Final = (*GOOD, *_BAD)


class RecordingAuthenticator(TokenAuthenticator):
    """Records its last grant."""

    granted: Granted | None = None

    def login(self, token: object, uid: str | None, address: str, now: float) -> AuthResult:
        return self._recorded(super().login(token, uid, address, now))

    def renewal(self, token: object, uid: str, now: float) -> AuthResult:
        return self._recorded(super().renewal(token, uid, now))

    def _recorded(self, result: AuthResult) -> AuthResult:
        if isinstance(result, Granted):
            self.granted = result
        return result


def make_authenticator(clock: Clock, *, is_poor: bool) -> RecordingAuthenticator:
    """Return the authenticator of a run.

    Args:
        clock: the clock of the run.
        is_poor: whether the budget for checks is nearly exhausted.
    """
    budget = budget_of(1e-9, clock.now())
    if is_poor:
        spent = BURST_S * (1 - CallerTrust.ANONYMOUS.value) - (CHECKS_LEFT + 0.5) * _cost_s()
        assert budget.take(clock.now(), spent)
    return RecordingAuthenticator(
        KEYRINGS[0], TokenRules((AUDIENCE,)), budget, wall=lambda: clock.seen_ms(clock.now()) / 1000
    )


def _cost_s() -> float:
    return max(key.cost_s for ring in KEYRINGS for key in ring._keys.values())


def is_good(token: object, uid: str | None, authenticator: TokenAuthenticator, wall: float) -> bool:
    """Whether a token has to be accepted, as `uid` if that is given."""
    made = GOOD.get(token) if isinstance(token, str) else None
    return (
        made is not None
        and made.kid in authenticator.keyring.kids
        and wall < made.ends
        and uid in (None, made.uid)
    )
