"""What the load test calls a broken promise, and what it does not, for each thing that a device does."""

import pytest

from loadtest.facts import Sent, Session
from loadtest.judge import OVERTAKEN_S, Finding, Judge, Promise

T, TICK, GRACE, SLACK = 10.0, 1.0, 5.0, 0.5
SERVER_MS = 5_000_000  # what the server's clock shows at 0 s of the test's


class World:
    """One device, and a server whose clock is known but for the width of a login's round trip."""

    def __init__(self) -> None:
        self.judge = Judge(Promise(TICK, GRACE, SLACK))
        self.entries = 0
        self.online_id = ""

    def log_in(self, at: float, session_id: str = "s-1") -> Session:
        session = self.judge.logged_in("ann", Sent(at, at))
        self.judge.answered(session, at + 0.002, session_id, T, SERVER_MS + round(at * 1000))
        return session

    def beat(self, session: Session, at: float) -> None:
        self.judge.sent(session, Sent(at, at))

    def event(
        self, kind: str, code: int, reason: str, at: float, session_id: str = "s-1", **fields: str
    ) -> list[str | None]:
        """An event decided at `at` and read 20 ms later; returns what is broken, None where nothing is."""
        self.entries += 1
        entry = f"{self.entries}-0"
        told = {"type": kind, "uid": "ann", "code": str(code), "reason": reason, "session": session_id}
        told |= {"at_ms": str(SERVER_MS + round(at * 1000)), "since_id": self.online_id} | fields
        if kind == "online":
            self.online_id = entry
        return broken(self.judge.event(entry, told, at + 0.02))

    def online(self, at: float, session_id: str = "s-1") -> list[str | None]:
        return self.event("online", 1, "login", at, session_id)

    def idle(self, at: float, session_id: str = "s-1", **fields: str) -> list[str | None]:
        return self.event("offline", 201, "idle_timeout", at, session_id, **fields)

    def lost(self, at: float, session_id: str = "s-1") -> list[str | None]:
        return self.event("offline", 200, "closed", at, session_id)

    def overdue(self, now: float) -> list[str | None]:
        return broken(self.judge.overdue(now))


def broken(findings: list[Finding]) -> list[str | None]:
    return sorted({finding.broken for finding in findings}, key=str)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def session(world: World) -> Session:
    """Logged in at 0 s, and the stream says so."""
    session = world.log_in(0.0)
    assert world.online(0.01) == [None]
    return session


def test_silence_told_in_time_is_well(world: World, session: Session) -> None:
    world.judge.silent(session)
    assert world.idle(T + 0.5) == [None]
    assert world.overdue(60.0) == []


def test_the_delay_is_counted_from_the_last_packet_and_from_what_was_due(
    world: World, session: Session
) -> None:
    world.beat(session, 4.0)
    world.judge.silent(session)
    at_ms = str(SERVER_MS + 14_500)
    fields = {"type": "offline", "uid": "ann", "code": "201", "reason": "idle_timeout", "session": "s-1"}
    found = world.judge.event("9-0", {**fields, "at_ms": at_ms, "since_id": world.online_id}, 14.6)
    assert [finding.seconds for finding in found] == pytest.approx([10.6, 0.6])


def test_an_end_before_the_time_out_is_too_early(world: World, session: Session) -> None:
    world.judge.silent(session)
    assert world.idle(T - 0.1) == ["offline event too early"]


def test_an_end_of_a_device_that_beats_is_false(world: World, session: Session) -> None:
    world.beat(session, 4.0)
    assert world.idle(T + 0.5) == ["offline event for a device that beats"]


def test_a_packet_that_came_while_the_end_was_decided_is_a_race(world: World, session: Session) -> None:
    world.judge.silent(session)
    world.beat(session, T + 0.45)
    assert world.idle(T + 0.5) == [None]


def test_silence_that_nobody_tells_is_reported_once(world: World, session: Session) -> None:
    world.judge.silent(session)
    assert world.overdue(T + TICK + SLACK - 0.1) == []
    assert world.overdue(T + TICK + SLACK + 0.1) == ["no offline event in time"]
    assert world.overdue(60.0) == []


def test_an_event_that_is_read_after_its_time_is_too_late(world: World, session: Session) -> None:
    world.judge.silent(session)
    assert world.idle(T + TICK + SLACK) == ["offline event too late"]


def test_a_beat_ends_a_silence_without_an_event(world: World, session: Session) -> None:
    world.judge.silent(session)
    world.beat(session, 8.0)
    assert world.overdue(60.0) == []


def test_a_lost_connection_is_told_after_the_grace(world: World, session: Session) -> None:
    world.judge.closed(session, Sent(2.0, 2.0))
    assert world.lost(2.0 + GRACE + 0.5) == [None]


def test_a_lost_connection_told_within_the_grace_is_false(world: World, session: Session) -> None:
    world.judge.closed(session, Sent(2.0, 2.0))
    assert world.lost(2.0 + GRACE - 0.5) == ["offline event within the grace"]


def test_the_grace_ends_no_later_than_the_idle_deadline(world: World, session: Session) -> None:
    world.judge.closed(session, Sent(8.0, 8.0))
    assert world.lost(T + 0.1) == [None]


def test_a_lost_connection_must_be_told(world: World, session: Session) -> None:
    world.judge.closed(session, Sent(2.0, 2.0))
    assert world.overdue(2.0 + GRACE + TICK + SLACK + 0.1) == ["no offline event in time"]


def test_a_connection_that_the_device_did_not_close_is_not_closed(world: World, session: Session) -> None:
    assert world.lost(7.0) == ["offline for a reason that the device did not give"]


def test_nothing_is_due_after_a_return_within_the_grace(world: World, session: Session) -> None:
    world.judge.closed(session, Sent(2.0, 2.0))
    world.log_in(4.0, "s-2")
    assert world.overdue(60.0) == []


def test_an_event_after_a_return_within_the_grace_is_false(world: World, session: Session) -> None:
    world.judge.closed(session, Sent(2.0, 2.0))
    world.log_in(4.0, "s-2")
    assert world.lost(2.0 + GRACE + 0.5) == ["offline although the device had come back"]


def test_a_return_that_was_not_yet_answered_may_be_too_late(world: World, session: Session) -> None:
    world.judge.closed(session, Sent(2.0, 2.0))
    world.judge.logged_in("ann", Sent(7.2, 7.2))
    assert world.lost(2.0 + GRACE + 0.5) == [None]


def test_a_logout_is_told_at_once_though_the_device_comes_back(world: World, session: Session) -> None:
    world.judge.logs_out(session, Sent(3.0, 3.0))
    world.judge.logged_out(session)
    world.log_in(3.01 + OVERTAKEN_S, "s-2")
    assert world.overdue(3.0 + SLACK + 0.1) == ["no offline event in time"]


def test_a_login_right_after_a_logout_may_go_before_it_and_then_neither_is_told(
    world: World, session: Session
) -> None:
    world.judge.logs_out(session, Sent(3.0, 3.0))
    world.judge.logged_out(session)
    later = world.log_in(3.01, "t-1")
    (found,) = world.judge.overdue(60.0)
    assert (found.name, found.broken) == ("logout overtaken by a login", None)
    assert found.seconds == pytest.approx(0.01)
    world.judge.silent(later)
    assert world.idle(3.01 + T + 0.5, "t-1") == [None], "and it ends what the first login began"


def test_on_one_node_a_login_right_after_a_logout_comes_behind_it(world: World, session: Session) -> None:
    world.judge.logs_out(session, Sent(3.0, 3.0))
    world.judge.logged_out(session)
    world.log_in(3.01, "s-2")
    assert world.overdue(3.0 + SLACK + 0.1) == ["no offline event in time"]


def test_who_logged_out_twice_within_a_moment_may_be_told_of_once(world: World, session: Session) -> None:
    world.judge.logs_out(session, Sent(3.0, 3.0))
    world.judge.logged_out(session)
    later = world.log_in(3.01, "t-1")
    world.judge.logs_out(later, Sent(3.2, 3.2))
    world.judge.logged_out(later)
    assert world.event("offline", 100, "logout", 3.21, "t-1") == [None], "it ends what the first login began"
    (found,) = world.judge.overdue(60.0)
    assert (found.name, found.broken) == ("logout overtaken by a login", None)


def test_both_events_of_a_logout_and_a_login_are_told_or_neither(world: World, session: Session) -> None:
    world.judge.logs_out(session, Sent(3.0, 3.0))
    world.judge.logged_out(session)
    world.log_in(3.01, "t-1")
    assert world.event("offline", 100, "logout", 3.005) == [None]
    assert world.overdue(60.0) == ["no online event in time"]


def test_the_event_of_a_logout_may_be_read_before_its_answer(world: World, session: Session) -> None:
    world.judge.logs_out(session, Sent(3.0, 3.0))
    assert world.event("offline", 100, "logout", 3.005) == [None]
    world.judge.logged_out(session)
    assert world.overdue(60.0) == []


def test_two_offline_events_in_a_row_are_one_too_many(world: World, session: Session) -> None:
    world.judge.silent(session)
    assert world.idle(T + 0.5) == [None]
    assert world.idle(T + 0.6) == ["two offline events in a row"]


def test_two_online_events_in_a_row_are_one_too_many(world: World, session: Session) -> None:
    world.log_in(1.0, "s-2")
    assert world.online(1.01, "s-2") == ["two online events in a row"]


def test_an_offline_event_names_the_online_event_that_it_ends(world: World, session: Session) -> None:
    world.judge.silent(session)
    assert world.idle(T + 0.5, since_id="77-7") == ["since_id names another online event"]


def test_a_session_that_nobody_opened_is_not_the_devices(world: World, session: Session) -> None:
    assert world.idle(T + 0.5, "s-9") == ["offline of a session that is not the device's"]


def test_a_login_must_be_told(world: World) -> None:
    world.log_in(0.0)
    assert world.overdue(SLACK + 0.1) == ["no online event in time"]


def test_an_online_event_may_be_read_before_the_logins_answer(world: World) -> None:
    session = world.judge.logged_in("ann", Sent(0.0, 0.0))
    assert world.online(0.001) == [None]
    assert session.id == "s-1"


def test_a_gap_is_told(world: World) -> None:
    assert broken(world.judge.event("1-0", {"type": "gap", "dropped": "3"}, 1.0)) == ["a gap in the stream"]


def test_other_peoples_devices_are_passed_over(world: World) -> None:
    assert world.judge.event("1-0", {"type": "offline", "uid": "bob"}, 1.0) == []


def test_a_server_that_is_gone_owes_nothing(world: World, session: Session) -> None:
    world.judge.lost(session, 2.0)
    assert world.overdue(60.0) == []


def test_nothing_is_due_once_the_devices_are_stopped(world: World, session: Session) -> None:
    world.judge.silent(session)
    assert world.judge.close() == 1
    assert world.overdue(60.0) == []
