"""A client that watches, with servers that may be behind, on a network that breaks at any time.

Meanwhile the backend changes the roster of the user. Servers send states as rows or in the older form, and
older ones keep no rosters. Planted faults are noticed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from presence import protocol
from presence.client import PresenceChanged, State, WatchEnded
from presence.client.watched_users import WatchedUsers
from presence.protocol import Code, Kind, Packet, to_row
from tests.client.machine_driver import Driven

UIDS = ("ann", "bob", "eve", "kim")
STATUSES = ("online", "away", "offline")


class Server:
    """The history of each user, and how much of it the node of the current connection knows."""

    def __init__(self) -> None:
        self.histories: dict[str, list[str]] = {uid: ["offline"] for uid in UIDS}
        self.known: dict[str, int] = dict.fromkeys(UIDS, 0)
        self.roster = {"bob", "kim"}
        self.sends_rows = self.keeps_rosters = True
        self.forget_connection()

    def forget_connection(self) -> None:
        self.named: set[str] = set()
        self.listed: set[str] = set()  # watched because of the roster
        self.unwatched: set[str] = set()  # of the roster
        self.follows_roster = False

    def state(self, uid: str, number: int, *, with_id: bool = True) -> dict[str, object]:
        status = self.histories[uid][number]
        last_seen = number if status == "offline" else None
        has_id = with_id or status != "offline"
        return {"status": status, "id": f"{number}-0" if has_id else None, "last_seen_ms": last_seen}

    def change(self, uid: str, state: Mapping[str, Any], reason: str) -> Packet:
        if self.sends_rows:
            return protocol.changes([to_row(uid, {**state, "reason": reason})])
        return protocol.presence(uid, state, reason)

    def watch(self, request: Packet, *, with_id: bool) -> Packet:
        uids = set(request.payload["uids"])
        self.named |= uids
        more: dict[str, Any] = {}
        if request.payload.get("roster") and self.keeps_rosters:
            self.follows_roster = True
            self.listed |= self.roster
            self.unwatched.clear()
            uids |= self.roster
            more["roster"] = len(self.roster)
        states = {uid: self.state(uid, self.known[uid], with_id=with_id) for uid in uids}
        if self.sends_rows:
            return protocol.ok(request.id, states=[to_row(*each) for each in states.items()], **more)
        return protocol.ok(request.id, presence=states, **more)

    def unwatch(self, request: Packet) -> Packet:
        uids = set(request.payload.get("uids", UIDS))
        self.named -= uids
        self.listed -= uids
        self.unwatched |= uids & self.roster
        if "uids" not in request.payload or request.payload.get("roster"):
            self.follows_roster = False
            self.listed.clear()
            self.unwatched.clear()
        return protocol.ok(request.id)

    def list(self, uid: str) -> list[Packet]:
        """Add a user to the roster, or remove them; return what the client is sent."""
        self.roster ^= {uid}
        if not self.follows_roster or uid in self.named | self.unwatched:
            return []
        self.listed ^= {uid}
        if uid in self.roster:
            return [self.change(uid, self.state(uid, self.known[uid]), "watched")]
        return [self.change(uid, {"status": "removed"}, "removed")]


class Watching(RuleBasedStateMachine):
    """A user's states rise by their ids, and the final view is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.driven = Driven(chance=0.5)
        self.driven.log_in()
        self.seen = 0
        self.wanted: set[str] = set()  # named by the program
        self.told: set[str] = set()  # of the others, those who are watched, as the program was told
        self.follows_roster = self.had_roster = False
        self.shown_ids: dict[str, int | None] = {}  # by uid, the id of the last state that the program got
        self.shown_status: dict[str, str] = {}  # by uid, the last status that the program got
        self.program_watches(["ann"], with_id=False)
        self.program_watches_the_roster()

    @precondition(lambda self: self.online)
    @rule(uids=st.lists(st.sampled_from(UIDS), min_size=1), with_id=st.booleans())
    def program_watches(self, uids: list[str], with_id: bool) -> None:
        before = self.view()
        id = self.driven.ask(protocol.watch(uids))
        self.server_answers(False, with_id)
        assert id in self.driven.answers
        self.wanted |= set(uids)
        self.note_states({*uids} - before.keys())
        self.check()

    @rule(uids=st.lists(st.sampled_from(UIDS), min_size=1))
    def program_watches_soon(self, uids: list[str]) -> None:
        self.driven.machine.watch_nowait(uids, self.driven.now)
        self.driven.note([])
        self.wanted |= set(uids)

    @precondition(lambda self: self.online)
    @rule()
    def program_watches_the_roster(self) -> None:
        before = self.view()
        id = self.driven.ask(self.driven.machine.persistent_state.watch([], roster=True))
        self.server_answers(False, True)
        assert isinstance(self.driven.answers[id], Exception) is not self.server.keeps_rosters
        if self.server.keeps_rosters:
            self.follows_roster = self.had_roster = True
            self.told |= self.server.roster
            self.note_states(self.server.roster - before.keys())
        self.check()

    @rule()
    def program_watches_the_roster_soon(self) -> None:
        self.driven.machine.watch_roster_nowait(self.driven.now)
        self.driven.note([])
        self.follows_roster = True

    @rule(uid=st.one_of(st.none(), st.sampled_from(UIDS)))
    def program_unwatches(self, uid: str | None) -> None:
        uids = None if uid is None else [uid]
        self.driven.machine.unwatch(uids, 1.0, self.driven.now)
        self.driven.note([])
        gone = set(UIDS if uids is None else uids)
        self.wanted -= gone
        self.told -= gone
        for each in gone:
            self.shown_ids.pop(each, None)
        if uids is None:
            self.follows_roster = self.had_roster = False
        self.server_answers(False, True)

    @rule()
    def program_unwatches_the_roster(self) -> None:
        self.driven.machine.unwatch_roster(1.0, self.driven.now)
        self.driven.note([])
        for each in self.told - self.wanted:
            self.shown_ids.pop(each, None)
        self.told.clear()
        self.server_answers(False, True)
        self.follows_roster = self.had_roster = False

    @rule(uid=st.sampled_from(UIDS), status=st.sampled_from(STATUSES))
    def user_changes(self, uid: str, status: str) -> None:
        if status != self.server.histories[uid][-1]:
            self.server.histories[uid].append(status)

    @rule(uid=st.sampled_from(UIDS))
    def backend_lists(self, uid: str) -> None:
        self.server_answers(False, True)
        packets = self.server.list(uid)
        if self.online:
            self.driven.receive(*packets)
        self.check()

    @rule(rows=st.booleans())
    def server_changes_the_form(self, rows: bool) -> None:
        self.server.sends_rows = rows

    @precondition(lambda self: self.online)
    @rule(uid=st.sampled_from(UIDS), count=st.integers(1, 3))
    def node_receives(self, uid: str, count: int) -> None:
        """The node receives some changes; watchers get the newest."""
        self.server_answers(False, True)
        history, known = self.server.histories[uid], self.server.known
        after = min(len(history) - 1, known[uid] + count)
        if after > known[uid]:
            known[uid] = after
            if uid in self.server.named | self.server.listed:
                self.driven.receive(self.server.change(uid, self.server.state(uid, after), "login"))
        self.check()

    @rule(busy=st.booleans(), with_id=st.booleans())
    def server_answers(self, busy: bool, with_id: bool) -> None:
        """Answer pending requests in order."""
        while self.online and self.seen < len(self.driven.sent):
            packet = self.driven.sent[self.seen]
            self.seen += 1
            if packet.kind == Kind.WATCH and busy:
                self.driven.receive(protocol.error(packet.id, Code.BUSY, "later", 1.0))
            elif packet.kind == Kind.WATCH:
                answer = self.server.watch(packet, with_id=with_id)
                self.had_roster = self.had_roster or "roster" in answer.payload
                self.driven.receive(answer)
            elif packet.kind == Kind.UNWATCH:
                self.driven.receive(self.server.unwatch(packet))
            elif packet.kind == Kind.KEEPALIVE and packet.id is not None:
                self.driven.receive(protocol.ok(packet.id))
            if busy:
                break
        self.check()

    @rule(behind=st.integers(0, 3), busy=st.booleans(), keeps_rosters=st.booleans())
    def connection_moves(self, behind: int, busy: bool, keeps_rosters: bool) -> None:
        """Reconnect to a node that may lag behind the previous one, or be older."""
        self.driven.lose()
        while self.driven.machine.state is not State.CONNECTING:
            self.driven.run(1.0)
        self.server.forget_connection()
        self.server.keeps_rosters = keeps_rosters
        self.server.known = {
            uid: max(0, len(history) - 1 - behind) for uid, history in self.server.histories.items()
        }
        before = len(self.driven.sent)
        self.driven.log_in()
        self.seen = before + 1  # the login
        if busy:
            self.server_answers(True, True)

    @property
    def online(self) -> bool:
        return self.driven.machine.state is State.ONLINE

    def view(self) -> dict[str, Any]:
        return self.driven.machine.persistent_state.watches.states()

    def note_states(self, uids: Iterable[str]) -> None:
        """The program got the states of users from an answer."""
        for uid in uids:
            state = self.view()[uid]
            self.shown_ids[uid] = int(state.id.partition("-")[0]) if state.id else None
            self.shown_status[uid] = state.status

    def check(self) -> None:
        """Check that each change is newer than the last one of its user, and true."""
        for push in self.driven.pushes:
            if isinstance(push, WatchEnded):
                assert push.code == Code.UNSUPPORTED
                assert not self.had_roster, "an older server is asked for its users by name"
                self.follows_roster = False
            elif isinstance(push, PresenceChanged):
                self.check_change(push)
        self.driven.pushes.clear()

    def check_change(self, push: PresenceChanged) -> None:
        self.shown_status[push.uid] = push.state.status
        if push.reason == "removed":
            assert push.uid in self.told - self.wanted
            self.told.discard(push.uid)
            self.shown_ids.pop(push.uid, None)
            return
        self.told.add(push.uid)
        before, number = self.shown_ids.get(push.uid), int((push.state.id or "-").partition("-")[0] or -1)
        if push.state.id is None:
            assert push.state.status == "offline"
            self.shown_ids[push.uid] = None
            return
        assert push.state.status == self.server.histories[push.uid][number]
        assert before is None or number > before, (push, before)
        self.shown_ids[push.uid] = number

    @invariant()
    def the_view_has_whom_the_program_named_and_was_told_of(self) -> None:
        assert self.view().keys() - self.wanted == self.told - self.wanted
        assert self.wanted <= self.view().keys()

    def teardown(self) -> None:
        """When everything has been delivered, the view is the truth."""
        if not self.online:
            return  # it failed while it was made
        for _ in range(30):
            self.server_answers(False, True)
            self.driven.run(1.0)
        for uid in UIDS:
            self.node_receives(uid, 10_000)
        watched = set(self.wanted)
        if self.follows_roster and self.server.keeps_rosters:
            watched |= self.server.roster - self.server.unwatched
        elif self.follows_roster:
            watched |= self.told
        truth = {uid: self.server.histories[uid][-1] for uid in watched}
        assert {uid: state.status for uid, state in self.view().items()} == truth
        assert {uid: self.shown_status[uid] for uid in watched} == truth


TestWatching = Watching.TestCase
TestWatching.settings = settings(stateful_step_count=50, deadline=None)

Methods = Callable[..., Any]


def forgets_who_is_listed(right: Methods) -> Methods:
    def roster_granted(self: WatchedUsers, *arguments: Any, **options: Any) -> Any:
        self._listed.clear()
        return right(self, *arguments, **options)

    return roster_granted


def takes_named_users_for_listed(right: Methods) -> Methods:
    def request_granted(self: WatchedUsers, *arguments: Any, is_own: bool) -> Any:
        listed = {*self._listed}
        changes = right(self, *arguments, is_own=is_own)
        self._listed |= listed
        return changes

    return request_granted


@pytest.mark.parametrize(
    ("method", "plant"),
    [
        ("roster_granted", forgets_who_is_listed),
        ("request_granted", takes_named_users_for_listed),
    ],
)
def test_a_planted_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch, method: str, plant: Callable[[Methods], Methods]
) -> None:
    monkeypatch.setattr(WatchedUsers, method, plant(getattr(WatchedUsers, method)))
    enough = settings(
        max_examples=300,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(Watching, settings=enough)
