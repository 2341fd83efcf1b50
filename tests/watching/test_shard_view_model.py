"""The view of a shard under any order of events: ids rise, states are true, and the final state is the truth.

The model is a server with a stream, records, and at most one connection, whose subscriptions and messages
arrive late. A call is answered as of one time and applied at another, with any changes of subscriptions in
between; a comparison uses an older list. Redis may lose its data; then nodes write who is online.
"""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import booleans, integers, sampled_from, sets

from presence.watching.channel import Pong, Replay, Subscribed, Unsubscribed
from presence.watching.shard_view import ShardView, ViewPhase
from presence.watching.user_states import (
    NO_ENTRY,
    EntryId,
    ShardSnapshot,
    UserEvent,
    WatchedState,
    id_of,
    id_text,
)
from tests.watching.shard import Shard

UIDS = ("ann", "bob", "cy")
ABSENCE_S = 40.0
TRUTHS = ("online", "away", "offline")


class Views(RuleBasedStateMachine):
    """One view, with two watchers of each wanted user, of whom one is shown devices."""

    @initialize(users=integers(0, 3), watched=integers(0, 3))
    def begin(self, users: int, watched: int) -> None:
        self.shard = Shard()
        self.view = ShardView(ABSENCE_S)
        self.now = 0.0
        self.pinged: list[EntryId] = []
        self.seen: dict[str, list[WatchedState]] = {}  # by watched user, the states that the watcher got
        self.plain: dict[str, WatchedState] = {}  # the last state of the watcher who is not shown devices
        self.call: ShardSnapshot | Replay | None = None
        self.requests: deque[tuple[bool, str]] = deque()  # in flight: whether to subscribe, and to whom
        self.walk: list[str] = []  # users still to be compared
        self.rest: list[str] = []  # users still to be read again after a loss
        self.positions: list[EntryId] | None = None
        self.lost_data: set[str] = set()
        self.is_reread = False  # whether the call is one of those reads
        self.is_torn = False  # whether the stream lacks some of what was missed
        self.looked_at: dict[str, EntryId] = {}  # by user, the entry up to which the answer is valid
        for uid in UIDS[:users]:
            self.shard.write(uid, "online")
        for uid in UIDS[:watched]:
            self.watch(uid)
        self.settle()

    # What happens on the server

    @rule(uid=sampled_from(UIDS), to=integers(0, 1))
    def change(self, uid: str, to: int) -> None:
        now = self.shard.shown.get(uid, WatchedState("offline")).status
        self.shard.write(uid, [each for each in TRUTHS if each != now][to])
        self.lost_data.discard(uid)

    @rule(uid=sampled_from(UIDS))
    def change_device(self, uid: str) -> None:
        if uid not in self.lost_data:
            self.shard.write_device(uid)

    @rule(fault=sampled_from(["trim", "lose", "lose", "lose_data"]))
    def fail(self, fault: str) -> None:
        getattr(self, fault)()

    def trim(self) -> None:
        self.is_torn = True
        self.shard.entries.clear()

    def lose_data(self) -> None:
        """Redis restarts empty: its nodes have yet to write who is online."""
        self.is_torn = True
        self.lost_data |= self.shard.shown.keys()
        self.shard.shown.clear()
        self.shard.entries.clear()
        self.shard.last_id = NO_ENTRY
        self.lose()

    @rule(uid=sampled_from(UIDS))
    def register(self, uid: str) -> None:
        if uid in self.lost_data:
            self.lost_data.remove(uid)
            self.shard.write(uid, "online")

    # What clients do

    @rule(uid=sampled_from(UIDS))
    def watch(self, uid: str) -> None:
        self.view.want(uid)
        self.seen.setdefault(uid, [])
        self.answer()

    @rule(uid=sampled_from(UIDS))
    def unwatch(self, uid: str) -> None:
        self.view.drop(uid)
        self.seen.pop(uid, None)

    # What the shell does

    @precondition(lambda self: self.view.phase is ViewPhase.DOWN)
    @rule()
    def connect(self) -> None:
        self.walk = []
        self.view.connected()
        self.answer()

    def lose(self) -> None:
        self.shard.subscribed.clear()
        self.shard.wire.clear()
        self.requests.clear()
        self.call = self.positions = None
        self.view.lost()

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN)
    @rule(most=integers(1, 3))
    def send_requests(self, most: int) -> None:
        ask, leave = self.view.next_subscriptions(most)
        self.requests.extend((False, uid) for uid in leave)
        self.requests.extend((True, uid) for uid in ask)

    @rule(most=integers(1, 3))
    def execute(self, most: int) -> None:
        """Subscriptions reach the server."""
        for _ in range(min(most, len(self.requests))):
            is_asked, uid = self.requests.popleft()
            assert is_asked is (uid not in self.shard.subscribed)
            if is_asked:
                self.shard.subscribed.add(uid)
            else:
                self.shard.subscribed.remove(uid)
            self.shard.wire.append(Subscribed(uid) if is_asked else Unsubscribed(uid))

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN)
    @rule()
    def ping(self) -> None:
        self.shard.wire.append(Pong(len(self.pinged)))
        self.pinged.append(self.shard.last_id)

    @rule(most=integers(1, 4))
    def receive(self, most: int) -> None:
        for _ in range(min(most, len(self.shard.wire))):
            match self.shard.wire.popleft():
                case Subscribed(uid):
                    self.view.subscribed(uid)
                case Unsubscribed(uid):
                    self.view.unsubscribed(uid)
                case Pong(number):
                    self.view.caught_up(self.pinged[number])
                case UserEvent() as entry:
                    self.push([self.view.receive(entry)])
        self.answer()

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN and self.call is None)
    @rule(is_walk=booleans())
    def ask(self, *, is_walk: bool) -> None:
        """Begin a call; its answer is as of now."""
        if self.view.phase is ViewPhase.RECOVERING and self.positions is None:
            self.call = self.shard.replay(self.view.position, self.view.known())
        elif self.view.phase is ViewPhase.RECOVERING and not is_walk:
            self.snapshot(self.rest[:1], is_reread=True)
        elif is_walk and self.view.phase is ViewPhase.LIVE:
            self.walk = self.walk or self.view.known()
            self.snapshot(self.walk[:2])
            self.walk = self.walk[2:]
        elif unseen := self.view.users_to_read(2):
            self.snapshot(unseen)

    def snapshot(self, uids: list[str], *, is_reread: bool = False) -> None:
        self.view.begin_snapshot(uids)
        self.is_reread = is_reread
        self.call = self.shard.snapshot(uids)

    @precondition(lambda self: self.call is not None)
    @rule()
    def take(self) -> None:
        """Apply the answer of the call."""
        call, self.call = self.call, None
        if isinstance(call, Replay):
            self.take_replay(call)
        elif call is not None:
            unseen = set(self.view.users_to_read(9))
            changes = self.view.apply_snapshot(call, self.now)
            for uid in unseen.difference(self.view.users_to_read(9)):
                self.looked_at[uid] = call.as_of
            self.push(changes)
            if self.is_reread and self.positions is not None:
                self.positions.append(call.as_of)
                self.rest = self.rest[1:]
                self.end_rereading()
        self.answer()

    def take_replay(self, part: Replay) -> None:
        if part.is_broken:
            self.is_torn = True  # there may be no position yet: nothing was received before the loss
            self.rest, self.positions = self.view.known(), []
            self.end_rereading()
            return
        self.push(self.view.apply_replay(part.entries, part.position))
        if part.is_end:
            self.push(self.view.finish_recovery())

    def end_rereading(self) -> None:
        if not self.rest:
            self.push(self.view.finish_recovery(min(self.positions or [self.view.position])))
            self.positions = None

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN)
    @rule(
        turns=integers(1, 6),
        uid=sampled_from(UIDS),
        changes=sets(integers(0, 29), max_size=4),
        device=booleans(),
    )
    def work(self, turns: int, uid: str, changes: set[int], *, device: bool) -> None:
        """Do all of that a few times; a user changes between some of the steps, and perhaps their devices."""
        for turn in range(turns):
            for number, step in enumerate(
                (self.send_all_requests, self.ask_next, self.execute_all, self.receive_some, self.take_it)
            ):
                if 5 * turn + number in changes:
                    self.change(uid, number % 2)
                    if device:
                        self.change_device(uid)
                step()

    def send_all_requests(self) -> None:
        self.send_requests(3)

    def execute_all(self) -> None:
        self.execute(3)

    def receive_some(self) -> None:
        self.receive(4)

    def ask_next(self) -> None:
        if self.call is None:
            self.ask(is_walk=False)

    def take_it(self) -> None:
        if self.call is not None:
            self.take()

    @rule(seconds=sampled_from([1.0, ABSENCE_S]))
    def wait(self, seconds: float) -> None:
        if not self.lost_data:  # nodes register sooner than that
            self.now += seconds

    # What must hold

    def push(self, changes: list[UserEvent] | list[UserEvent | None]) -> None:
        for change in changes:
            if change is None or not self.seen.get(change.uid):
                continue  # no watcher was answered yet
            if not change.is_of_device:
                self.plain[change.uid] = change.state
            before = [state for state in self.seen[change.uid] if state.id]
            assert not before or id_of(change.state.id or "0") > id_of(before[-1].id), "ids rise"
            assert change.id > self.looked_at[change.uid], "the answer included that"
            if (change.uid, change.state.id) not in self.shard.written:
                assert change.state.status == "offline"
                assert change.uid not in self.lost_data, "Redis lost its data; the user is online"
            assert change.is_hidden or id_text(change.id) == change.state.id
            self.seen[change.uid].append(change.state)

    def answer(self) -> None:
        for uid, seen in self.seen.items():
            state = self.view.current(uid)
            if not seen and state is not None:
                seen.append(state)
                self.plain[uid] = state

    @invariant()
    def states_are_those_of_entries(self) -> None:
        for uid, seen in getattr(self, "seen", {}).items():
            for state in seen:
                if state.status != "offline":
                    assert self.shard.written[uid, state.id] == state

    @invariant()
    def last_pushed_states_are_the_known_ones(self) -> None:
        for uid, seen in getattr(self, "seen", {}).items():
            if seen and (known := self.view.current(uid)) is not None:
                assert seen[-1] == known
                shown = self.plain[uid]._replace(id=known.id, devices=known.devices)
                assert shown == known, "without devices the watchers are shown the same"

    def settle(self) -> None:
        if self.view.phase is ViewPhase.DOWN:
            self.connect()
        self.work(40, UIDS[0], set(), device=False)
        assert self.view.phase is ViewPhase.LIVE

    def teardown(self) -> None:
        """In the end, without further changes, every watcher has the truth."""
        if not hasattr(self, "shard"):
            return
        for uid in sorted(self.lost_data):
            self.shard.write(uid, "online")
        self.lost_data.clear()
        for _ in range(2):
            self.settle()
            if not self.is_torn:
                self.compare()
            known = self.view.known()
            self.view.begin_snapshot(known)
            self.push(self.view.apply_snapshot(self.shard.snapshot(known), self.now))
            self.now += ABSENCE_S
        self.compare()
        self.settle()
        assert self.shard.subscribed == set(self.seen)

    def compare(self) -> None:
        for uid, seen in self.seen.items():
            truth = self.shard.shown.get(uid, WatchedState("offline"))
            known = self.view.current(uid)
            assert known is not None
            assert seen[-1].status == known.status == truth.status
            if truth.status != "offline":
                assert known == truth


Views.TestCase.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=50, deadline=None
)
TestViews = Views.TestCase


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("at", range(30))
def test_a_change_at_any_step_after_a_loss_reaches_every_watcher(at: int, *, device: bool) -> None:
    model = Views()
    model.begin(users=3, watched=3)
    model.lose()
    model.connect()
    model.work(6, "ann", {at}, device=device)
    model.last_pushed_states_are_the_known_ones()
    model.teardown()
