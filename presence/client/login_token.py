"""The token of a client: which one to send, and when to ask the program for another.

The only place that knows what was asked for, sent, accepted and refused, before a login and while online:

    state    input                                                     next state
    IDLE     an attempt to log in begins, or the renewal is due        WANTED *
    WANTED   a token                                                   SENT
             none, a useless one, a time-out                           IDLE
    SENT     the server accepts or refuses it, or does not answer      IDLE
    any      the connection is lost or could not be made               IDLE

    * only if the program gave a function; else the token of the login is sent as it is.

The last token that the server has refused is not sent again, on no connection. After the refusal of a login
the next token has one try; only its own answer counts, because a connection that fails says nothing about it.

Tests: `tests/client/test_token_sources.py`, `tests/client/test_renewal.py`,
`tests/client/test_client_model.py`.
"""

import math
from enum import Enum

from presence.client.errors import CodedError, NoToken, PresenceError, RequestFailed, Unsupported
from presence.client.kept_state import PersistentState
from presence.client.pending import Effects, Result
from presence.client.reconnect import Backoff, Chance, Loss
from presence.client.tokens import ServerClock, checked_token, remaining_lifetime_s
from presence.protocol import Code

TOKEN_TIMEOUT_S = 30.0  # for the program's token function
RENEW_SHARE = 0.8  # of a token's remaining lifetime; the rest is for failing sources and servers
RENEW_JITTER = 0.1  # up to this share earlier: clients that logged in together do not renew together
MIN_RENEWAL_DELAY_S = 1.0


class _TokenState(Enum):
    IDLE = "idle"
    WANTED = "wanted"
    SENT = "sent"


class LoginToken:
    """The token of a client over all its connections.

    Args:
        persistent_state: has the token that the next login carries.
        clock: the server's; a token's expiry is read by it.
        fetches: whether the program has a token function.

    Attributes:
        due_at: while online, when to call `tick`; infinite while nothing is to be done.
    """

    def __init__(
        self, persistent_state: PersistentState, clock: ServerClock, fetches: bool, chance: Chance
    ) -> None:
        self._persistent_state = persistent_state
        self._clock = clock
        self._clock_was_set = False  # back, since the login; then it says nothing about tokens
        self._fetches = fetches
        self._chance = chance
        self._backoff = Backoff()
        self._state = _TokenState.IDLE
        self._online = False
        self._accepted = ""  # the newest one that the server has taken
        self._refused = ""  # the last one that it has refused
        self._refusal: PresenceError | None = None  # of a login, if another token is to be tried
        self.sent = ""  # the last one sent
        self.due_at = math.inf

    @property
    def wanted(self) -> bool:
        """Whether to ask the program for a token now."""
        return self._state is _TokenState.WANTED

    def begin_attempt(self, now: float) -> bool:
        """An attempt to log in begins; return whether it has to wait for the program's token."""
        if self._fetches:
            self._want(now)
        return self._fetches

    def offer(self, token: str | Exception, now: float) -> Loss | None:
        """The program returned a token, or raised; return why there is none to send, or None.

        Before a login the token is then part of it; while online it is in `sent`.
        """
        self._state = _TokenState.IDLE
        try:
            text = checked_token(token)
            if why := self._why_useless(text, now):
                return Loss("no_token", why, failure=self._refusal)
            if not self._online:
                self._persistent_state.log_in_with(token=text)
        except Exception as error:
            failure = NoToken(error)
            return Loss("no_token", str(failure), failure=failure)
        self._send(text)
        return None

    def login_sent(self) -> None:
        """The login is sent, with the token that the client has by now."""
        self._send(self._persistent_state.token or "")

    def login_refused(self, failure: PresenceError | None) -> bool:
        """The server refused the token of the login; return whether the program may have a better one.

        Only the first of two refusals in a row: if the server refuses another token too, it is not the token.
        """
        self._refuse()
        is_first = self._refusal is None
        self._refusal = failure
        return self._fetches and is_first

    def login_granted(self, now: float) -> None:
        """The server granted the login; its clock is known by now."""
        self._online, self._clock_was_set = True, False
        self.accepted(self.sent, now)

    def accepted(self, token: str, now: float) -> None:
        """The server has taken this token, in a login or an update; renew it in time."""
        self._state = _TokenState.IDLE
        self._accepted = token
        self._refusal = None
        self._backoff = Backoff()
        left_s = self._remaining_lifetime_s(token, now) if self._fetches else None
        if left_s is None:
            self.due_at = math.inf
        else:
            share = RENEW_SHARE - RENEW_JITTER * self._chance()
            self.due_at = now + max(MIN_RENEWAL_DELAY_S, left_s * share)

    def update_accepted(self, token: str, now: float) -> None:
        """The server has taken this token while online, from the program or from this."""
        left_s = self._remaining_lifetime_s(token, now)
        if left_s is not None and left_s <= 0:
            self._clock_was_set = True  # the server accepts what has expired by the time of the login
        self.accepted(token, now)

    def update_answered(self, result: Result, now: float) -> Effects:
        """The server answered the update with `sent`, or did not; `update_accepted` precedes an ok."""
        if isinstance(result, Unsupported):  # it checks no tokens
            self._state, self.due_at = _TokenState.IDLE, math.inf
        elif isinstance(result, PresenceError):
            if isinstance(result, RequestFailed) and result.code == Code.AUTH_FAILED:
                self._refuse()
            self.postpone(now, result.retry_after if isinstance(result, CodedError) else None)
        return []

    def connection_lost(self) -> None:
        """The connection is lost, or could not be made: nothing is wanted, and no answer will come."""
        self._state = _TokenState.IDLE
        self._online = False
        self.due_at = math.inf

    def tick(self, now: float) -> None:
        """While online, ask for a token when it is time; postpone if the program takes too long."""
        if now < self.due_at:
            return
        if self.wanted:
            self.postpone(now)
        else:
            self._want(now)

    def postpone(self, now: float, retry_after: float | None = None) -> None:
        """Ask the program again later."""
        self._state = _TokenState.IDLE
        self.due_at = now + MIN_RENEWAL_DELAY_S + self._backoff.next_s(self._chance, 0.0, retry_after)

    def _want(self, now: float) -> None:
        self._state, self.due_at = _TokenState.WANTED, now + TOKEN_TIMEOUT_S

    def _send(self, token: str) -> None:
        self._state, self.sent, self.due_at = _TokenState.SENT, token, math.inf

    def _refuse(self) -> None:
        self._state, self._refused = _TokenState.IDLE, self.sent

    def _why_useless(self, token: str, now: float) -> str:
        """Return why a token is not sent; "" if it may be a fresh one."""
        if token == self._refused:
            return "the token is the one that the server has refused"
        if self._online:
            return "the server has it already" if token == self._accepted else ""
        if self._refusal is not None and self._clock.time_s(now) is not None:
            left_s = remaining_lifetime_s(token, self._clock.time_s(now))
            if left_s is not None and left_s <= 0:
                return "the token has expired"
        return ""

    def _remaining_lifetime_s(self, token: str, now: float) -> float | None:
        return remaining_lifetime_s(token, None if self._clock_was_set else self._clock.time_s(now))
