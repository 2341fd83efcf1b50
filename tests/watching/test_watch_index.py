"""Watches in both directions against a set of pairs, and which changes a watch gets while they are queued."""

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, none, sampled_from, tuples

from presence.common.faults import Faults
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.watching import push_queue as module
from presence.watching.push_queue import PushQueue
from presence.watching.user_table import MAX_HOLDS, UserTable
from presence.watching.watch_index import Watches
from tests.watching.fakes import Line, entry, session

UIDS = ("ann", "bob", "cy", "dee")
SESSIONS = 40  # enough for crowds
uids = lists(sampled_from(UIDS), max_size=6)
steps = tuples(
    sampled_from(["add", "remove"]), lists(integers(0, SESSIONS - 1), max_size=SESSIONS), uids | none()
)


@given(lists(steps, max_size=30))
def test_both_directions_are_as_a_set_of_pairs(played: list[tuple[str, list[int], list[str] | None]]) -> None:
    users = UserTable()
    watches, sessions = Watches(users), [session(f"watcher-{number}")[0] for number in range(SESSIONS)]
    pairs: set[tuple[int, str]] = set()
    for step, numbers, some in played:
        for number in numbers:
            if step == "add":
                watches.add(sessions[number], some or ())
                pairs |= {(number, uid) for uid in some or ()}
            else:
                before = {uid for _, uid in pairs}
                unwatched = watches.remove(sessions[number], some)
                pairs -= {(number, uid) for uid in (UIDS if some is None else some)}
                assert sorted(unwatched) == sorted(before.difference(uid for _, uid in pairs))
    watching = {number for number, _ in pairs}
    assert (len(watches), watches.sessions, len(users)) == (
        len(pairs),
        len(watching),
        len({uid for _, uid in pairs}),
    )
    for number, each in enumerate(sessions):
        watched = {uid for other, uid in pairs if other == number}
        assert sorted(watches.watched_by(each)) == sorted(watched)
        assert watches.count(each) == len(watched)
        assert watches.count(each, {"ann", "eve"}) == len(watched | {"ann", "eve"})
        assert [watches.has(each, uid) for uid in (*UIDS, "eve")] == [
            uid in watched for uid in (*UIDS, "eve")
        ]
    for uid in (*UIDS, "eve"):
        watchers = [sessions[number] for number, other in pairs if other == uid]
        assert sorted(map(id, watches.watchers(uid))) == sorted(map(id, watchers))
        assert watches.is_watched(uid) is bool(watchers)
    for each in sessions:
        watches.remove(each)
    assert len(users) == 0


def test_a_user_may_have_more_watchers_than_a_slot_may_have_holders() -> None:
    users = UserTable()
    watches, sessions = Watches(users), [session(f"watcher-{number}")[0] for number in range(2 * MAX_HOLDS)]
    for each in sessions:
        watches.add(each, ["ann"])
    assert len(watches.watchers("ann")) == 2 * MAX_HOLDS


class Play:
    """Clients that watch, unwatch and leave while changes are queued; `news` is what each watch is to get."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.watches = Watches(UserTable())
        self.pushes = PushQueue(self.watches, Faults(), lambda _uid: None, QuietSessions())
        self.clients: list[tuple[Session, Line]] = [
            session(f"watcher-{number}") for number in range(SESSIONS)
        ]
        self.news: dict[tuple[int, str], list[str]] = {}
        self.taken: dict[tuple[int, str], list[str]] = defaultdict(list)
        self.changes = 0

    def step(self) -> None:
        number, some = self.random.randrange(SESSIONS), self.random.sample(UIDS, 2)
        client = self.clients[number][0]
        match self.random.randrange(12):
            case 0:
                self.pushes.discard(client)
                self.watches.remove(client)
                self.end(number, UIDS)
            case 1:
                self.pushes.discard(client, some)
                self.watches.remove(client, some)
                self.end(number, some)
            case 2 | 3 | 4 | 5:
                self.pushes.answered(client, some)
                self.watches.add(client, some)
                self.end(number, some)
                self.news.update({(number, uid): [] for uid in some})
            case 6 | 7 | 8:
                self.changes += 1
                self.pushes.push(entry(some[0], self.changes))
                for (_, uid), news in self.news.items():
                    if uid == some[0]:
                        news.append(f"{self.changes}-0")
            case _:
                self.pushes.send_slice()
        self.read()

    def end(self, number: int, uids: list[str] | tuple[str, ...]) -> None:
        for uid in uids:
            self.news.pop((number, uid), None)
            self.taken.pop((number, uid), None)

    def read(self) -> None:
        for number, (_, line) in enumerate(self.clients):
            for packet in line.packets():
                watch = number, packet.payload["uid"]
                self.taken[watch].append(packet.payload["id"])
                assert self.taken[watch] == self.news[watch][: len(self.taken[watch])]

    def drain(self) -> None:
        while self.pushes.statistics().queued:
            self.pushes.send_slice()
        self.read()
        assert {watch: self.taken[watch] for watch in self.news} == self.news


@pytest.mark.parametrize("seed", range(4))
def test_a_watch_gets_each_change_after_its_answer_once_and_none_before(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(module, "MAX_PACKETS_PER_SLICE", 5)
    play = Play(seed)
    for _ in range(20):
        for _ in range(100):
            play.step()
        play.drain()
    assert not play.pushes._sent_later, "forgotten with the changes that it is about"
