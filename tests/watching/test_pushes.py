"""Pushes of changes: recipients, timing and number."""

import pytest

from presence.common.faults import Faults
from presence.core.registry import Session
from presence.watching import pushes as module
from presence.watching.pushes import Pushes
from presence.watching.watches import Watches
from tests.watching.fakes import Line, entry, session


class Watchers:
    """Some watchers of ann and bob."""

    def __init__(self, count: int = 1) -> None:
        self.watches = Watches()
        self.ended: list[Session] = []
        self.pushes = Pushes(self.watches, Faults(self.ended.append))
        self.sessions: list[Session] = []
        self.lines: list[Line] = []
        for number in range(count):
            watcher, line = session(f"watcher-{number}")
            self.sessions.append(watcher)
            self.lines.append(line)
            self.watches.add(watcher, ["ann", "bob"], 0)

    def change(self, uid: str, number: int, status: str = "online") -> None:
        self.pushes.push(entry(uid, number, status))

    def pushed(self, watcher: int = 0) -> list[tuple[str, str]]:
        return [(packet.payload["uid"], packet.payload["id"]) for packet in self.lines[watcher].packets()]


def test_a_packet_has_the_state_and_the_reason() -> None:
    desk = Watchers()
    desk.change("ann", 7, "offline")
    desk.pushes.send_slice()
    (packet,) = desk.lines[0].packets()
    assert packet.payload == {
        "uid": "ann",
        "status": "offline",
        "since_ms": 7,
        "last_seen_ms": 7,
        "id": "7-0",
        "reason": "login",
    }


@pytest.mark.parametrize("reason", ["kicked", "banned"])
def test_watchers_are_not_told_what_an_operator_did(reason: str) -> None:
    desk = Watchers()
    gone = entry("ann", 7, "offline")
    desk.pushes.push(gone._replace(reason=reason, state=gone.state._replace(reason=reason)))
    desk.pushes.send_slice()
    (packet,) = desk.lines[0].packets()
    assert packet.payload["reason"] == "logout"


def test_a_slice_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PACKETS_PER_SLICE", 4)
    desk = Watchers(10)
    desk.change("ann", 1)
    offers = []
    while desk.pushes.statistics().queued:
        desk.pushes.send_slice()
        offers.append(sum(line.offers for line in desk.lines))
    assert offers[:3] == [4, 8, 10]
    assert all(desk.pushed(number) == [("ann", "1-0")] for number in range(10))


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_watcher_who_leaves_or_is_answered_between_slices_gets_no_push(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    monkeypatch.setattr(module, "MAX_PACKETS_PER_SLICE", 1)
    desk = Watchers(2)
    desk.change("ann", 1)
    desk.pushes.send_slice()
    late = next(number for number in range(2) if not desk.lines[number].offers)
    if is_answered:
        desk.watches.add(desk.sessions[late], ["ann"], desk.pushes.number)
    else:
        desk.watches.remove(desk.sessions[late])
    desk.pushes.send_slice()
    assert desk.lines[late].offers == 0


def test_a_slow_reader_gets_the_newest_state_of_each_user_in_order_of_first_change() -> None:
    desk = Watchers()
    desk.lines[0].slow = True
    for number, uid in enumerate(("bob", "ann", "bob", "ann", "bob"), 1):
        desk.change(uid, number)
        desk.pushes.send_slice()
    assert desk.lines[0].offers == 1, "not offered again before it has drained"
    desk.lines[0].slow = False
    desk.pushes.drained(desk.sessions[0])
    assert desk.pushed() == [("bob", "5-0"), ("ann", "4-0")]
    desk.change("ann", 6)
    desk.pushes.send_slice()
    assert desk.pushed() == [("ann", "6-0")]


def test_a_reader_that_is_slow_again_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JOINED_BYTES", 1)
    desk = Watchers()
    line = desk.lines[0]
    line.slow = True
    desk.change("ann", 1)
    desk.change("bob", 2)
    desk.pushes.send_slice()
    answers = iter([True, False])

    def try_send(handle: object, data: bytes) -> bool:
        if taken := next(answers):
            line.taken += data
        return taken

    line.try_send = try_send  # type: ignore[method-assign] # one packet, then it is slow again
    desk.pushes.drained(desk.sessions[0])
    assert desk.pushed() == [("ann", "1-0")]
    assert desk.pushes.statistics().slow == 1


def test_deferred_changes_are_dropped_with_the_watch() -> None:
    desk = Watchers()
    desk.lines[0].slow = True
    desk.change("ann", 1)
    desk.change("bob", 2)
    desk.pushes.send_slice()
    desk.pushes.discard(desk.sessions[0], ["ann"])
    desk.lines[0].slow = False
    desk.pushes.drained(desk.sessions[0])
    assert desk.pushed() == [("bob", "2-0")]
    assert desk.pushes.statistics().slow == 0


def test_nothing_is_deferred_for_a_closed_connection() -> None:
    desk = Watchers()
    desk.change("ann", 1)
    desk.sessions[0].link = None
    desk.pushes.send_slice()
    assert desk.pushes.statistics().slow == 0


def test_a_full_queue_keeps_the_newest_change_of_each_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_CHANGES", 2)
    desk = Watchers()
    for number in range(1, 100):
        desk.change("ann", number)
    desk.change("bob", 100)
    assert desk.pushes.statistics().queued == 3
    desk.pushes.send_slice()
    assert desk.pushed() == [("ann", "1-0"), ("ann", "99-0"), ("bob", "100-0")]


def test_a_state_that_no_packet_can_hold_is_pushed_as_unknown() -> None:
    desk = Watchers()
    change = entry("ann", 1)
    desk.pushes.push(change._replace(state=change.state._replace(since_ms=-1)))
    desk.pushes.send_slice()
    (packet,) = desk.lines[0].packets()
    assert packet.payload["status"] == "unknown"
    assert desk.pushes.statistics().damaged == 1
