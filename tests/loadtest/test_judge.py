"""Which events the load test counts as broken promises, and which not, for each action of a device."""

from typing import Any

import pytest

from presence.loadtest.judge import (
    FLAP_RETURNS,
    NO_EVENT_AT_ALL,
    OVERTAKEN_S,
    SESSIONS_KEPT,
    DeviceFinding,
    DeviceJudge,
    EventDeadlines,
    JudgedSession,
    Sent,
)

T, TICK, GRACE, SLACK = 10.0, 1.0, 5.0, 0.5
SERVER_MS = 5_000_000  # the server's clock at 0 s of the test's
TOO_EARLY, TOO_LATE = "offline event too early", "offline event too late"
MISSING = "no offline event in time"
OVERTAKEN = "logout overtaken by a login"

Step = tuple[Any, ...]


class World:
    """One device, and a server whose clock is known to within the round trip of a login.

    The device has logged in at 0 s, and the stream has the event. Its actions are those of its latest
    session. The judge's findings are returned: broken promises, or None for each correct event.
    """

    def __init__(self) -> None:
        self.judge = DeviceJudge(EventDeadlines(TICK, GRACE, SLACK))
        self.entries = 0
        self.online_id = ""
        self.session = self.log_in(0.0)
        assert self.online(0.01) == [None]

    def log_in(self, at: float, session_id: str = "s-1") -> JudgedSession:
        self.session = self.judge.login_sent("ann", Sent(at, at))
        self.judge.login_answered(self.session, at + 0.002, session_id, T, SERVER_MS + round(at * 1000))
        return self.session

    def log_in_slowly(self, at: float, answered: float, session_id: str) -> None:
        self.session = self.judge.login_sent("ann", Sent(at, at))
        server_ms = SERVER_MS + round(answered * 1000)
        self.judge.login_answered(self.session, answered + 0.002, session_id, T, server_ms)

    def ask_in(self, at: float) -> None:
        self.session = self.judge.login_sent("ann", Sent(at, at))

    def refused(self) -> None:
        self.judge.login_refused(self.session)

    def beat(self, at: float) -> None:
        self.judge.packet_sent(self.session, Sent(at, at))

    def silent(self) -> None:
        self.judge.silence_began(self.session)

    def close(self, at: float) -> None:
        self.judge.connection_closed(self.session, Sent(at, at))

    def lose(self, at: float) -> None:
        self.judge.connection_lost(self.session, at)

    def flap(self, at: float, returns: int = FLAP_RETURNS) -> None:
        """Return that often, at once, so that the last login was sent at that time."""
        for number in range(returns):
            self.close(at)
            self.log_in(at, f"s-{number + 2}")

    def log_out(self, at: float) -> None:
        self.judge.logout_sent(self.session, Sent(at, at))

    def logged_out(self) -> None:
        self.judge.logout_confirmed(self.session)

    def event(
        self, kind: str, code: int, reason: str, at: float, session_id: str, **fields: str
    ) -> list[DeviceFinding]:
        """An event decided at `at` and read 20 ms later."""
        self.entries += 1
        entry = f"{self.entries}-0"
        entry_fields = {
            "type": kind,
            "uid": "ann",
            "code": str(code),
            "reason": reason,
            "session": session_id,
        }
        entry_fields |= {"at_ms": str(SERVER_MS + round(at * 1000)), "since_id": self.online_id} | fields
        if kind == "online":
            self.online_id = entry
        return self.judge.judge_event(entry, entry_fields, at + 0.02)

    def online(self, at: float, session_id: str = "s-1") -> list[str | None]:
        return broken(self.event("online", 1, "login", at, session_id))

    def idle(self, at: float, session_id: str = "s-1", **fields: str) -> list[str | None]:
        return broken(self.event("offline", 201, "idle_timeout", at, session_id, **fields))

    def lost(self, at: float, session_id: str = "s-1", **fields: str) -> list[str | None]:
        return broken(self.event("offline", 200, "closed", at, session_id, **fields))

    def left(self, at: float, session_id: str = "s-1") -> list[str | None]:
        return broken(self.event("offline", 100, "logout", at, session_id))

    def goodbye(self, at: float) -> list[str | None]:
        return [self.judge.goodbye_read(self.session, at).broken]

    def overdue(self, now: float) -> list[str | None]:
        found = self.judge.overdue(now)
        return [each.name for each in found if each.name == OVERTAKEN] or broken(found)


def broken(findings: list[DeviceFinding]) -> list[str | None]:
    return sorted({finding.broken for finding in findings}, key=str)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        # Silence
        ([("silent",), ("idle", T + 0.5)], [None]),
        ([("silent",), ("idle", T + 0.5), ("overdue", 60.0)], []),
        ([("silent",), ("idle", T - 0.1)], [TOO_EARLY]),
        ([("silent",), ("goodbye", T - 0.1)], ["goodbye too early"]),
        ([("silent",), ("goodbye", T + 0.1)], [None]),
        ([("silent",), ("goodbye", T + TICK + SLACK + 0.1)], ["goodbye too late"]),
        ([("beat", 5.0), ("goodbye", T + 0.1)], ["goodbye too early"]),
        ([("beat", T), ("goodbye", T + 0.1)], [None]),  # the packet came during the decision
        ([("silent",), ("idle", T + TICK + SLACK)], [TOO_LATE]),
        ([("silent",), ("overdue", T + TICK + SLACK - 0.1)], []),
        ([("silent",), ("overdue", T + TICK + SLACK + 0.1)], [MISSING]),
        ([("silent",), ("overdue", T + TICK + SLACK + 0.1), ("overdue", 60.0)], []),  # one finding only
        ([("beat", 4.0), ("idle", T + 0.5)], ["offline event for a live device"]),
        ([("silent",), ("beat", T + 0.45), ("idle", T + 0.5)], [None]),  # while the end was decided
        ([("silent",), ("beat", 8.0), ("overdue", 60.0)], []),
        # Lost connections
        ([("close", 2.0), ("lost", 2.0 + GRACE + 0.5)], [None]),
        ([("close", 2.0), ("lost", 2.0 + GRACE - 0.5)], ["offline event within the grace"]),
        ([("close", 8.0), ("lost", T + 0.1)], [None]),  # the idle deadline ends the grace
        ([("close", 2.0), ("overdue", 2.0 + GRACE + TICK + SLACK + 0.1)], [MISSING]),
        ([("lost", 7.0)], ["offline for a reason that the device did not give"]),
        ([("close", 2.0), ("log_in", 4.0, "s-2"), ("overdue", 60.0)], []),
        (
            [("close", 2.0), ("log_in", 4.0, "s-2"), ("lost", 2.0 + GRACE + 0.5)],
            ["offline although the device had come back"],
        ),
        ([("close", 2.0), ("ask_in", 7.2), ("lost", 2.0 + GRACE + 0.5)], [None]),  # perhaps too late
        # A login that was refused brings nobody back
        (
            [("close", 2.0), ("ask_in", 4.0), ("refused",), ("overdue", 2.1 + GRACE + TICK + SLACK)],
            [MISSING],
        ),
        ([("close", 2.0), ("ask_in", 4.0), ("refused",), ("lost", 2.0 + GRACE + 0.5)], [None]),
        (
            [("close", 2.0), ("ask_in", 4.0), ("refused",), ("log_in", 4.5, "s-2"), ("overdue", 60.0)],
            [],
        ),
        (
            [
                *[("close", 2.0), ("lost", 2.0 + GRACE + 0.5), ("ask_in", 8.0), ("refused",)],
                ("online", 8.01, "s-2"),
            ],
            ["online without a login"],
        ),
        ([("lose", 2.0), ("overdue", 60.0)], []),  # a server that is gone owes nothing
        # A login that waited until the server accepted its connection: the time counts from its answer
        (
            [
                ("lose", 2.0),
                ("log_in_slowly", 3.0, 9.0, "s-2"),
                ("silent",),
                ("overdue", 9.0 + T + TICK + SLACK),
            ],
            [],
        ),
        (
            [("lose", 2.0), ("log_in_slowly", 3.0, 9.0, "s-2"), ("silent",), ("goodbye", 9.0 + T + TICK)],
            [None],
        ),
        (
            [
                ("lose", 2.0),
                ("log_in_slowly", 3.0, 9.0, "s-2"),
                ("silent",),
                ("overdue", 9.1 + T + TICK + SLACK),
            ],
            [MISSING],
        ),
        # Logouts, and logins right after them: of another node (t-1) these may come first in Redis
        (
            [("log_out", 3.0), ("logged_out",), ("log_in", 3.01 + OVERTAKEN_S, "s-2"), ("overdue", 3.6)],
            [MISSING],
        ),
        ([("log_out", 3.0), ("logged_out",), ("log_in", 3.01, "s-2"), ("overdue", 3.6)], [MISSING]),
        ([("log_out", 3.0), ("logged_out",), ("log_in", 3.01, "t-1"), ("overdue", 60.0)], [OVERTAKEN]),
        (
            [
                *[("log_out", 3.0), ("logged_out",), ("log_in", 3.01, "t-1"), ("overdue", 60.0)],
                *[("silent",), ("idle", 3.01 + T + 0.5, "t-1")],
            ],
            [None],  # it ends the period of the first login
        ),
        (
            [
                *[("log_out", 3.0), ("logged_out",), ("log_in", 3.01, "t-1")],
                *[("log_out", 3.2), ("logged_out",), ("left", 3.21, "t-1")],
            ],
            [None],
        ),
        (
            [("log_out", 3.0), ("logged_out",), ("log_in", 3.01, "t-1"), ("left", 3.005), ("overdue", 60.0)],
            ["no online event in time"],  # both have an event, or neither
        ),
        ([("log_out", 3.0), ("left", 3.005), ("logged_out",), ("overdue", 60.0)], []),
        # Events that do not fit
        ([("silent",), ("idle", T + 0.5), ("idle", T + 0.6)], ["two offline events in a row"]),
        ([("log_in", 1.0, "s-2"), ("online", 1.01, "s-2")], ["two online events in a row"]),
        ([("idle", T + 0.5, "s-9")], ["offline of a session that is not the device's"]),
    ],
)
def test_a_devices_actions_are_compared_with_events(steps: list[Step], found: list[str | None]) -> None:
    world, last = World(), None
    for name, *given in steps:
        last = getattr(world, name)(*given)
    assert last == found


DOUBLED = {"grace_ms": str(round(2000 * GRACE))}


@pytest.mark.parametrize(
    ("returns", "at", "fields", "found"),
    [
        (FLAP_RETURNS, 2 + GRACE + 0.5, {}, [None]),
        (FLAP_RETURNS, 2 + GRACE + TICK + SLACK, {}, [TOO_LATE]),  # it was not extended, says the event
        (FLAP_RETURNS, 1 + T + 0.5, DOUBLED, [None]),  # T ends a grace of any length
        (FLAP_RETURNS, 1 + T + TICK + SLACK, DOUBLED, [TOO_LATE]),
        (FLAP_RETURNS, 2 + GRACE + 0.5, DOUBLED, ["offline event within the grace"]),
        (FLAP_RETURNS - 1, 2 + GRACE + TICK + SLACK, {}, [TOO_LATE]),
    ],
)
def test_the_grace_of_a_device_that_reconnects_often_is_what_the_event_says(
    returns: int, at: float, fields: dict[str, str], found: list[str | None]
) -> None:
    world = World()
    world.flap(1.0, returns)
    world.close(2.0)
    assert world.lost(at, f"s-{returns + 1}", **fields) == found


@pytest.mark.parametrize(
    ("returns", "last_ok"),
    [(FLAP_RETURNS, 1 + T + TICK + SLACK), (FLAP_RETURNS - 1, 2 + GRACE + TICK + SLACK)],
)
def test_a_device_that_reconnects_often_still_needs_an_event(returns: int, last_ok: float) -> None:
    world = World()
    world.flap(1.0, returns)
    world.close(2.0)
    assert world.overdue(last_ok - 0.1) == []
    (found,) = world.judge.overdue(last_ok + 0.1)
    assert found.broken == MISSING
    assert found.detail.endswith(" + tick 1 + slack 0.5 s, that is 0.100 s ago")
    assert ("; the event was due within T 10 +" in found.detail) is (returns == FLAP_RETURNS)


def test_a_missing_event_is_found_when_many_logins_have_followed() -> None:
    world = World()
    world.log_out(3.0)
    world.logged_out()
    for number in range(SESSIONS_KEPT + 1):
        world.log_in(3.01 + number / 100, f"s-{number + 2}")
        world.close(3.01 + number / 100)
    assert world.overdue(3.6) == [MISSING]


def test_the_delay_counts_from_the_last_packet_and_from_the_deadline() -> None:
    world = World()
    world.beat(4.0)
    world.silent()
    found = world.event("offline", 201, "idle_timeout", 14.58, "s-1")
    assert [finding.seconds for finding in found] == pytest.approx([10.6, 0.6])


def test_an_offline_event_names_the_online_event_that_it_ends() -> None:
    world = World()
    world.silent()
    assert world.idle(T + 0.5, since_id="77-7") == ["since_id names another online event"]


def test_a_login_must_have_an_event_even_one_before_its_answer() -> None:
    judge = DeviceJudge(EventDeadlines(TICK, GRACE, SLACK))
    session = judge.login_sent("ann", Sent(0.0, 0.0))
    judge.login_answered(session, 0.002, "s-1", T, SERVER_MS)
    assert broken(judge.overdue(SLACK + 0.1)) == [NO_EVENT_AT_ALL]
    world = World()
    world.judge.login_sent("bob", Sent(0.0, 0.0))
    assert broken(world.event("online", 1, "login", 0.001, "b-1", uid="bob")) == [None]


def test_a_gap_is_reported_and_other_devices_are_ignored() -> None:
    judge = World().judge
    assert broken(judge.judge_event("1-0", {"type": "gap", "dropped": "3"}, 1.0)) == ["a gap in the stream"]
    assert judge.judge_event("1-0", {"type": "offline", "uid": "bob"}, 1.0) == []


def test_nothing_is_due_once_the_devices_are_stopped() -> None:
    world = World()
    world.silent()
    assert world.judge.close() == 1
    assert world.overdue(60.0) == []
