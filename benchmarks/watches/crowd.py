"""The clients of one process: each watches its friends, and some change, fall silent, leave and come back.

A view is what a client knows of a friend: the id of the newest state and its status. An id ``ms-n`` is kept
as one integer, ms · 2^20 + n. The views of all clients are two arrays beside the one of their friends, so a
watch takes 13 bytes here.

Each push is logged, and each thing that a client does: an *action* is a user, the code of the event that it
causes, the time right before it was sent, and its id where the client gives one (MQTT).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import lt
from time import monotonic

from benchmarks.watches.graph import FriendGraph
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.protocol import Code

ID_BITS = 20
NEVER = -1  # the id of a view before the first answer
NO_ID = 0  # of a state without one
UID = "user-{:06d}"  # 11 bytes
UID_DIGITS_AT = 5
STATUSES = ("", "online", "away", "offline", "unknown", "not_allowed")
STATUS_NUMBERS = {name: number for number, name in enumerate(STATUSES)}
AWAY_S = (4.0, 8.0)  # until an away user is back
GONE_S = 3.0  # until a user who has logged out, or whose session has ended, logs in again
CHOICE_ATTEMPTS = 50  # to find a user with nothing to do
# What users do, and how many of a hundred
MIX = {"away": 40, "meta": 20, "leave": 25, "silence": 15}


def number_of(uid: str) -> int:
    return int(uid[UID_DIGITS_AT:])


def id_number(ms: int, n: int) -> int:
    return ms << ID_BITS | n


@lru_cache(maxsize=1 << 16)  # the watchers of a user get the same
def entry_id_number(entry_id: str | None) -> int:
    """Return the number of an id as packets have it."""
    if not entry_id:
        return NO_ID
    ms, _, n = entry_id.partition("-")
    return id_number(int(ms), int(n))


@dataclass
class CrowdStatus:
    """Counts of a process: the clients as they are, the others since the last `begin_phase`."""

    logged_in: int = 0
    watching: int = 0  # clients whose last watch was answered on their present connection
    episodes: int = 0  # users who are away, gone or silent, and will be back
    pushes: int = 0  # changes in pushed packets
    push_packets: int = 0
    push_bytes: int = 0  # of these packets, headers included
    watches: int = 0  # requests sent
    answers: int = 0  # states in their answers
    answer_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # requests, by reason
    lost: Counter[str] = field(default_factory=Counter)  # connections that clients did not mean to end
    broken: Counter[str] = field(default_factory=Counter)  # promises
    late_max_s: float = 0.0
    watch_s: list[float] = field(default_factory=list, repr=False)  # of each watch until its answer

    def __add__(self, other: CrowdStatus) -> CrowdStatus:
        found = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return CrowdStatus(**found | {"late_max_s": max(self.late_max_s, other.late_max_s)})


@dataclass
class CrowdLog:
    """What was seen and done since `begin_phase`, in columns; times are monotonic seconds."""

    push_watchers: array[int] = field(default_factory=lambda: array("I"))
    push_users: array[int] = field(default_factory=lambda: array("I"))
    push_ids: array[int] = field(default_factory=lambda: array("q"))
    push_at: array[float] = field(default_factory=lambda: array("d"))
    action_users: array[int] = field(default_factory=lambda: array("I"))
    action_codes: array[int] = field(default_factory=lambda: array("I"))
    action_ids: array[int] = field(default_factory=lambda: array("q"))
    action_at: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True)
class Views:
    """The present views of one process, as of `FriendGraph.friends`, and its users' own statuses."""

    graph: FriendGraph
    ids: Sequence[int]
    statuses: bytearray
    own_statuses: bytearray  # by user
    is_watching: bytearray  # by user
    nodes: list[str]  # by user: the server's node, "" if it does not say


class Friend(LoopClient, ABC):
    """A client that watches its friends on every connection; subclasses speak a protocol.

    Attributes:
        number: of its user.
        status: its own, as it has told the server.
        node: that it is connected to; "" if the server does not say.
        is_watching: whether its watch was answered on this connection.
        is_engaged: whether it is away, gone or silent.
        came_by: code of the event that its next login causes; 0: none, as for a quick return.
    """

    def __init__(self, crowd: Crowd, number: int) -> None:
        super().__init__(crowd, UID.format(number))
        self.crowd, self.number = crowd, number
        self.node = ""
        self.status = "offline"
        self.is_watching = self.is_engaged = self.is_silent = False
        self.came_by = int(Code.LOGIN)
        self.watched_at = self.steady_since = 0.0

    # The first three note their action

    @abstractmethod
    def set_status(self, status: str) -> None:
        """Become online, or away."""

    @abstractmethod
    def set_meta(self, number: int) -> None:
        """Show a `meta` with this number."""

    @abstractmethod
    def log_out(self) -> None:
        """Go offline; the client comes back later."""

    @abstractmethod
    def watch(self) -> None:
        """Watch all friends, as soon as this connection may."""

    # What happens

    def logged_in(self) -> None:
        self.status = "online"
        if self.crowd.is_watching:
            self.crowd.want_watch(self)

    def watch_answered(self, now: float) -> None:
        self.crowd.status.watch_s.append(now - self.watched_at)
        self.is_watching, self.steady_since = True, now
        self.crowd.watch_over(self)

    def connection_lost(self, reason: str) -> None:
        """Note an unintended end; the client reconnects by itself."""
        self.crowd.status.lost[reason] += 1
        self.is_silent = self.is_engaged = False
        self.sends_keepalives = True

    def close(self, *, reset: bool = False) -> None:
        self.is_watching = False
        self.crowd.watch_over(self)
        super().close(reset=reset)

    def come_back(self) -> None:
        """Log in again after a logout or a silence."""
        self.is_engaged = self.is_silent = False
        self.sends_keepalives = self.reconnects = True
        self.came_by = int(Code.LOGIN)
        self.close()
        self.connect()

    def session_expired(self, now: float) -> None:
        """Take note that the server has ended the silent session."""
        self.crowd.note_action(self, int(Code.IDLE_TIMEOUT))
        self.status, self.reconnects = "offline", False
        self.crowd.later(now + GONE_S, self.come_back)


class Crowd(ClientLoop):
    """A loop of friends, whose further methods are orders.

    Args:
        servers: their addresses; each client goes to a random one.
        make_client: returns the client of a user.
        graph: of these users.
        sources: the addresses to connect from.
        seed: of what they do.
    """

    def __init__(
        self,
        servers: Sequence[tuple[str, int]],
        make_client: Callable[[Crowd, int], Friend],
        graph: FriendGraph,
        sources: Sequence[str | None],
        seed: int,
    ) -> None:
        super().__init__(servers[0], slot_s=0.005, sources=sources)
        self.graph = graph
        self.status, self.log = CrowdStatus(), CrowdLog()
        self.ids = array("q", [NEVER]) * len(graph.friends)
        self.statuses = bytearray(len(graph.friends))
        self.is_watching = False  # whether clients watch from their login on
        self._random = random.Random(seed)
        self._changes_per_s = 0.0
        self._waiting: list[Callable[[], None]] = []  # what users do when the changes begin again
        self._metas = 0
        self._at_once = 0  # watches that may be unanswered
        self._to_watch: deque[Friend] = deque()  # they wait until others are answered
        self._unanswered: set[Friend] = set()
        self.clients = [make_client(self, graph.first + each) for each in range(len(graph))]
        for client in self.clients:
            client.address = self._random.choice(servers)

    # For clients

    def learn_all(self, watcher: int, states: Iterable[tuple[int, str, int]]) -> None:
        """Keep the states of all friends of a client: friend, status and id of each, in any order."""
        edges, friends, ids, statuses = self.graph.edges(watcher), self.graph.friends, self.ids, self.statuses
        fallen = learned = 0
        for expected, (friend, status, id) in zip(edges, states, strict=False):
            edge = expected if friends[expected] == friend else self.graph.edge(watcher, friend)
            fallen += NO_ID != id < ids[edge]
            ids[edge], statuses[edge] = id, STATUS_NUMBERS[status]
            learned += 1
        self.status.answers += learned
        if fallen:
            self.status.broken["ids that fall"] += fallen
        if learned != len(edges):
            self.status.broken["answers without all friends"] += 1

    def learn(
        self, watcher: int, friend: int, status: str, id: int, now: float, *, rises: bool = True
    ) -> None:
        """Keep and log a pushed change; a state without an id takes the place of any other.

        Args:
            rises: whether the ids of a user rise.
        """
        try:
            edge = self.graph.edge(watcher, friend)
        except KeyError:
            self.status.broken["changes of a user who is not watched"] += 1
            return
        known, log = self.ids[edge], self.log
        if rises and id != NO_ID:
            self.status.broken["ids that fall"] += id < known
            self.status.broken["changes that are doubled"] += id == known
        self.ids[edge], self.statuses[edge] = id, STATUS_NUMBERS[status]
        self.status.pushes += 1
        log.push_watchers.append(watcher)
        log.push_users.append(friend)
        log.push_ids.append(id)
        log.push_at.append(now)

    def want_watch(self, client: Friend) -> None:
        """Let a client watch in its turn: these processes are slower than as many machines of clients."""
        self._to_watch.append(client)
        self._watch_next()

    def watch_over(self, client: Friend) -> None:
        """Note that a watch was answered, or will not be."""
        self._unanswered.discard(client)
        self._watch_next()

    def _watch_next(self) -> None:
        while self._to_watch and len(self._unanswered) < self._at_once:
            client = self._to_watch.popleft()
            if client.is_logged_in and not client.is_watching and client not in self._unanswered:
                self._unanswered.add(client)
                client.watch()

    def note_action(self, client: Friend, code: int, id: int = NO_ID) -> None:
        log = self.log
        log.action_users.append(client.number)
        log.action_codes.append(code)
        log.action_ids.append(id)
        log.action_at.append(monotonic())

    def later(self, moment: float, action: Callable[[], None]) -> None:
        """Call an action at that time, or when the changes begin again if they have stopped by then."""

        def act() -> None:
            if self._changes_per_s:
                action()
            else:
                self._waiting.append(action)

        self.call_at(moment, act)

    # Orders

    def log_in_all(self, per_second: float, keepalive_s: float) -> None:
        self.start_keepalives(keepalive_s)
        self.connect_all(self.clients, per_second)

    def watch_all(self, at_once: int, every: int = 1) -> None:
        """Let each client, or one of `every`, watch from now on, so many at the same time.

        From the order without `every` on, each login is followed by a watch, in its turn.
        """
        due = [client for client in self.clients[::every] if client.is_logged_in and not client.is_watching]
        self._random.shuffle(due)
        self._to_watch.extend(due)
        self.is_watching, self._at_once = every == 1, at_once
        self._watch_next()

    def start_changes(self, per_second: float) -> None:
        """Let so many users begin to do something each second; those who were interrupted go on."""
        self._changes_per_s = per_second
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            self.call_at(monotonic() + self._random.uniform(0, 1), action)
        self._change(monotonic())

    def stop_changes(self) -> None:
        """Let all stay as they are: those who are away or gone, too."""
        self._changes_per_s = 0.0
        for client in self.clients:
            if client.is_silent and client.is_logged_in:
                # It stays marked as silent: the server may be about to end its session.
                client.is_engaged = False
                client.sends_keepalives = True
                client.send_keepalive()

    def begin_phase(self) -> None:
        self.status, self.log = CrowdStatus(broken=self.status.broken), CrowdLog()
        self.late_max_s = 0.0

    def report_status(self) -> CrowdStatus:
        status = self.status
        status.logged_in, status.late_max_s = self.count_logged_in(), self.late_max_s
        status.watching = sum(client.is_watching for client in self.clients)
        status.episodes = sum(client.is_engaged for client in self.clients)
        return status

    def take_log(self) -> CrowdLog:
        return self.log

    def steady_since(self, moment: float) -> bytearray:
        """Return for each client whether it has watched since then on one connection."""
        return bytearray(client.is_watching and client.steady_since <= moment for client in self.clients)

    def views(self) -> Views:
        return Views(
            self.graph,
            self.ids,
            self.statuses,
            bytearray(STATUS_NUMBERS[client.status] for client in self.clients),
            bytearray(client.is_watching for client in self.clients),
            [client.node for client in self.clients],
        )

    def count_behind(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return how many clients that are to be connected do not watch, and how many views have a lower id.

        Args:
            ids: the least id that each user's state must have, by number.
        """
        absent = sum(client.status != "offline" and not client.is_watching for client in self.clients)
        behind = 0
        for client in self.clients:
            if client.is_watching:
                edges = self.graph.edges(client.number)
                least = map(ids.__getitem__, self.graph.friends[edges.start : edges.stop])
                behind += sum(map(lt, self.ids[edges.start : edges.stop], least))
        return absent, behind

    # What users do

    def _change(self, due: float) -> None:
        if not self._changes_per_s:
            return
        for _ in range(CHOICE_ATTEMPTS):
            client = self._random.choice(self.clients)
            if client.is_watching and not client.is_engaged:
                self._begin(client, self._random.choices([*MIX], [*MIX.values()])[0])
                break
        due += self._random.expovariate(self._changes_per_s)
        self.call_at(due, partial(self._change, due))

    def _begin(self, client: Friend, what: str) -> None:
        now = monotonic()
        if what == "meta":
            self._metas += 1
            client.set_meta(self._metas)
            return
        client.is_engaged = True
        if what == "away":
            client.set_status("away")
            self.later(now + self._random.uniform(*AWAY_S), partial(self._end_away, client))
        elif what == "leave":
            client.reconnects = False
            client.log_out()
            self.later(now + GONE_S, client.come_back)
        else:
            client.is_silent, client.sends_keepalives = True, False

    def _end_away(self, client: Friend) -> None:
        client.is_engaged = False
        if client.is_logged_in and client.status == "away":
            client.set_status("online")
