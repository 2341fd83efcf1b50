"""The bounds that servers promise, and what faults add to them; the moments of a login that follow from both.

A fault excuses only what it explains. It makes doubtful who was at the place that it was done to (for a fault
of Redis: everybody), until so long after its end as the promise says. Troubles whose traces overlap count as
one.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable

from loadtest.checker import NO_CLAIM, Claim
from loadtest.servers import SWEEP_S, Setup
from presence.protocol import Code
from tests.system.chaos.plan import ChaosFaultKind, Place
from tests.system.chaos.truth import DATA_LOSSES, NODE_DEATHS, OUTAGES, ROLLBACKS, DeviceLogin, Trouble

RENEWALS_PER_LEASE = 8
HOLD_S = 10.0  # ends wait at most so long for others that begin anew
CONVERGED_S = 5.0  # promised: so soon Redis knows all who live
WINDOW_S = 0.125  # in which keepalives are gathered
REPORT_S = 1.0  # from a decision to its entry, on a machine that is busy
LOGIN_LAG_S = 1.0  # the same for a login
RECOVERY_S = 3.0  # back-off, an opening and its batches: then a node has told what it had to
BRIEF_OUTAGE_S = 1.0  # after shorter outages of Redis ends do not wait for logins elsewhere
ENTRY_ID_STEP_S = 0.001  # entry ids are whole milliseconds: an entry may be written so much later
RACE_S = 0.03  # a packet so close to a decision was in a race with it
PROXY_DELAY_S = 0.5  # the way through a proxy on a busy machine
LOSS_REPORT_S = 30.0  # within which the end of a connection is reported
UNSURE_S = 5.0  # two logins that are nearer may be taken for one another's successor
# Between two troubles of a node, in which it may have renewed nothing: a call that hung, a pause, a beat.
JOIN_S = 3.5


def survived_silence_s(setup: Setup) -> float:
    """Return how long after its last renewal a node is not declared dead."""
    return setup.lease * (1 - 1 / RENEWALS_PER_LEASE) + setup.idle_timeout


def settle_s(setup: Setup) -> float:
    """Return how long after the last fault every event has been reported."""
    return HOLD_S + setup.idle_timeout + setup.lease + setup.tick + SWEEP_S


class Troubles:
    """The faults so far."""

    def __init__(self) -> None:
        self.all: list[Trouble] = []

    def add(self, trouble: Trouble) -> None:
        self.all.append(trouble)

    def recent(self, since: float) -> list[Trouble]:
        """Return the troubles that lasted until a moment or longer."""
        return [each for each in self.all if each.end >= since]


def postponed(due: float, troubles: Iterable[Trouble], after_s: float) -> float:
    """Return when something due must have happened, with `after_s` after each trouble in its way."""
    troubles = list(troubles)
    while True:
        later = max(
            (each.end + after_s for each in troubles if each.begin <= due < each.end + after_s), default=due
        )
        if later == due:
            return due
        due = later


def _longest_gap_s(begin: float, end: float, troubles: Iterable[Trouble]) -> float:
    """Return the longest stretch of a span without any of the troubles."""
    longest, since = 0.0, begin
    for each in sorted(troubles, key=lambda each: each.begin):
        if each.end > since and each.begin < end:
            longest, since = max(longest, each.begin - since), each.end
    return max(longest, end - since)


def _overlap_s(begin: float, end: float, troubles: Iterable[Trouble]) -> float:
    """Return how much of a span lies in troubles that do not overlap."""
    return sum(max(0.0, min(end, each.end) - max(begin, each.begin)) for each in troubles)


class Bounds:
    """The times that follow from what a login did and what was done to its node."""

    def __init__(self, setup: Setup, troubles: Iterable[Trouble]) -> None:
        self._setup = setup
        self._troubles = [*troubles]
        self._away = self._matching(
            lambda each: each.kind in {ChaosFaultKind.REDIS_KILL, ChaosFaultKind.REDIS_STOP}
        )  # all the time
        self._silent = {
            place: self._disturbed_spans(place) for place in {each.place for each in self._troubles}
        }

    def _matching(self, matters: Callable[[Trouble], bool]) -> list[Trouble]:
        return [each for each in self._troubles if matters(each)]

    def last_packet_at(self, login: DeviceLogin, by: float) -> float:
        """Return when the last packet was sent that the node could surely read by a moment."""
        packets = login.packets[:]  # its own thread goes on
        if not login.is_proxied:
            at = bisect_right(packets, by - RACE_S)
            return packets[at - 1] if at else login.sent_at
        holes = self._matching(lambda each: each.scope is Place.CLIENTS and each.place == login.place)
        for packet in reversed(packets):
            if packet <= by - PROXY_DELAY_S and not any(
                each.begin - PROXY_DELAY_S <= packet <= each.end + PROXY_DELAY_S for each in holes
            ):
                return packet
        return login.sent_at

    def closed_at(self, login: DeviceLogin) -> float:
        """Return when the node may have seen the connection end, at the earliest."""
        closed = min(login.closed_at, login.lost_at)
        resets = (
            each.begin
            for each in self._matching(lambda each: each.scope is Place.CLIENTS and each.place == login.place)
            if login.is_proxied and login.sent_at <= each.end and each.begin <= closed
        )
        return min([closed, *resets])

    def alive_until(self, login: DeviceLogin, at: float) -> float:
        """Return until when nothing may end a session, as far as is known at a moment."""
        setup = self._setup
        ends = [
            self.last_packet_at(login, at) + login.idle_timeouts(setup.idle_timeout, at)[0],
            login.logout_at,
            login.banned_at,
            login.closed_at + setup.grace,
        ]
        if login.lost_at < math.inf:
            ends.append(self._lost_until(login))
        if login.abandoned_at < math.inf:  # nobody sees its connection reset
            resets = self._matching(lambda each: each.kind is ChaosFaultKind.CLIENTS_RESET)
            ends += [
                each.begin + setup.grace
                for each in resets
                if login.is_proxied and each.place == login.place and each.end >= login.sent_at
            ]
        # Taken for dead by its peers, which is right if it was out of reach for so long.
        ends += [
            begin + survived_silence_s(setup)
            for begin, end in self._silences(login.place, at)
            if end >= login.sent_at and end + CONVERGED_S > at  # by then it is back
        ]
        return min(ends)

    def _lost_until(self, login: DeviceLogin) -> float:
        setup = self._setup
        deaths = [each.begin for each in self._troubles if self._is_death(each, login)]
        if deaths and min(deaths) <= login.lost_at:
            return max(login.sent_at, min(deaths)) + survived_silence_s(setup)
        if login.code == Code.SERVER_DRAIN:
            return login.lost_at + survived_silence_s(setup)
        if login.code:
            return login.lost_at - LOGIN_LAG_S  # what speaks for the goodbye is judged by itself
        return self.closed_at(login) + setup.grace

    def _is_death(self, trouble: Trouble, login: DeviceLogin) -> bool:
        return trouble.kind in NODE_DEATHS and trouble.place == login.place and trouble.end >= login.sent_at

    def _silences(self, place: int, at: float) -> list[tuple[float, float]]:
        """Return the spans in which a node may have renewed no lease, if they are long enough for its death.

        While Redis is unreachable no node counts, so each span begins that much later, as far as that was
        before a moment.
        """
        spans = [
            (begin + _overlap_s(begin, min(end, at), self._away), end)
            for begin, end in self._silent.get(place, ())
        ]
        return [
            (begin, end)
            for begin, end in spans
            if end - begin >= survived_silence_s(self._setup) - self._setup.lease
        ]

    def _disturbed_spans(self, place: int) -> list[tuple[float, float]]:
        """Return the spans in which a node or its path was disturbed; close ones are one."""
        of_node = self._matching(lambda each: each.place == place and each.scope in {Place.NODE, Place.PATH})
        outages = self._matching(lambda each: each.kind in OUTAGES)
        spans: list[tuple[float, float]] = []
        for each in sorted(of_node, key=lambda each: each.begin):
            if spans and _longest_gap_s(spans[-1][1], each.begin, outages) <= JOIN_S:
                spans[-1] = (spans[-1][0], max(spans[-1][1], each.end))
            else:
                spans.append((each.begin, each.end))
        return spans

    def claim(self, login: DeviceLogin, at: float) -> Claim:
        """Return what speaks for a session at an offline event of its user; see the rule `false`."""
        if login.granted_at == math.inf:
            return NO_CLAIM
        alive_until = self.alive_until(login, at) - ENTRY_ID_STEP_S
        return Claim(login.granted_at + RACE_S, self._known_from(login), alive_until)

    def _known_from(self, login: DeviceLogin) -> float:
        """Return from when on no other node may report an end without regard to a login.

        During an outage of Redis no node reports anything, and afterwards ends wait for logins, unless the
        outage was brief or the login's own node was disturbed before it could report.
        """
        due = login.granted_at + LOGIN_LAG_S
        redis = self._matching(lambda each: each.scope is Place.REDIS)
        own = self._matching(
            lambda each: (
                (each.scope is Place.REDIS and not self._is_waited_for(each))
                or (each.place == login.place and each.scope in {Place.NODE, Place.PATH})
            )
        )
        known_by = postponed(due, [*redis, *own], RECOVERY_S)
        is_delayed = any(each.begin <= known_by and each.end + RECOVERY_S > login.granted_at for each in own)
        return known_by if is_delayed else due

    def _is_waited_for(self, trouble: Trouble) -> bool:
        if trouble.kind is ChaosFaultKind.FLUSH:
            return True
        if trouble.kind is ChaosFaultKind.PRIMARY_KILL:
            return False  # a node that does not call this shard meanwhile sees no more than a blink
        return trouble.kind in OUTAGES and trouble.end - trouble.begin >= BRIEF_OUTAGE_S

    def known_by(self, login: DeviceLogin, at: float, *, follows: bool) -> float:
        """Return by when Redis must know a session that lives that long, as far as is known at a moment.

        Args:
            follows: whether its user had another session at its node, whose end may be held back with what
                follows.
        """
        troubles = self._matching(
            lambda each: (
                each.scope is Place.REDIS
                or (each.place == login.place and each.scope in {Place.NODE, Place.PATH})
            )
        )
        forgot = [each.begin for each in troubles if each.kind in DATA_LOSSES and each.begin <= at]
        after_s = HOLD_S + RECOVERY_S if follows else CONVERGED_S
        return postponed(max([login.granted_at + LOGIN_LAG_S, *forgot]), troubles, after_s)

    def offline_by(self, login: DeviceLogin, at: float) -> float:
        """Return by when the stream must report a user offline who has no other login."""
        setup = self._setup
        over_at = login.gone_at
        if over_at == math.inf:
            return math.inf
        has_died = any(self._is_death(each, login) for each in self._troubles)
        # The longest that any of its ends may take; a session that nobody granted ends at once.
        last = max(login.sent_at, *login.packets[-1:], min(over_at, at))
        due = last + login.idle_timeouts(setup.idle_timeout, at)[1] + setup.tick + WINDOW_S + REPORT_S
        if has_died:
            due += setup.lease + SWEEP_S
        elif login.logout_at < math.inf and not login.is_proxied:
            due = login.logout_at + REPORT_S
        elif login.closed_at < math.inf and login.silent_at == math.inf and not login.is_proxied:
            due = min(due, login.closed_at + setup.grace + setup.tick + REPORT_S)
        matters = self._matching(lambda each: self._delays_end(each, login, has_died=has_died))
        return postponed(due, matters, settle_s(setup))

    def _delays_end(self, trouble: Trouble, login: DeviceLogin, *, has_died: bool) -> bool:
        match trouble.scope:
            case Place.REDIS:
                return True
            case Place.CLIENTS:
                return login.is_proxied and trouble.place == login.place
        return has_died or trouble.place == login.place

    # The excuses for ends, losses and goodbyes

    def is_lost_by_rollback(self, login: DeviceLogin, at: float) -> bool:
        """Whether Redis lost a login by returning to an earlier state, not long before a moment.

        The older record then takes precedence over what nodes register: the session ends with a goodbye that
        allows a return, and its user has a second event. In that window Redis itself lost what it had
        acknowledged.
        """
        return any(
            each.kind in ROLLBACKS
            and each.begin <= login.granted_at + LOGIN_LAG_S
            and login.sent_at <= each.end <= at <= each.end + HOLD_S + RECOVERY_S
            for each in self._troubles
        )

    def explains_displacement(self, login: DeviceLogin, others: Iterable[DeviceLogin], at: float) -> bool:
        """Whether a client's newest session may end, with a goodbye that allows a return.

        It may after a data loss of Redis, because registrations yield; at a node that was out of reach; or if
        another login came shortly before, and a fault may have made it the later one.
        """
        since = at - settle_s(self._setup)
        for each in self._troubles:
            if each.begin > at or each.end < since:
                continue
            if each.kind in DATA_LOSSES or (
                each.place == login.place and each.scope in {Place.NODE, Place.PATH}
            ):
                return True
            if any(is_order_unsure(other, login) and each.end >= other.sent_at for other in others):
                return True
        return False

    def explains_node_down(self, login: DeviceLogin, at: float) -> bool:
        """Whether a fault allows other nodes to end a session as node_down."""
        for each in self._troubles:
            if each.begin > at or each.end < login.sent_at:
                continue
            if each.scope is Place.REDIS:
                return True  # all begin anew, and whoever is silent then is not vouched for
            if each.place != login.place:
                continue
            if (
                each.kind in NODE_DEATHS
                and at >= each.begin + survived_silence_s(self._setup) - self._setup.tick
            ):
                return True
            if each.kind not in NODE_DEATHS and each.scope in {Place.NODE, Place.PATH}:
                return True  # fenced
        return False

    def explains_loss(self, login: DeviceLogin, at: float) -> bool:
        """Whether a fault allows a login's connection to end without a goodbye."""
        scopes = {Place.NODE, Place.CLIENTS} if login.is_proxied else {Place.NODE}
        return any(
            each.begin <= at <= each.end + LOSS_REPORT_S
            and each.place == login.place
            and each.scope in scopes
            for each in self._troubles
        )


def is_order_unsure(other: DeviceLogin, login: DeviceLogin) -> bool:
    """Whether a server may have got an earlier login after a later one."""
    is_late = (
        other.is_proxied and other.granted_at - other.sent_at > PROXY_DELAY_S
    )  # it arrived when it arrived
    return login.sent_at - other.sent_at > 0.0 and (is_late or login.sent_at - other.sent_at <= UNSURE_S)
