"""Made-up clients, faults and events: what the judge of a run must find, and what it must excuse."""

from collections.abc import Callable

import pytest

from loadtest.events import StreamEvent
from loadtest.servers import Setup
from presence.protocol import Code
from tests.system.chaos.bounds import Troubles
from tests.system.chaos.judge import ChaosJudge
from tests.system.chaos.plan import ChaosFaultKind
from tests.system.chaos.truth import DataLoss, DeviceLogin, Trouble, User

SETUP = Setup(idle_timeout=5.0, lease=2.0, tick=0.5, grace=1.5)


class Case:
    """One user, ann, and a judge."""

    def __init__(self) -> None:
        self.user = User("ann")
        self.troubles = Troubles()
        self.judge = ChaosJudge({"ann": self.user}, self.troubles, SETUP)
        self._ids = 0

    def login(
        self, session: str, at: float, until: float, *, place: int = 0, is_proxied: bool = False
    ) -> DeviceLogin:
        """Let ann log in, and send keepalives each 2 s until a moment."""
        login = DeviceLogin(place, is_proxied, at, at + 0.01, session)
        beat = at
        while beat <= until:
            login.record_packet(beat)
            beat += 2.0
        self.user.logins.append(login)
        return login

    def hush(self, at: float) -> None:
        """Let ann send nothing more."""
        login = self.user.logins[-1]
        login.silent_at = at
        while login.packets[-1] > at:
            login.packets.pop()

    def trouble(self, kind: ChaosFaultKind, begin: float, end: float, place: int = 0) -> None:
        self.troubles.add(Trouble(kind, place, begin, end))

    def online(self, session: str, at: float) -> None:
        self._take("online", session, at, Code.LOGIN, "")

    def offline(self, session: str, at: float, code: Code, decided: float | None = None) -> None:
        self._take("offline", session, at, code, self.judge.periods.online.get("ann", "-"), decided)

    def _take(
        self, kind: str, session: str, at: float, code: Code, since_id: str, decided: float | None = None
    ) -> None:
        self._ids += 1
        moment = at if decided is None else decided
        fields = {
            **{"type": kind, "uid": "ann", "device": "", "code": str(int(code)), "since_id": since_id},
            **{"since_ms": "1", "at_ms": "2", "last_seen_ms": "2", "status": "away", "status_ms": "2"},
        }
        if kind in {"online", "offline"}:
            del fields["status"]
        event = StreamEvent(
            *(f"{self._ids}-0", kind, "ann", session, code, 2, since_id, at, at, (moment, moment)),
            node="node-a",
            fields=fields,
        )
        self.judge.judge_items([event], at)

    def away(self, session: str, at: float) -> None:
        self._take("away", session, at, Code.AWAY, self.judge.periods.online.get("ann", "-"))

    @property
    def rules(self) -> list[str]:
        return [finding.broken.rule for finding in self.judge.findings]


@pytest.fixture
def case() -> Case:
    case = Case()
    case.login("s1", 100.0, until=120.0)
    case.online("s1", 100.1)
    return case


def test_a_silence_that_is_told_in_time_is_right(case: Case) -> None:
    case.hush(120.5)
    case.offline("s1", 125.4, Code.IDLE_TIMEOUT)
    case.judge.check_users(140.0)
    assert case.rules == []
    assert case.judge.expected == {"gone": 1}


def test_an_end_before_the_time_out_is_early(case: Case) -> None:
    case.hush(120.5)
    case.offline("s1", 124.9, Code.IDLE_TIMEOUT)
    assert "early" in case.rules


def test_an_end_of_one_who_beats_is_early_and_false(case: Case) -> None:
    case.offline("s1", 115.0, Code.IDLE_TIMEOUT)
    assert case.rules == ["early", "false"]


def test_a_silence_that_is_never_told_is_late(case: Case) -> None:
    case.hush(120.5)
    case.judge.check_users(126.0)
    assert case.rules == []
    case.judge.check_users(130.0)
    assert case.rules == ["late"]


def test_an_outage_excuses_who_is_late_until_all_has_come_to_rest(case: Case) -> None:
    case.hush(120.5)
    case.trouble(ChaosFaultKind.REDIS_STOP, 124.0, 128.0)
    case.judge.check_users(140.0)
    assert case.rules == []
    case.judge.check_users(160.0)
    assert case.rules == ["late"]


def test_one_who_lives_and_is_not_online_is_missing(case: Case) -> None:
    case.judge.judge_items([DataLoss(None, 105.0)], 105.0)
    case.judge.check_users(110.0)
    assert case.rules == ["missing"]


def test_a_flush_excuses_who_is_missing_for_a_while(case: Case) -> None:
    case.trouble(ChaosFaultKind.FLUSH, 105.0, 105.0)
    case.judge.judge_items([DataLoss(None, 105.0)], 105.0)
    case.judge.check_users(109.0)
    assert case.rules == []
    case.judge.check_users(111.0)
    assert case.rules == ["missing"]


def test_a_late_end_of_a_session_left_behind_is_false(case: Case) -> None:
    case.hush(110.5)
    case.login("s2", 111.0, until=130.0, place=1)
    case.offline("s1", 116.0, Code.IDLE_TIMEOUT)
    assert case.rules == ["false"]


def test_an_end_that_is_told_when_a_later_session_is_over_too_is_not_false(case: Case) -> None:
    case.hush(106.0)
    case.login("s2", 108.0, until=114.0, place=1)
    case.login("s3", 114.5, until=115.0, place=2).logout_at = 115.2
    case.offline("s1", 116.0, Code.IDLE_TIMEOUT, decided=112.0)
    assert case.rules == []


def test_a_later_session_that_lives_excuses_no_end(case: Case) -> None:
    case.hush(106.0)
    case.login("s2", 108.0, until=114.0, place=1)
    case.login("s3", 114.5, until=120.0, place=2)
    case.offline("s1", 116.0, Code.IDLE_TIMEOUT, decided=112.0)
    assert case.rules == ["false"]


def test_a_node_that_cannot_tell_of_a_login_excuses_that(case: Case) -> None:
    case.hush(110.5)
    case.login("s2", 111.0, until=130.0, place=1)
    case.trouble(ChaosFaultKind.PATH_HOLE, 110.9, 115.0, place=1)
    case.offline("s1", 116.0, Code.IDLE_TIMEOUT)
    assert case.rules == []


def test_an_outage_of_redis_does_not_excuse_it_for_ends_wait_then(case: Case) -> None:
    case.hush(110.5)
    case.login("s2", 111.0, until=130.0, place=1)
    case.trouble(ChaosFaultKind.REDIS_STOP, 110.9, 115.5)
    case.offline("s1", 116.0, Code.IDLE_TIMEOUT, decided=115.6)
    assert case.rules == ["false"]


def test_node_down_needs_a_reason(case: Case) -> None:
    case.offline("s1", 115.0, Code.NODE_DOWN)
    assert case.rules == ["unfounded", "false"]


def test_a_node_that_was_stopped_for_long_is_taken_for_dead(case: Case) -> None:
    case.trouble(ChaosFaultKind.STOP_LONG, 103.0, 114.0)
    case.offline("s1", 110.5, Code.NODE_DOWN)
    assert case.rules == []


def test_an_outage_of_redis_after_a_node_was_taken_for_dead_changes_nothing(case: Case) -> None:
    case.trouble(ChaosFaultKind.STOP_LONG, 103.0, 114.0)
    case.trouble(ChaosFaultKind.REDIS_STOP, 110.8, 113.0)
    case.offline("s1", 110.5, Code.NODE_DOWN)
    assert case.rules == []


def test_a_node_that_was_stopped_for_a_short_time_is_not(case: Case) -> None:
    case.trouble(ChaosFaultKind.STOP, 103.0, 107.0)
    case.offline("s1", 110.5, Code.NODE_DOWN)
    assert case.rules == ["false"]


def test_between_two_holes_a_node_needs_time_to_say_that_it_lives(case: Case) -> None:
    case.trouble(ChaosFaultKind.PATH_HOLE, 103.0, 106.0)
    case.trouble(ChaosFaultKind.PATH_HOLE, 109.0, 112.0)
    case.offline("s1", 110.5, Code.NODE_DOWN)
    assert case.rules == []


def test_an_outage_of_redis_between_two_holes_does_not_count_as_silence(case: Case) -> None:
    case.trouble(ChaosFaultKind.PATH_HOLE, 103.0, 106.0)
    case.trouble(ChaosFaultKind.REDIS_STOP, 107.0, 110.0)
    case.trouble(ChaosFaultKind.PATH_HOLE, 111.0, 115.0)
    case.offline("s1", 112.0, Code.NODE_DOWN)
    case.online("s1", 112.5)
    case.offline("s1", 113.5, Code.NODE_DOWN)
    assert case.rules == ["false"]


def test_a_beat_that_a_blackhole_has_is_not_heard() -> None:
    case = Case()
    case.login("s1", 100.0, until=120.0, is_proxied=True)
    case.online("s1", 100.1)
    case.trouble(ChaosFaultKind.CLIENTS_HOLE, 107.0, 114.0)
    case.offline("s1", 111.8, Code.IDLE_TIMEOUT)
    assert case.rules == []


def test_a_session_that_nobody_asked_for_is_invented(case: Case) -> None:
    case.offline("s9", 115.0, Code.LOGOUT)
    assert "invented" in case.rules


def test_a_login_whose_answer_was_lost_is_not_invented(case: Case) -> None:
    case.user.logins[-1].closed_at = 113.0
    case.user.logins.append(DeviceLogin(1, True, 114.0))
    case.offline("s1", 115.0, Code.CLOSED)
    case.online("s7", 116.0)
    assert case.rules == []


@pytest.mark.parametrize(
    ("tell", "rule"),
    [
        (
            lambda case: case.judge.connection_lost(
                "ann", case.user.logins[-1], 110.0, "replaced", is_for_good=True
            ),
            "exile",
        ),
        (
            lambda case: case.judge.connection_lost(
                "ann", case.user.logins[-1], 110.0, "", is_for_good=False
            ),
            "isolation",
        ),
    ],
)
def test_a_connection_that_ends_unasked_needs_a_reason(
    case: Case, tell: Callable[[Case], None], rule: str
) -> None:
    tell(case)
    assert case.rules == [rule]


def test_a_killed_node_is_a_reason(case: Case) -> None:
    case.trouble(ChaosFaultKind.KILL, 109.9, 111.0)
    case.judge.connection_lost("ann", case.user.logins[-1], 110.0, "", is_for_good=False)
    assert case.rules == []


def test_a_goodbye_to_the_only_session_needs_a_reason(case: Case) -> None:
    login = case.user.logins[-1]
    login.lost_at, login.code = 110.0, Code.CLOSED
    case.judge.connection_lost("ann", login, 110.0, "closed", is_for_good=False)
    assert case.rules == ["displaced"]


def test_that_redis_forgot_a_login_is_a_reason_and_is_counted(case: Case) -> None:
    case.trouble(ChaosFaultKind.REDIS_BACK, 99.0, 104.0)
    login = case.user.logins[-1]
    case.offline("s1", 104.5, Code.NODE_DOWN)
    login.lost_at, login.code = 104.5, Code.CLOSED
    case.judge.connection_lost("ann", login, 104.5, "closed", is_for_good=False)
    assert case.rules == []
    assert case.judge.lost_by_rollback == 2


def test_who_goes_away_is_still_online(case: Case) -> None:
    case.away("s1", 101.0)
    case.judge.check_users(110.0)
    assert case.rules == []
    assert case.judge.events == {"online": 1, "away": 1}


def test_who_goes_away_twice_is_a_finding(case: Case) -> None:
    case.away("s1", 101.0)
    case.away("s1", 102.0)
    assert case.rules == ["shown"]


def test_a_reset_connection_that_was_left_half_open_ends_after_the_grace(case: Case) -> None:
    login = case.login("s2", 121.0, until=125.0, is_proxied=True)
    case.online("s2", 121.1)
    case.judge.findings.clear()
    login.silent_at = login.abandoned_at = 126.0
    case.offline("s2", 127.8, Code.CLOSED)
    assert case.rules == ["early", "false"]
    case.judge.findings.clear()
    case.online("s2", 127.9)
    case.judge.findings.clear()
    case.trouble(ChaosFaultKind.CLIENTS_RESET, 126.2, 126.2)
    case.offline("s2", 127.95, Code.CLOSED)
    assert case.rules == []


def test_a_login_that_arrived_last_replaces_a_later_one(case: Case) -> None:
    held = DeviceLogin(1, True, 120.5, session="held", closed_at=126.0)
    later = DeviceLogin(1, False, 126.1, 126.11, "later")
    later.record_packet(126.1)
    case.user.logins.extend([held, later])
    case.trouble(ChaosFaultKind.CLIENTS_HOLE, 120.0, 127.0, place=1)
    case.offline("s1", 126.05, Code.REPLACED)
    case.online("later", 126.2)
    case.judge.findings.clear()
    case.offline("held", 128.8, Code.CLOSED)
    assert case.rules == []
