"""Pushes of changes: recipients, timing and number."""

import pytest

from presence import protocol
from presence.common.faults import Faults
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.watching import push_queue as module
from presence.watching.push_queue import PushQueue
from presence.watching.user_states import UserEvent, WatchedDevice, WatchedState
from presence.watching.user_table import UserTable
from presence.watching.watch_index import Watches
from tests.watching.fakes import Line, device_entry, entry, session


class Watchers:
    """Some watchers of ann and bob."""

    def __init__(self, count: int = 1) -> None:
        self.watches = Watches(UserTable())
        self.ended: list[Session] = []
        self.latest: dict[str, WatchedState] = {}
        self.quiet = QuietSessions()
        self.pushes = PushQueue(self.watches, Faults(self.ended.append), self.latest.get, self.quiet)
        self.sessions: list[Session] = []
        self.lines: list[Line] = []
        for number in range(count):
            watcher, line = session(f"watcher-{number}")
            self.sessions.append(watcher)
            self.lines.append(line)
            self.watches.add(watcher, ["ann", "bob"])

    def change(self, uid: str, number: int, status: str = "online") -> None:
        self.push(entry(uid, number, status))

    def push(self, change: UserEvent) -> None:
        self.latest[change.uid] = change.state
        self.pushes.push(change)

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
        desk.pushes.answered(desk.sessions[late], ["ann"])
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
    assert desk.lines[0].offers == 1, "not offered again before all was sent"
    desk.lines[0].slow = False
    desk.pushes.all_sent(desk.sessions[0])
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
    desk.pushes.all_sent(desk.sessions[0])
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
    desk.pushes.all_sent(desk.sessions[0])
    assert desk.pushed() == [("bob", "2-0")]
    assert desk.pushes.statistics().slow == 0


def test_nothing_is_deferred_for_a_closed_connection() -> None:
    desk = Watchers()
    desk.change("ann", 1)
    desk.sessions[0].transport = None
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


def test_queued_packets_are_bounded_by_their_bytes() -> None:
    desk = Watchers()
    desk.pushes.with_devices.add(desk.sessions[0])
    names = [f"u{number}" for number in range(400)]
    desk.watches.add(desk.sessions[0], names)
    for uid in names:
        desk.push(many_devices(uid, 7))
    statistics = desk.pushes.statistics()
    assert statistics.queued == 400
    assert statistics.queued_bytes <= module.MAX_QUEUED_BYTES + protocol.SERVER_FRAME_LIMIT_BYTES


def test_a_change_without_room_is_pushed_as_the_user_is_at_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 1)
    desk = Watchers()
    desk.change("ann", 1)
    desk.change("bob", 2)
    desk.change("bob", 3, "offline")
    desk.pushes.send_slice()
    assert desk.pushed() == [("ann", "1-0"), ("bob", "3-0")]
    assert desk.pushes.statistics().queued_bytes == 0


def test_a_change_of_a_device_without_room_goes_to_those_who_asked_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 0)
    desk = Watchers(2)
    desk.pushes.with_devices.add(desk.sessions[0])
    desk.push(device_entry("ann", 2, since_ms=1))
    desk.pushes.send_slice()
    assert [desk.pushed(0), desk.pushed(1)] == [[("ann", "2-0")], []]


def test_a_change_of_a_device_does_not_hide_one_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 0)
    desk = Watchers(2)
    desk.pushes.with_devices.add(desk.sessions[0])
    desk.change("ann", 1)
    desk.push(device_entry("ann", 2, since_ms=1))
    desk.pushes.send_slice()
    assert [desk.pushed(0), desk.pushed(1)] == [[("ann", "2-0")], [("ann", "2-0")]]


def test_deferred_packets_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DEFERRED_BYTES", 1_000)
    desk = Watchers(20)
    for line in desk.lines:
        line.slow = True
    for number in range(1, 40, 2):
        desk.change("ann", number)
        desk.change("bob", number + 1)
        desk.pushes.send_slice()
    assert desk.pushes.statistics().deferred_bytes <= 1_000
    for line in desk.lines:
        line.slow = False
    for watcher in desk.sessions:
        desk.pushes.all_sent(watcher)
    assert all(desk.pushed(number) == [("ann", "39-0"), ("bob", "40-0")] for number in range(20))
    assert desk.pushes.statistics().deferred_bytes == 0


def test_the_bytes_of_discarded_packets_are_free_again() -> None:
    desk = Watchers()
    desk.lines[0].slow = True
    desk.change("ann", 1)
    desk.change("bob", 2)
    desk.pushes.send_slice()
    desk.pushes.discard(desk.sessions[0])
    assert desk.pushes.statistics().deferred_bytes == 0


def many_devices(uid: str, number: int) -> UserEvent:
    meta = '{"m":"' + "x" * 240 + '"}'
    devices = tuple(WatchedDevice(f"{uid}-{each}", "online", number, "", meta) for each in range(64))
    change = entry(uid, number)
    return change._replace(state=change.state._replace(devices=devices))


def test_a_state_that_no_packet_can_hold_is_pushed_as_unknown() -> None:
    desk = Watchers()
    change = entry("ann", 1)
    desk.pushes.push(change._replace(state=change.state._replace(since_ms=-1)))
    desk.pushes.send_slice()
    (packet,) = desk.lines[0].packets()
    assert packet.payload["status"] == "unknown"
    assert desk.pushes.statistics().damaged == 1


# Quiet sessions


def quiet_desk(count: int = 1) -> Watchers:
    """Watchers of whom the first is quiet."""
    desk = Watchers(count)
    desk.quiet.set(desk.sessions[0], is_quiet=True)
    return desk


def test_changes_for_a_quiet_session_are_held_until_they_are_released_the_latest_of_each_user() -> None:
    desk = quiet_desk(2)
    for number, uid in enumerate(("bob", "ann", "bob"), 1):
        desk.change(uid, number)
        desk.pushes.send_slice()
    assert (desk.lines[0].offers, len(desk.pushed(1))) == (0, 3)
    assert desk.quiet.holding == {desk.sessions[0]}
    desk.pushes.release(desk.sessions[0])
    assert desk.lines[0].offers == 0, "in the next turn, behind the answer"
    desk.pushes.send_released_slice()
    assert desk.pushed() == [("bob", "3-0"), ("ann", "2-0")]
    assert not desk.quiet.holding


def test_a_quiet_session_stays_quiet_after_a_release_and_another_gets_changes_immediately() -> None:
    desk = quiet_desk()
    desk.change("ann", 1)
    desk.pushes.send_slice()
    desk.pushes.release(desk.sessions[0])
    desk.pushes.send_released_slice()
    desk.change("ann", 2)
    desk.pushes.send_slice()
    assert desk.pushed() == [("ann", "1-0")]
    desk.quiet.set(desk.sessions[0], is_quiet=False)
    desk.change("ann", 3)
    desk.pushes.release(desk.sessions[0])
    desk.pushes.send_slice()
    desk.pushes.send_released_slice()
    assert desk.pushed() == [("ann", "3-0")]


def test_held_changes_are_dropped_with_the_watch() -> None:
    desk = quiet_desk()
    desk.change("ann", 1)
    desk.change("bob", 2)
    desk.pushes.send_slice()
    desk.pushes.discard(desk.sessions[0], ["ann"])
    assert desk.quiet.holding
    desk.pushes.discard(desk.sessions[0], ["bob"])
    assert not desk.quiet.holding
    desk.pushes.release(desk.sessions[0])
    desk.pushes.send_released_slice()
    assert desk.lines[0].offers == 0


def test_held_packets_are_bounded_by_their_bytes_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DEFERRED_BYTES", module.MAX_DEFERRED_BYTES // 10)
    desk = quiet_desk()
    desk.pushes.with_devices.add(desk.sessions[0])
    names = [f"u{number}" for number in range(200)]
    desk.watches.add(desk.sessions[0], names)
    for uid in names:
        desk.push(many_devices(uid, 7))
        desk.pushes.send_slice()
    statistics = desk.pushes.statistics()
    assert (statistics.held, statistics.put_off) == (200, 0)
    assert (statistics.holding, statistics.slow) == (1, 0)
    assert statistics.late > 0
    assert statistics.deferred_bytes <= module.MAX_DEFERRED_BYTES
    desk.pushes.release(desk.sessions[0])
    desk.pushes.send_released_slice()
    assert len(desk.pushed()) == 200
    assert desk.pushes.statistics().deferred_bytes == 0


def test_a_client_that_reads_slowly_when_it_is_released_gets_its_changes_when_it_has_read() -> None:
    desk = quiet_desk()
    desk.change("ann", 1)
    desk.pushes.send_slice()
    desk.lines[0].slow = True
    desk.pushes.release(desk.sessions[0])
    desk.pushes.send_released_slice()
    desk.change("bob", 2)
    desk.pushes.send_slice()
    desk.lines[0].slow = False
    desk.pushes.all_sent(desk.sessions[0])
    assert desk.pushed() == [("ann", "1-0"), ("bob", "2-0")]
    assert not desk.quiet.holding


def test_a_slice_of_released_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PACKETS_PER_SLICE", 4)
    desk = Watchers(5)
    for watcher in desk.sessions:
        desk.quiet.set(watcher, is_quiet=True)
    desk.change("ann", 1)
    desk.change("bob", 2)
    while desk.pushes.statistics().queued:
        desk.pushes.send_slice()
    for watcher in desk.sessions:
        desk.pushes.release(watcher)
    offers = []
    for _ in range(3):
        desk.pushes.send_released_slice()
        offers.append(sum(line.offers for line in desk.lines))
    assert offers == [2, 4, 5]


def test_changes_of_a_session_that_ends_before_they_are_sent_are_dropped() -> None:
    desk = quiet_desk()
    desk.change("ann", 1)
    desk.pushes.send_slice()
    desk.pushes.release(desk.sessions[0])
    desk.sessions[0].transport = None
    desk.pushes.discard(desk.sessions[0])
    desk.pushes.send_released_slice()
    statistics = desk.pushes.statistics()
    assert (statistics.deferred_bytes, statistics.holding, desk.lines[0].offers) == (0, 0, 0)
