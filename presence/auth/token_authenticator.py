"""The gate: whether a token lets its bearer in, as whom, and until when.

Every refusal of a token is the same few words. A signed token cannot be guessed, but each check costs
processor time, so checks have a budget: seconds, not tokens, for algorithms differ. Beyond it a token is not
checked, and its sender is told when to come back. What is left of the budget goes to those who have more to
lose: the last quarter is for clients that are logged in and send a fresh token, the quarter before it for
logins from addresses that have not lately sent many bad tokens. So a flood of forged logins starves neither.

Moments in tokens are Unix time. They are compared with the machine's clock of the moment in which a token is
checked, and not with `presence.common.clock`: that one keeps for good what was wrong when the process
started, and stands still while a machine is suspended. Once the machine's clock is right, tokens are judged
rightly: it takes no restart. The end of a session that lives is monotonic time: no step of a clock moves it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from presence.auth import tokens
from presence.auth.keys import Keyring
from presence.auth.tokens import Reason, TokenRefused, TokenRules
from presence.common.rate_limit import KeyedRateLimiter, TokenBucket
from presence.core.authenticator import AuthResult, Denied, Granted
from presence.protocol import Code

# At once: as many logins as `login_burst` lets in by default, each checked with the dearest algorithm.
BURST_S: Final = 4.0
BAD_TOKENS_PER_S: Final = 1.0  # of one address in the long run; beyond, it yields to others
BAD_TOKENS_BURST: Final = 20.0
_REFUSED: Final = "the token does not prove who this is"
_MISSING: Final = "no token was given, and this server asks for one"
_BUSY: Final = "this server checks no more tokens at present"


class CallerTrust(Enum):
    """Who asks for a check; the value is the share of `BURST_S` that is kept from him."""

    CONNECTED = 0.0
    ANONYMOUS = 0.25
    SUSPECT = 0.5  # an address that has sent many bad tokens lately


@dataclass(slots=True)
class AuthStatistics:
    """What became of tokens, counted since the start.

    Attributes:
        keys: that tokens are checked with now.
        granted: logins.
        renewed: fresh tokens of those who were logged in.
        refused: logins, by reason.
        renewals_refused: by reason.
        unchecked: logins and renewals that there was no processor time for.
        addresses_kept, addresses_forgotten: that have sent bad tokens: in the table, and dropped for room.
    """

    keys: int = 0
    granted: int = 0
    renewed: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    renewals_refused: dict[str, int] = field(default_factory=dict)
    unchecked: int = 0
    addresses_kept: int = 0
    addresses_forgotten: int = 0


class TokenAuthenticator:
    """Checks tokens; see `presence.core.authenticator.Authenticator`.

    Args:
        keyring: what tokens are checked with.
        rules: what they have to satisfy.
        budget: seconds of processor time that checking may cost, see `budget_of`.
        wall: the machine's clock: Unix seconds.

    Attributes:
        keyring: as above; whoever has fresh keys puts them here. Sessions that live are not checked again.
    """

    def __init__(
        self, keyring: Keyring, rules: TokenRules, budget: TokenBucket, *, wall: Callable[[], float]
    ) -> None:
        self.keyring = keyring
        self._rules = rules
        self._budget = budget
        self._bad_tokens: KeyedRateLimiter[str] = KeyedRateLimiter(BAD_TOKENS_PER_S, BAD_TOKENS_BURST)
        self._wall = wall
        self._counters = AuthStatistics()

    def login(self, token: object, uid: str | None, address: str, now: float) -> AuthResult:
        """See `Authenticator`."""
        trust = CallerTrust.ANONYMOUS if self._bad_tokens.has(address, now) else CallerTrust.SUSPECT
        result = self._authenticate(token, uid, trust, now, self._counters.refused)
        if isinstance(result, Granted):
            self._counters.granted += 1
        elif result.code is Code.AUTH_FAILED and address:
            self._bad_tokens.charge(address, now)
        return result

    def renewal(self, token: object, uid: str, address: str, now: float) -> AuthResult:
        """See `Authenticator`. The caller is logged in, and limited to the rate of its updates."""
        result = self._authenticate(token, uid, CallerTrust.CONNECTED, now, self._counters.renewals_refused)
        self._counters.renewed += isinstance(result, Granted)
        return result

    def statistics(self) -> AuthStatistics:
        """Return the figures."""
        return replace(
            self._counters,
            keys=len(self.keyring),
            unchecked=self._budget.refused,
            addresses_kept=len(self._bad_tokens),
            addresses_forgotten=self._bad_tokens.forgotten,
        )

    def _authenticate(
        self, token: object, uid: str | None, trust: CallerTrust, now: float, refused: dict[str, int]
    ) -> AuthResult:
        try:
            granted = self._check(token, uid, trust, now)
        except TokenRefused as error:
            refused[error.reason.value] = refused.get(error.reason.value, 0) + 1
            return Denied(Code.AUTH_FAILED, _MISSING if error.reason is Reason.MISSING else _REFUSED)
        return granted or Denied(Code.BUSY, _BUSY, self._budget.retry_after())

    def _check(self, text: object, uid: str | None, trust: CallerTrust, now: float) -> Granted | None:
        """Return what a token is good for, None if there is no time to check it.

        Raises:
            TokenRefused: it does not hold, or is another user's.
        """
        token = tokens.parse(text, self.keyring)
        if not self._budget.take(now, token.key.cost_s, reserve=BURST_S * trust.value):
            return None
        wall = self._wall()
        claims = tokens.check(token, self._rules, wall)
        if uid is not None and uid != claims.uid:
            raise TokenRefused(Reason.OTHER_UID, "it is another user's")
        return Granted(claims.uid, now + (claims.expires - wall))


def budget_of(share: float, now: float) -> TokenBucket:
    """Return a budget of so many seconds of processor time a second in the long run."""
    return TokenBucket(share, BURST_S, now)
