"""What servers may do for what was done to them: the excuses for ends, losses and goodbyes.

As for the bounds, a fault excuses only what it explains.
"""

from collections.abc import Iterable

from loadtest.chaos.bounds import HOLD_S, LOGIN_LAG_S, PROXY_S, RECOVERY_S, outlived_s, rest_s
from loadtest.chaos.plan import Place
from loadtest.chaos.truth import DEATHS, FORGETS, GOES_BACK, Login, Trouble
from loadtest.servers import Setup

LOSS_S = 30.0  # after which the end of a connection is told at the latest
UNSURE_S = 5.0  # two logins that are nearer may be taken for one another's successor


class Reasons:
    """What explains what.

    Args:
        setup: the servers' settings.
        troubles: the ones that matter, of all places.
    """

    def __init__(self, setup: Setup, troubles: Iterable[Trouble]) -> None:
        self._setup = setup
        self._troubles = [*troubles]

    def is_forgotten(self, login: Login, at: float) -> bool:
        """Whether Redis lost a login by going back to a state before it, not long before a moment.

        What the record says then is older, and goes before what nodes register: the session is given up
        with a goodbye that allows a return, and its user is told about twice. That is the window in which
        Redis itself lost what it had taken.
        """
        return any(
            each.kind in GOES_BACK
            and each.begin <= login.entered + LOGIN_LAG_S
            and login.begun <= each.end <= at <= each.end + HOLD_S + RECOVERY_S
            for each in self._troubles
        )

    def explains_displacement(self, login: Login, others: Iterable[Login], at: float) -> bool:
        """Whether a client's newest session may be given up, to return at once.

        Right is that after Redis lost data, for registrations yield; at a node that was out of reach; or if
        another login came shortly before and some trouble may have made it the later one of them.
        """
        since = at - rest_s(self._setup)
        for each in self._troubles:
            if each.begin > at or each.end < since:
                continue
            if each.kind in FORGETS or (each.place == login.place and each.scope in {Place.NODE, Place.PATH}):
                return True
            if any(_is_unsure(other, login) and each.end >= other.begun for other in others):
                return True
        return False

    def explains_node_down(self, login: Login, at: float) -> bool:
        """Whether something happened to a session's node for which others may end what it had."""
        for each in self._troubles:
            if each.begin > at or each.end < login.begun:
                continue
            if each.scope is Place.REDIS:
                return True  # all begin anew, and whoever is silent then is not vouched for
            if each.place != login.place:
                continue
            if each.kind in DEATHS and at >= each.begin + outlived_s(self._setup) - self._setup.tick:
                return True
            if each.kind not in DEATHS and each.scope in {Place.NODE, Place.PATH}:
                return True  # fenced
        return False

    def explains_loss(self, login: Login, at: float) -> bool:
        """Whether something was done for which a login's connection may end without a word."""
        for each in self._troubles:
            is_near = each.begin <= at and each.end + LOSS_S >= at and each.place == login.place
            if is_near and (each.scope is Place.NODE or (each.scope is Place.CLIENTS and login.is_proxied)):
                return True
        return False


def _is_unsure(other: Login, login: Login) -> bool:
    is_late = other.is_proxied and other.entered - other.begun > PROXY_S  # it arrived when it arrived
    return login.begun - other.begun > 0.0 and (is_late or login.begun - other.begun <= UNSURE_S)
