"""A client that watches, with servers that may be behind, on a network that breaks at any time."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from presence import protocol
from presence.client import PresenceChanged, State, WatchEnded
from presence.protocol import Code, Kind
from tests.client.machine_driver import Driven

UIDS = ("ann", "bob", "eve")
STATUSES = ("online", "away", "offline")


class Server:
    """The history of each user, and how much of it the node of the current connection knows."""

    def __init__(self) -> None:
        self.histories: dict[str, list[str]] = {uid: ["offline"] for uid in UIDS}
        self.known: dict[str, int] = dict.fromkeys(UIDS, 0)
        self.watched: set[str] = set()

    def state(self, uid: str, number: int, *, with_id: bool = True) -> dict[str, object]:
        status = self.histories[uid][number]
        last_seen = number if status == "offline" else None
        has_id = with_id or status != "offline"
        return {"status": status, "id": f"{number}-0" if has_id else None, "last_seen_ms": last_seen}


class Watching(RuleBasedStateMachine):
    """A user's states rise by their ids, and the final view is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.driven = Driven(chance=0.5)
        self.driven.log_in()
        self.seen = 0
        self.wanted: set[str] = set()
        self.shown_ids: dict[str, int | None] = {}  # by uid, the id of the last state that the program got
        self.shown_status: dict[str, str] = {}  # by uid, the last status that the program got
        self.program_watches(list(UIDS), with_id=False)

    @precondition(lambda self: self.online)
    @rule(uids=st.lists(st.sampled_from(UIDS), min_size=1), with_id=st.booleans())
    def program_watches(self, uids: list[str], with_id: bool) -> None:
        before = self.driven.machine.persistent_state.watches.states()
        id = self.driven.ask(protocol.watch(uids))
        self.server_answers(False, with_id)
        assert id in self.driven.answers
        self.wanted |= set(uids)
        for uid in {*uids} - before.keys():
            state = self.driven.machine.persistent_state.watches.states()[uid]
            self.shown_ids[uid] = int(state.id.partition("-")[0]) if state.id else None
            self.shown_status[uid] = state.status
        self.check()

    @rule(uid=st.one_of(st.none(), st.sampled_from(UIDS)))
    def program_unwatches(self, uid: str | None) -> None:
        uids = None if uid is None else [uid]
        self.driven.machine.unwatch(uids, 1.0, self.driven.now)
        self.driven.note([])
        self.server_answers(False, True)
        self.wanted -= set(UIDS if uids is None else uids)

    @rule(uid=st.sampled_from(UIDS), status=st.sampled_from(STATUSES))
    def user_changes(self, uid: str, status: str) -> None:
        if status != self.server.histories[uid][-1]:
            self.server.histories[uid].append(status)

    @precondition(lambda self: self.online)
    @rule(uid=st.sampled_from(UIDS), count=st.integers(1, 3))
    def node_receives(self, uid: str, count: int) -> None:
        """The node receives some changes; watchers get the newest."""
        self.server_answers(False, True)
        history, known = self.server.histories[uid], self.server.known
        after = min(len(history) - 1, known[uid] + count)
        if after > known[uid]:
            known[uid] = after
            if uid in self.server.watched:
                self.driven.receive(protocol.presence(uid, self.server.state(uid, after), "login"))
        self.check()

    @precondition(lambda self: self.online)
    @rule(busy=st.booleans(), with_id=st.booleans())
    def server_answers(self, busy: bool, with_id: bool) -> None:
        """Answer pending requests in order."""
        requests, self.seen = self.driven.sent[self.seen :], len(self.driven.sent)
        for packet in requests:
            uids = packet.payload.get("uids", UIDS)
            if packet.kind == Kind.WATCH and busy:
                self.driven.receive(protocol.error(packet.id, Code.BUSY, "later", 1.0))
            elif packet.kind == Kind.WATCH:
                self.server.watched |= set(uids)
                known = self.server.known
                states = {uid: self.server.state(uid, known[uid], with_id=with_id) for uid in uids}
                self.driven.receive(protocol.ok(packet.id, presence=states))
            elif packet.kind == Kind.UNWATCH:
                self.server.watched -= set(uids)
                self.driven.receive(protocol.ok(packet.id))
            elif packet.kind == Kind.KEEPALIVE and packet.id is not None:
                self.driven.receive(protocol.ok(packet.id))
        self.check()

    @rule(behind=st.integers(0, 3), busy=st.booleans())
    def connection_moves(self, behind: int, busy: bool) -> None:
        """Reconnect to a node that may lag behind the previous one."""
        self.driven.lose()
        while self.driven.machine.state is not State.CONNECTING:
            self.driven.run(1.0)
        self.driven.log_in()
        self.server.watched.clear()
        self.server.known = {
            uid: max(0, len(history) - 1 - behind) for uid, history in self.server.histories.items()
        }
        self.seen = next(
            number + 1
            for number in range(len(self.driven.sent) - 1, -1, -1)
            if self.driven.sent[number].kind == Kind.LOGIN
        )
        if busy:
            self.server_answers(True, True)

    @property
    def online(self) -> bool:
        return self.driven.machine.state is State.ONLINE

    def check(self) -> None:
        """Check that each change is newer than the last one of its user, and true."""
        for push in self.driven.pushes:
            assert not isinstance(push, WatchEnded)
            if not isinstance(push, PresenceChanged):
                continue
            self.shown_status[push.uid] = push.state.status
            before, number = self.shown_ids.get(push.uid), int((push.state.id or "-").partition("-")[0] or -1)
            if push.state.id is None:
                assert push.state.status == "offline"
                self.shown_ids[push.uid] = None
                continue
            assert push.state.status == self.server.histories[push.uid][number]
            assert before is None or number > before, (push, before)
            self.shown_ids[push.uid] = number
        self.driven.pushes.clear()

    @invariant()
    def wanted_users_are_known(self) -> None:
        assert self.driven.machine.persistent_state.watches.states().keys() == self.wanted

    def teardown(self) -> None:
        """When everything has been delivered, the view is the truth."""
        for _ in range(30):
            self.server_answers(False, True)
            self.driven.run(1.0)
        for uid in UIDS:
            self.node_receives(uid, 10_000)
        truth = {uid: self.server.histories[uid][-1] for uid in self.wanted}
        view = self.driven.machine.persistent_state.watches.states()
        assert {uid: state.status for uid, state in view.items()} == truth
        assert {uid: self.shown_status[uid] for uid in self.wanted} == truth


TestWatching = Watching.TestCase
TestWatching.settings = settings(stateful_step_count=50, deadline=None)
