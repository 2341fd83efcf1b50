"""The view of a shard under any order of events: ids rise, states are true, and the final state is the truth.

The model is a server with a stream, records, and at most one connection, whose subscriptions and messages
arrive late. A call is answered as of one time and applied at another, with any changes of subscriptions in
between. Redis may lose its data; then nodes write who is online. The shard is followed as a whole or by user,
and switched between the two. Messages about the whole shard may be lost, older servers send none, and one may
be applied in parts.
"""

from collections import deque
from collections.abc import Container

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import booleans, integers, sampled_from, sets

from presence.watching.channel import Pong, Replay, ShardChanges, ShardJoined, Subscribed, Unsubscribed
from presence.watching.shard_view import ShardView, ViewPhase
from presence.watching.user_states import (
    NO_ENTRY,
    EntryId,
    ShardSnapshot,
    UserEvent,
    WatchedState,
    id_of,
    id_text,
    read_change,
)
from tests.watching.fakes import known_states
from tests.watching.shard import Shard

UIDS = ("ann", "bob", "cy")
ABSENCE_S = 40.0
TRUTHS = ("online", "away", "offline")


class Views(RuleBasedStateMachine):
    """One view, with two watchers of each wanted user, of whom one is shown devices."""

    @initialize(users=integers(0, 3), watched=integers(0, 3), whole=booleans())
    def begin(self, users: int, watched: int, *, whole: bool) -> None:
        self.shard = Shard()
        self.view = ShardView(known_states(), ABSENCE_S)
        self.now = 0.0
        self.pinged: list[EntryId] = []
        self.seen: dict[str, list[WatchedState]] = {}  # by watched user, the states that the watcher got
        self.plain: dict[str, WatchedState] = {}  # the last state of the watcher who is not shown devices
        self.call: ShardSnapshot | Replay | None = None
        self.requests: deque[tuple[bool, str]] = deque()  # in flight: whether to subscribe, and to whom
        self.is_join_sent = False  # whether the subscription to the whole shard is in flight
        self.is_whole_next = whole  # in which way the shard is followed on the next connection
        self.partly: tuple[ShardChanges, int] | None = None  # a message, and how many changes are applied
        self.cursor = 0  # of the comparison
        self.rest = 0  # the cursor of the walk over users to be read again after a loss
        self.heard_from = NO_ENTRY  # when the recovery began
        self.is_finishing = False  # whether a recovery has only deferred events left
        self.positions: list[EntryId] | None = None
        self.lost_data: set[str] = set()
        self.is_reread = False  # whether the call is one of those reads
        self.is_early = False  # whether it reads users out of turn
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

    @rule(uids=sets(sampled_from(UIDS), min_size=2))
    def change_together(self, uids: set[str]) -> None:
        """One call of a script has several transitions."""
        self.shard.write_together((uid, "away" if self.is_online(uid) else "online") for uid in sorted(uids))
        self.lost_data -= uids

    def is_online(self, uid: str) -> bool:
        return uid in self.shard.shown and self.shard.shown[uid].status == "online"

    @rule(is_old=booleans())
    def replace_servers(self, *, is_old: bool) -> None:
        """From now on an older server writes, or a newer one again."""
        self.shard.is_old = is_old

    @rule()
    def lose_message(self) -> None:
        """A message about the whole shard is lost."""
        if self.shard.wire and isinstance(self.shard.wire[0], ShardChanges):
            self.shard.wire.popleft()

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
        self.cursor = 0
        self.is_join_sent = self.is_whole_next
        self.view.connected(whole=self.is_whole_next)
        self.answer()

    def lose(self) -> None:
        self.shard.subscribed.clear()
        self.shard.followed = None
        self.shard.wire.clear()
        self.requests.clear()
        self.call = self.positions = self.partly = None
        self.is_join_sent = self.is_finishing = False
        self.view.lost()

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN and self.call is None)
    @rule()
    def switch(self) -> None:
        """Leave the channel, ignore what comes until a ping is answered, and join in the other way."""
        self.lose()
        self.is_whole_next = not self.view.is_whole
        self.connect()

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN)
    @rule(most=integers(1, 3))
    def send_requests(self, most: int) -> None:
        self.view.forget_dropped(most)
        ask, leave = self.view.next_subscriptions(most)
        self.requests.extend((False, uid) for uid in leave)
        self.requests.extend((True, uid) for uid in ask)

    @rule(most=integers(1, 3))
    def execute(self, most: int) -> None:
        """Subscriptions reach the server."""
        if self.is_join_sent:
            self.is_join_sent = False
            self.shard.followed = 0
            self.shard.wire.append(ShardJoined(0))
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
        for _ in range(most):
            if self.partly is not None:
                self.apply_part(*self.partly)
                continue
            match self.shard.wire.popleft() if self.shard.wire else None:
                case ShardJoined():
                    self.view.shard_joined()
                case ShardChanges() as message:
                    if self.view.begin_changes(message.previous):
                        self.partly = message, 0
                case Subscribed(uid):
                    self.view.subscribed(uid)
                case Unsubscribed(uid):
                    self.view.unsubscribed(uid)
                case Pong(number):
                    self.view.caught_up(self.pinged[number])
                case UserEvent() as entry:
                    self.push([self.view.receive(entry)])
        self.answer()

    def apply_part(self, message: ShardChanges, applied: int) -> None:
        """Apply the next change of a message, or note its end."""
        if applied == len(message.changes):
            self.view.end_changes(message.last)
            self.partly = None
            return
        uid, packed = message.changes[applied]
        entry = read_change(uid, packed)
        assert entry is not None
        if uid in self.view:
            self.push([self.view.receive(entry)])
        self.partly = message, applied + 1

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN and self.call is None)
    @rule(is_walk=booleans())
    def ask(self, *, is_walk: bool) -> None:
        """Begin a call; its answer is as of now."""
        if self.is_finishing:
            self.finish()
        elif self.view.phase is ViewPhase.RECOVERING and self.positions is None:
            self.heard_from = self.view.heard_from
            self.call = self.shard.replay(self.view.position, self.view.known)
        elif self.view.phase is ViewPhase.RECOVERING and is_walk and self.view.is_whole:
            asked = [uid for uid, seen in self.seen.items() if not seen]
            self.snapshot(asked or sorted(self.seen)[:1])
            self.is_early = True
        elif self.view.phase is ViewPhase.RECOVERING and not is_walk:
            uids, self.rest = self.view.known.walk(self.rest, 1)
            self.snapshot(uids, is_reread=True)
        elif is_walk and self.view.phase is ViewPhase.LIVE:
            uids, self.cursor = self.view.known.walk(self.cursor, 2)
            self.snapshot(uids)
        elif unseen := self.view.users_to_read(2):
            self.snapshot(unseen)

    def snapshot(self, uids: list[str], *, is_reread: bool = False) -> None:
        self.view.begin_snapshot(uids)
        self.is_reread, self.is_early = is_reread, False
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
            unanswered = [uid for uid, seen in self.seen.items() if not seen]
            changes = self.view.apply_snapshot(call, self.now, early=self.is_early)
            if self.is_early:
                self.looked_at.update(dict.fromkeys(unanswered, call.as_of))
            for uid in unseen.difference(self.view.users_to_read(9)):
                self.looked_at[uid] = call.as_of
            self.push(changes)
            if self.is_reread and self.positions is not None:
                self.positions.append(call.as_of)
                if self.rest == 0:
                    self.recovered(max(min(self.positions), self.heard_from))
        self.answer()

    def take_replay(self, part: Replay) -> None:
        if part.is_broken:
            self.is_torn = True  # there may be no position yet: nothing was received before the loss
            self.rest, self.positions = 0, []
            self.view.is_rereading = True
            while self.view.has_deferred:
                self.push(self.view.apply_deferred(1))
            return
        self.push(self.view.apply_replay(part.entries, part.position))
        if part.is_end:
            self.recovered(max(part.position, self.heard_from))

    def recovered(self, position: EntryId) -> None:
        self.positions, self.is_finishing = None, True
        self.view.position, self.view.is_rereading = position, False
        self.finish()

    def finish(self) -> None:
        """Apply a deferred event after a recovery, or see that there is a gap, or none left."""
        self.is_finishing = self.view.phase is ViewPhase.RECOVERING and not self.view.has_gap
        if self.is_finishing:
            self.push(self.view.finish_recovery(1))

    @precondition(lambda self: self.view.phase is not ViewPhase.DOWN)
    @rule(
        turns=integers(1, 6),
        uid=sampled_from(UIDS),
        changes=sets(integers(0, 29), max_size=4),
        device=booleans(),
        old=sampled_from([(), range(30), range(0, 30, 2)]),
    )
    def work(
        self, turns: int, uid: str, changes: set[int], *, device: bool, old: Container[int] = ()
    ) -> None:
        """Do all of that a few times; a user changes between some of the steps, and perhaps their devices.

        Some of the changes are written by older servers.
        """
        for turn in range(turns):
            for number, step in enumerate(
                (self.send_all_requests, self.ask_next, self.execute_all, self.receive_some, self.take_it)
            ):
                if 5 * turn + number in changes:
                    self.shard.is_old = 5 * turn + number in old
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
            self.ask(
                is_walk=self.view.is_whole and self.positions is not None and not all(self.seen.values())
            )

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
        """Wait until all has arrived, with a check of the end of the stream."""
        if self.view.phase is ViewPhase.DOWN:
            self.connect()
        self.work(40, UIDS[0], set(), device=False)
        self.ping()
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
            known = self.view.known.all()
            self.view.begin_snapshot(known)
            self.push(self.view.apply_snapshot(self.shard.snapshot(known), self.now))
            self.now += ABSENCE_S
        self.compare()
        self.settle()
        assert self.shard.subscribed == (set() if self.view.is_whole else set(self.seen))

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


@pytest.mark.parametrize("event", ["loss", "loss, then whole", "switch", "switch back"])
@pytest.mark.parametrize("device", [False, True])
def test_a_change_at_any_step_after_a_loss_reaches_every_watcher(event: str, *, device: bool) -> None:
    for at in range(30):
        _change_after_a_loss(at, event, device=device)


def _change_after_a_loss(at: int, event: str, *, device: bool) -> None:
    model = Views()
    model.begin(users=3, watched=3, whole=False)
    if event == "switch back":
        model.switch()
        model.settle()
    if event.startswith("switch"):
        model.switch()
    else:
        model.is_whole_next = event == "loss, then whole"
        model.lose()
        model.connect()
    model.work(6, "ann", {at}, device=device)
    model.last_pushed_states_are_the_known_ones()
    model.teardown()
