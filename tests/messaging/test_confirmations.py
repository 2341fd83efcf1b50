"""Which sessions certainly have a message, and when that is known; the kernel and the clients are fakes."""

import math
from collections.abc import Callable

import pytest

from presence.common.faults import Faults
from presence.core.registry import ClientFeatures, Session
from presence.messaging.confirmations import (
    FIRST_PAUSE_S,
    MAX_LOOKS_PER_TURN,
    MAX_PAUSE_S,
    Confirmations,
)
from presence.messaging.message_bus import REPORT_TIME_S, Confirmed
from tests.messaging.desks import Wire

NUMBER, WITHIN_S, BEGUN = 77, 5.0, 1000.0
NOBODY = Confirmed(0, 0)
BY_KERNEL, BY_APP = Confirmed(1, 0), Confirmed(1, 1)
TOKEN = "0" * 32


class Desk:
    """Confirmations with a clock of their own, which is driven from one look to the next."""

    def __init__(self, max_waits: int = 100) -> None:
        self.wire = Wire()
        self.now = BEGUN
        self.faults = Faults()
        self.confirmations = Confirmations(self.faults, max_waits=max_waits)
        self.done: list[tuple[float, Confirmed]] = []
        self._sessions = 0

    def session(self, *, confirms: bool = False, acknowledged: int | None = 0) -> Session:
        """Return a session of which the kernel tells so much; None: nothing."""
        self._sessions += 1
        number = self._sessions
        session = Session(self.wire, number, f"user{number}", number, 30.0, BEGUN, BEGUN)
        session.features = ClientFeatures(confirms=confirms)
        if acknowledged is not None:
            self.wire.acknowledged[number] = acknowledged
        return session

    def send(self, *sessions: Session, number: int = NUMBER, elsewhere: int = 0) -> None:
        for session in sessions:
            if session.transport is not None:
                session.transport.send(session.handle, b"0123456789")
        self.confirmations.expect(
            sessions,
            number,
            self.now,
            WITHIN_S,
            lambda confirmed: self.done.append((round(self.now - BEGUN, 6), confirmed)),
            elsewhere=elsewhere,
            token=TOKEN,
        )

    def run(self, seconds: float = math.inf) -> None:
        """Look whenever something is due, for so long or until nothing is."""
        until = self.now + seconds
        while (at := self.confirmations.next_at()) <= until and at < math.inf:
            self.now = max(self.now, at)
            self.confirmations.look(self.now)
        if until < math.inf:
            self.now = until


Event = Callable[[Desk, Session], None]


def nothing(_desk: Desk, _session: Session) -> None:
    pass


def acknowledge_some(desk: Desk, session: Session) -> None:
    desk.wire.acknowledged[session.handle] = 9


def acknowledge(desk: Desk, session: Session) -> None:
    desk.wire.acknowledged[session.handle] = 10


def confirm(desk: Desk, session: Session) -> None:
    desk.confirmations.confirmed_by_client(session, [1, NUMBER, 2])


def confirm_another(desk: Desk, session: Session) -> None:
    desk.confirmations.confirmed_by_client(session, [NUMBER + 1])


def lose(_desk: Desk, session: Session) -> None:
    session.detach()


@pytest.mark.parametrize(
    ("confirms", "event", "found", "within_s"),
    [
        (False, acknowledge, BY_KERNEL, (0.5, 1.0)),
        (False, acknowledge_some, NOBODY, (WITHIN_S, WITHIN_S)),
        (False, nothing, NOBODY, (WITHIN_S, WITHIN_S)),
        (False, confirm, NOBODY, (WITHIN_S, WITHIN_S)),  # it has not said that it does so
        (False, lose, NOBODY, (0.5, 0.5 + MAX_PAUSE_S)),
        (True, confirm, BY_APP, (0.5, 0.5)),
        (True, acknowledge, NOBODY, (WITHIN_S, WITHIN_S)),  # as of a frozen app
        (True, confirm_another, NOBODY, (WITHIN_S, WITHIN_S)),
        (True, lose, NOBODY, (0.5, 0.5 + MAX_PAUSE_S)),
    ],
)
def test_a_session_is_confirmed_by_its_client_if_it_confirms_and_else_by_the_kernel(
    confirms: bool, event: Event, found: Confirmed, within_s: tuple[float, float]
) -> None:
    desk = Desk()
    session = desk.session(confirms=confirms)
    desk.send(session)
    desk.run(0.5)
    assert desk.done == []
    event(desk, session)
    desk.run()
    ((at, confirmed),) = desk.done
    assert confirmed == found
    assert within_s[0] <= at <= within_s[1]
    assert desk.confirmations.statistics().waits == 0


@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.05, 0.3, 1.0, 4.0])
def test_an_acknowledgement_is_noticed_after_twice_its_time_and_at_most_a_second(after_s: float) -> None:
    desk = Desk()
    session = desk.session()
    desk.send(session)
    desk.run(after_s)
    acknowledge(desk, session)
    desk.run()
    ((at, confirmed),) = desk.done
    assert confirmed == BY_KERNEL
    assert at <= after_s + min(MAX_PAUSE_S, max(after_s, 0.0) + FIRST_PAUSE_S) + 1e-6


def test_what_is_sent_later_confirms_nothing_and_needs_no_acknowledgement() -> None:
    desk = Desk()
    session = desk.session(acknowledged=0)
    desk.send(session)
    desk.wire.send(session.handle, b"later")
    acknowledge_some(desk, session)
    desk.run(1.0)
    assert desk.done == []
    acknowledge(desk, session)
    desk.run()
    assert [confirmed for _, confirmed in desk.done] == [BY_KERNEL]


@pytest.mark.parametrize("unknown", ["no connection", "no kernel that tells"])
def test_a_session_that_nothing_can_confirm_is_not_waited_for(unknown: str) -> None:
    desk = Desk()
    session = desk.session(acknowledged=None)
    if unknown == "no connection":
        session.detach()
    desk.send(session)
    assert desk.done == [(0.0, NOBODY)]


def test_the_answer_waits_for_all_sessions_and_counts_each_once() -> None:
    desk = Desk()
    phone, pc, web = desk.session(confirms=True), desk.session(), desk.session(confirms=True)
    desk.send(phone, pc, web)
    acknowledge(desk, pc)
    desk.run(1.0)
    for _ in range(3):
        confirm(desk, phone)
    assert desk.done == []
    confirm(desk, web)
    desk.run()
    assert desk.done == [(1.0, Confirmed(3, 2))]
    figures = desk.confirmations.statistics()
    assert (figures.by_app, figures.by_kernel, figures.unconfirmed) == (2, 1, 0)


def test_a_client_confirms_for_its_own_session_only() -> None:
    desk = Desk()
    phone, other = desk.session(confirms=True), desk.session(confirms=True)
    desk.send(phone)
    confirm(desk, other)
    desk.run()
    assert desk.done == [(WITHIN_S, NOBODY)]


def test_reports_of_other_nodes_are_added_up() -> None:
    desk = Desk()
    phone = desk.session(confirms=True)
    desk.send(phone, elsewhere=3)
    confirm(desk, phone)
    desk.confirmations.reported("f" * 32, 3, Confirmed(3, 3))
    desk.confirmations.reported(TOKEN, 2, Confirmed(1, 1))
    assert desk.done == []
    desk.confirmations.reported(TOKEN, 1, Confirmed(1, 0))
    assert desk.done == [(0.0, Confirmed(3, 2))]
    desk.confirmations.reported(TOKEN, 1, Confirmed(1, 0))
    desk.run()
    assert len(desk.done) == 1


def test_a_node_that_does_not_report_is_not_waited_for_any_longer() -> None:
    desk = Desk()
    desk.send(elsewhere=2)
    desk.confirmations.reported(TOKEN, 1, Confirmed(1, 1))
    desk.run()
    assert desk.done == [(WITHIN_S + REPORT_TIME_S, BY_APP)]


def test_sessions_beyond_the_bound_are_unconfirmed_immediately() -> None:
    desk = Desk(max_waits=2)
    sessions = [desk.session(confirms=True) for _ in range(3)]
    desk.send(*sessions)
    desk.send(sessions[0], number=NUMBER + 1, elsewhere=1)
    assert desk.done == [(0.0, NOBODY)], "the second message"
    for session in sessions:
        confirm(desk, session)
    assert desk.done[1:] == [(0.0, Confirmed(2, 2))]
    figures = desk.confirmations.statistics()
    assert (figures.beyond_bound, figures.by_app) == (3, 2)
    assert figures.waits == 2, "they count until their next look"
    desk.run()
    assert desk.confirmations.statistics().waits == 0
    desk.send(sessions[0])
    assert len(desk.done) == 2


def test_an_error_is_contained_and_leaves_one_session_unconfirmed() -> None:
    desk = Desk()
    phone, pc = desk.session(), desk.session()
    desk.send(phone, pc)
    desk.wire.acknowledged[phone.handle] = "no number"  # type: ignore[assignment]
    acknowledge(desk, pc)
    desk.run()
    assert desk.done == [(FIRST_PAUSE_S, BY_KERNEL)]
    assert desk.faults.counts == {"confirmation": 1}


def test_a_look_is_bounded() -> None:
    desk = Desk(max_waits=10 * MAX_LOOKS_PER_TURN)
    sessions = [desk.session(acknowledged=10) for _ in range(MAX_LOOKS_PER_TURN + 1)]
    for session in sessions:
        desk.send(session)
    desk.now += WITHIN_S
    desk.confirmations.look(desk.now)
    assert len(desk.done) == MAX_LOOKS_PER_TURN
    assert desk.confirmations.next_at() <= desk.now
    desk.confirmations.look(desk.now)
    assert len(desk.done) == MAX_LOOKS_PER_TURN + 1
