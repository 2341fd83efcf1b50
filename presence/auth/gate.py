"""The gate: whether a token lets its bearer in, as whom, and until when.

Every refusal of a token is the same few words, and takes the same work as far as a stranger could learn from
it: what names an unknown key is checked with a decoy (`presence.auth.keys`), and nobody asks who exists. What
a check costs is charged to a budget (`presence.auth.effort`); who is refused often is answered late
(`presence.auth.guesses`).

Moments in tokens are Unix time. They are compared with the machine's clock of the moment in which a token is
checked, and not with `presence.clock`: that one keeps for good what was wrong when the process started, and
stands still while a machine is suspended. Once the machine's clock is right, tokens are judged rightly: it
takes no restart. The end of a session that lives is monotonic time: no step of a clock moves it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from presence.auth import key_file, tokens
from presence.auth.effort import Caller, Effort
from presence.auth.guesses import Guesses, GuessStatistics
from presence.auth.keys import Keyring
from presence.auth.tokens import Reason, Terms, TokenRefused
from presence.auth.verdicts import Denied, Granted, Verdict
from presence.clock import Clock
from presence.settings import Settings
from protocol import Code

HOLDING_SHARE: Final = 20  # one in so many connections may be one whose refusal is held
_REFUSED: Final = "the token does not prove who this is"
_MISSING: Final = "no token was given, and this server asks for one"
_BUSY: Final = "this server checks no more tokens at present"


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """What became of tokens, counted since the start.

    Attributes:
        keys: that tokens are checked with now.
        granted: logins.
        renewed: fresh tokens of those who were logged in.
        refused: logins, by reason.
        renewals_refused: by reason.
        unchecked: logins and renewals that there was no processor time for.
        guesses: see `GuessStatistics`.
    """

    keys: int
    granted: int
    renewed: int
    refused: dict[str, int]
    renewals_refused: dict[str, int]
    unchecked: int
    guesses: GuessStatistics


class TokenGate:
    """Checks tokens; see `presence.auth.verdicts.Gate`.

    Args:
        keyring: what tokens are checked with.
        terms: what they have to satisfy.
        effort: what checking may cost.
        guesses: who is answered late.
        clock: monotonic time.
        wall: the machine's clock: Unix seconds.

    Attributes:
        keyring: as above; whoever has fresh keys puts them here. Sessions that live are not checked again.
    """

    def __init__(
        self,
        keyring: Keyring,
        terms: Terms,
        effort: Effort,
        guesses: Guesses,
        clock: Clock,
        *,
        wall: Callable[[], float],
    ) -> None:
        self.keyring = keyring
        self._terms = terms
        self._effort = effort
        self._guesses = guesses
        self._clock = clock
        self._wall = wall
        self._granted = self._renewed = 0
        self._refused: dict[str, int] = {}
        self._renewals_refused: dict[str, int] = {}

    def login(self, token: object, uid: str | None, address: str, now: float) -> Verdict:
        """See `Gate`."""
        caller = Caller.GUESSER if self._guesses.is_over(address, now) else Caller.STRANGER
        try:
            granted = self._check(token, uid, caller, now)
        except TokenRefused as error:
            _count(self._refused, error.reason)
            claimed = tokens.claimed_uid(token) if uid is None else uid
            message = _MISSING if error.reason is Reason.MISSING else _REFUSED
            return Denied(Code.AUTH_FAILED, message, hold_s=self._guesses.refused(address, claimed, now))
        if granted is None:
            return self._busy()
        self._granted += 1
        return granted

    def renewal(self, token: object, uid: str, address: str, now: float) -> Verdict:
        """See `Gate`. Who may ask so has proved who he is, and may do it as often as he may send updates."""
        try:
            granted = self._check(token, uid, Caller.CONNECTED, now)
        except TokenRefused as error:
            _count(self._renewals_refused, error.reason)
            return Denied(Code.AUTH_FAILED, _REFUSED)
        if granted is None:
            return self._busy()
        self._renewed += 1
        return granted

    def statistics(self) -> GateStatistics:
        """Return the figures."""
        return GateStatistics(
            len(self.keyring),
            self._granted,
            self._renewed,
            dict(self._refused),
            dict(self._renewals_refused),
            self._effort.refused,
            self._guesses.statistics(self._clock.now()),
        )

    def _check(self, text: object, uid: str | None, caller: Caller, now: float) -> Granted | None:
        """Return what a token is good for, None if there is no time to check it.

        Raises:
            TokenRefused: it does not hold, or is another user's.
        """
        token = tokens.parse(text, self.keyring)
        if not self._effort.take(token.key.cost_s, caller, now):
            return None
        wall = self._wall()
        claims = tokens.check(token, self._terms, wall)
        if uid is not None and uid != claims.uid:
            raise TokenRefused(Reason.OTHER_UID, "it is another user's")
        return Granted(claims.uid, now + (claims.expires - wall))

    def _busy(self) -> Denied:
        return Denied(Code.BUSY, _BUSY, self._effort.retry_after())


def from_settings(
    settings: Settings, clock: Clock, wall: Callable[[], float], max_connections: int
) -> TokenGate | None:
    """Return the gate that the settings ask for; None where anybody is who he says.

    Args:
        settings: checked settings.
        clock: monotonic time.
        wall: the machine's clock: Unix seconds.
        max_connections: connections at once.

    Raises:
        KeyFileError: the file of the keys cannot be used.
    """
    if settings.token_keys is None:
        return None
    holding_max = max(1, max_connections // HOLDING_SHARE)
    return TokenGate(
        key_file.load(settings.token_keys),
        Terms(settings.token_audience, settings.token_leeway),
        Effort(settings.token_check_share, clock.now()),
        Guesses(settings.guess_rate, settings.guess_burst, settings.guess_delay, holding_max=holding_max),
        clock,
        wall=wall,
    )


def _count(counters: dict[str, int], reason: Reason) -> None:
    counters[reason.value] = counters.get(reason.value, 0) + 1
