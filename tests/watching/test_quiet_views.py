"""Clients that are quiet now and then, under churn: after each end of quiet, a view is as the users are."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from presence.common.faults import Faults
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.watching import push_queue as module
from presence.watching.push_queue import PushQueue
from presence.watching.user_states import WatchedState
from presence.watching.user_table import UserTable
from presence.watching.watch_index import Watches
from tests.watching.fakes import Line, entry, session

USERS = [f"user-{number}" for number in range(12)]
WATCHERS = 6
MOMENTS = 1_200  # of one seed


@dataclass
class Watcher:
    """A client: what it watches, and what it was last told of each user."""

    session: Session
    line: Line
    view: dict[str, str | None] = field(default_factory=dict)  # ids

    def read(self) -> None:
        for packet in self.line.packets():
            uid, id = packet.payload["uid"], packet.payload["id"]
            if uid in self.view:  # what was in flight when it unwatched may still arrive
                assert _number(id) > _number(self.view[uid]), (
                    "no state is older than the one before, or the same"
                )
                self.view[uid] = id


def _number(id: str | None) -> int:
    return int((id or "0-0").split("-")[0])


class Churn:
    """Watchers and users who do anything at any time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.watches, self.quiet = Watches(UserTable()), QuietSessions()
        self.latest: dict[str, WatchedState] = {}
        self.pushes = PushQueue(self.watches, Faults(), self.latest.get, self.quiet)
        self.watchers = [Watcher(*session(f"watcher-{number}")) for number in range(WATCHERS)]
        self.changes = self.moments = 0

    def step(self) -> None:
        """Let one thing happen."""
        each = self.random.choice(self.watchers)
        steps: dict[Callable[[], object], int] = {
            self.change: 12,
            self.pushes.send_slice: 6,
            self.pushes.send_released_slice: 3,
            lambda: self.watch(each): 2,
            lambda: self.unwatch(each): 1,
            lambda: self.quiet.set(each.session, is_quiet=True): 4,
            lambda: self.slow_down(each): 1,
            lambda: self.send_packet(each): 3,
            lambda: self.end_quiet(each): 3,
        }
        (step,) = self.random.choices(list(steps), list(steps.values()))
        step()

    def change(self) -> None:
        self.changes += 1
        change = entry(self.random.choice(USERS), self.changes, self.random.choice(("online", "offline")))
        self.latest[change.uid] = change.state
        self.pushes.push(change)

    def watch(self, each: Watcher) -> None:
        uids = self.random.sample(USERS, 3)
        each.read()
        self.pushes.answered(each.session, uids)
        self.watches.add(each.session, uids)
        each.view.update({uid: self.latest[uid].id if uid in self.latest else None for uid in uids})

    def unwatch(self, each: Watcher) -> None:
        uids = self.random.sample(USERS, 2)
        self.pushes.discard(each.session, uids)
        self.watches.remove(each.session, uids)
        each.read()
        for uid in uids:
            each.view.pop(uid, None)

    def slow_down(self, each: Watcher) -> None:
        each.line.slow = True

    def catch_up(self, each: Watcher) -> None:
        """The client reads everything, and the transport reports it."""
        if each.line.slow:
            each.line.slow = False
            self.pushes.all_sent(each.session)

    def send_packet(self, each: Watcher) -> None:
        """The engine, as it handles any packet."""
        if each.session in self.quiet.holding:
            self.pushes.release(each.session)

    def end_quiet(self, each: Watcher) -> None:
        self.quiet.set(each.session, is_quiet=False)
        self.send_packet(each)
        while (statistics := self.pushes.statistics()).queued or statistics.released:
            self.pushes.send_slice()
            self.pushes.send_released_slice()
        self.catch_up(each)
        each.read()
        truth = {uid: self.latest[uid].id for uid in each.view if uid in self.latest}
        assert {uid: id for uid, id in each.view.items() if uid in self.latest} == truth
        self.moments += 1


@pytest.mark.parametrize("room_bytes", [module.MAX_DEFERRED_BYTES, 300], ids=["", "little room"])
@pytest.mark.parametrize("seed", range(2))
def test_after_each_end_of_quiet_a_view_is_as_the_users_are(
    monkeypatch: pytest.MonkeyPatch, seed: int, room_bytes: int
) -> None:
    monkeypatch.setattr(module, "MAX_DEFERRED_BYTES", room_bytes)
    monkeypatch.setattr(module, "MAX_PACKETS_PER_SLICE", 3)
    churn = Churn(seed)
    while churn.moments < MOMENTS:
        churn.step()
    statistics = churn.pushes.statistics()
    assert statistics.held > MOMENTS
    assert statistics.put_off > 0
    assert (statistics.late > 0) is (room_bytes == 300)
