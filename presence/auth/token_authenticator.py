"""Authentication by tokens: whether a token is accepted, for which user, and until when.

All refusals of a token have the same short text, except where keys come from an identity provider: a token of
an unknown key may then be refused with a time to retry, because its key may be new.

A signed token cannot be guessed, but each check costs processor time, so checks have a budget: in seconds
and not in tokens, because algorithms differ. Beyond it a token is not checked, and the refusal says when to
retry. The rest of the budget is kept for clients that have more to lose: the last quarter for logged-in
clients that send a fresh token, as often as an honest one does; the quarter before it for logins from
addresses that have not sent many bad tokens recently, half of it also for passes. So a flood of forged logins
or passes starves no other user.

Times in tokens are Unix time. They are compared with the machine's clock at the moment of the check, and not
with `presence.common.clock`, which keeps any error that the machine's clock had when the process started, and
stands still while a machine is suspended. Once the machine's clock is right, tokens are checked correctly
without a restart. The expiry of a live session is monotonic time, so no step of a clock moves it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from presence.auth import tokens
from presence.auth.signing_keys import Keyring
from presence.auth.tokens import Reason, TokenRefused, TokenRules
from presence.common.rate_limit import KeyedRateLimiter, TokenBucket
from presence.core.authenticator import AuthResult, Granted, Refusal
from presence.protocol import PASS_MAX_BYTES, TOKEN_MAX_BYTES, Code

# Of one processor, for checking tokens in the long run; the rest is for connected clients.
TOKEN_CHECK_SHARE: Final = 0.5
# A burst of logins at the default `login_rate`, each checked with the most expensive algorithm.
BURST_S: Final = 4.0
BAD_TOKENS_PER_S: Final = 1.0  # of one address in the long run; beyond that, other addresses come first
BAD_TOKENS_BURST: Final = 20.0
RENEWALS_PER_S: Final = 1.0  # fresh tokens of one user; beyond that, other users come first
RENEWALS_BURST: Final = 20.0  # of all devices together
_REFUSED: Final = "the token does not prove who this is"
_MISSING: Final = "no token was given, and this server asks for one"
_UNKNOWN_KEY: Final = "this server does not have the key of the token yet"
_BUSY: Final = "this server checks no more tokens at present"


class CallerTrust(Enum):
    """How much a caller is trusted; the value is the share of `BURST_S` that is kept from it."""

    CONNECTED = 0.0
    ANONYMOUS = 0.25
    PASS = 0.375  # a logged-in client that can do without until later
    SUSPECT = 0.5  # an address that has sent many bad tokens recently, or a user who sends many fresh ones


@dataclass(slots=True)
class AuthStatistics:
    """Results of token checks, counted since the start."""

    keys: int = 0  # in use at present
    granted: int = 0  # logins
    renewed: int = 0  # fresh tokens of logged-in clients
    refused: dict[str, int] = field(default_factory=dict)  # logins, by reason
    renewals_refused: dict[str, int] = field(default_factory=dict)  # fresh tokens, by reason
    passes: int = 0  # taken
    passes_refused: dict[str, int] = field(default_factory=dict)  # by reason
    unchecked: int = 0  # logins and renewals without a check, because the budget was spent
    addresses_kept: int = 0  # tracked, because they have sent bad tokens
    addresses_forgotten: int = 0  # of these, dropped for room


class TokenAuthenticator:
    """Checks tokens; see `presence.core.authenticator.Authenticator`.

    `budget` is that of `budget_of`, `wall` the machine's clock: Unix seconds. Assign `keyring` to use new
    keys; live sessions are not checked again. `request_keys` is `KeyRotation.request`; None: an unknown key
    stays unknown.
    """

    def __init__(
        self, keyring: Keyring, rules: TokenRules, budget: TokenBucket, *, wall: Callable[[], float]
    ) -> None:
        self.keyring = keyring
        self.request_keys: Callable[[float | None], float | None] | None = None
        self._rules, self._pass_rules = rules, rules.of_passes
        self._budget = budget
        self._bad_tokens: KeyedRateLimiter[str] = KeyedRateLimiter(BAD_TOKENS_PER_S, BAD_TOKENS_BURST)
        self._renewals: KeyedRateLimiter[str] = KeyedRateLimiter(RENEWALS_PER_S, RENEWALS_BURST)
        self._wall = wall
        self._counters = AuthStatistics()

    def login(self, token: object, uid: str | None, address: str, now: float) -> AuthResult:
        trust = CallerTrust.ANONYMOUS if self._bad_tokens.has(address, now) else CallerTrust.SUSPECT
        result = self._authenticate(token, uid, trust, now, self._counters.refused)
        if isinstance(result, Granted):
            self._counters.granted += 1
        elif result.code is Code.AUTH_FAILED and address:
            self._bad_tokens.charge(address, now)
        return result

    def renewal(self, token: object, uid: str, now: float) -> AuthResult:
        """Limit renewals by user, because a reconnect renews the limit by connection."""
        trust = CallerTrust.CONNECTED if self._renewals.take(uid, now) else CallerTrust.SUSPECT
        result = self._authenticate(token, uid, trust, now, self._counters.renewals_refused)
        self._counters.renewed += isinstance(result, Granted)
        return result

    def check_pass(self, text: object, uid: str, now: float) -> AuthResult:
        """The caller limits how many passes are checked per user."""
        result = self._authenticate(
            text, uid, CallerTrust.PASS, now, self._counters.passes_refused, is_pass=True
        )
        self._counters.passes += isinstance(result, Granted)
        return result

    def statistics(self) -> AuthStatistics:
        return replace(
            self._counters,
            keys=len(self.keyring),
            unchecked=self._budget.refused,
            addresses_kept=len(self._bad_tokens),
            addresses_forgotten=self._bad_tokens.forgotten,
        )

    def _authenticate(
        self,
        token: object,
        uid: str | None,
        trust: CallerTrust,
        now: float,
        refused: dict[str, int],
        *,
        is_pass: bool = False,
    ) -> AuthResult:
        try:
            granted = self._check(token, uid, trust, now, is_pass=is_pass)
        except TokenRefused as error:
            refused[error.reason.value] = refused.get(error.reason.value, 0) + 1
            retry_after = self._request_keys(str(token)) if error.reason is Reason.UNKNOWN_KEY else None
            if retry_after is not None:
                return Refusal(Code.BUSY, _UNKNOWN_KEY, retry_after)
            return Refusal(Code.AUTH_FAILED, _MISSING if error.reason is Reason.MISSING else _REFUSED)
        return granted or Refusal(Code.BUSY, _BUSY, self._budget.retry_after())

    def _request_keys(self, token: str) -> float | None:
        if self.request_keys is None:
            return None
        issued = tokens.claimed_issue(token)
        return self.request_keys(None if issued is None else self._wall() - issued)

    def _check(
        self, text: object, uid: str | None, trust: CallerTrust, now: float, *, is_pass: bool
    ) -> Granted | None:
        """Return what a token grants, None if the budget is spent.

        Raises:
            TokenRefused: it is invalid, or another user's.
        """
        token = tokens.parse(text, self.keyring, PASS_MAX_BYTES if is_pass else TOKEN_MAX_BYTES)
        if not self._budget.take(now, token.key.cost_s, reserve=BURST_S * trust.value):
            return None
        wall = self._wall()
        claims = tokens.check(token, self._pass_rules if is_pass else self._rules, wall)
        if uid is not None and uid != claims.uid:
            raise TokenRefused(Reason.OTHER_UID, "it is another user's")
        return Granted(claims.uid, now + (claims.expires - wall), claims.sight, claims.roster, claims.rooms)


def budget_of(share: float, now: float) -> TokenBucket:
    """Return a budget of `share` seconds of processor time per second in the long run."""
    return TokenBucket(share, BURST_S, now)
