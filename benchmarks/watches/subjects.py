"""The servers that are watched through: how each is started, and where the truth about its users stands."""

import contextlib
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contenders import Contender, contenders, running
from benchmarks.scale.play import Reader
from benchmarks.watches.crowd import STATUSES, UID, Crowd, CrowdLog, Friend, Views, entry_id_number, number_of
from benchmarks.watches.friends import BatchFriend, MqttFriend, PresenceFriend
from benchmarks.watches.truth import TrueState, UserChange, changes_of
from loadtest import usage
from loadtest.servers import LocalRedis, PresenceServer
from presence.reader import PresenceReader

OWN, BATCH, MOSQUITTO = "presence", "presence, batch", "mosquitto"
USERS_PER_READ = 1000
MOSQUITTO_CONNECTIONS = 19_900  # with 20,000 descriptors of one process
# What a worker must be allowed, by whichever setting the version has
BOUNDS = {"--max-shared-watches": "100000000", "--watch-memory": "4000"}
HELP_TIMEOUT_S = 20.0


@dataclass
class Subject(ABC):
    """A running server.

    Attributes:
        addresses: where clients connect to.
        make_client: see `Crowd`.
        pids: returns the processes whose processor time and memory count.
        redis: a connection to its Redis; None: it has none.
    """

    name: str
    addresses: list[tuple[str, int]]
    make_client: Callable[[Crowd, int], Friend]
    pids: Callable[[], Sequence[int]]
    redis: Any = None

    @abstractmethod
    def new_changes(self, logs: Sequence[CrowdLog]) -> list[UserChange]:
        """Return the changes since the last call, in order, given what clients have done since."""

    @abstractmethod
    def states(self, views: Sequence[Views]) -> Mapping[int, TrueState]:
        """Return the true state of each user at a quiet moment."""

    def failures(self) -> list[str]:
        """Return what the server, or the reader of its events, has reported."""
        return []


@dataclass
class BrokerSubject(Subject):
    """A broker that keeps no events: the truth is what clients have published."""

    last: dict[int, UserChange] = field(default_factory=dict)

    def new_changes(self, logs: Sequence[CrowdLog]) -> list[UserChange]:
        found = changes_of(logs)
        self.last |= {change.user: change for change in found}
        return found

    def states(self, views: Sequence[Views]) -> Mapping[int, TrueState]:
        return {
            user: TrueState(STATUSES[status], self.last[user].id)
            for some in views
            for user, status in enumerate(some.own_statuses, some.graph.first)
        }


@dataclass(kw_only=True)
class PresenceSubject(Subject):
    """This server, in this version or another."""

    server: PresenceServer
    reader: Reader
    redis_url: str
    read: int = 0  # events that `new_changes` has returned
    settled: int = 0  # events that `least_ids` has taken in

    def new_changes(self, logs: Sequence[CrowdLog]) -> list[UserChange]:
        events = self.reader.events[self.read :]
        self.read += len(events)
        return [
            UserChange(number_of(each.uid), each.code, entry_id_number(each.id))
            for each in events
            if each.uid
        ]

    def has_event_since(self, moment: float) -> bool:
        """Whether an event was read that was written after that time."""
        return bool(self.reader.events) and self.reader.events[-1].written_at > moment

    def add_least_ids(self, ids: MutableSequence[int], moment: float) -> None:
        """Set the ids, by user, to those of the last events that were written until then."""
        events = self.reader.events
        while self.settled < len(events) and events[self.settled].written_at <= moment:
            if (event := events[self.settled]).uid:
                ids[number_of(event.uid)] = entry_id_number(event.id)
            self.settled += 1

    def states(self, views: Sequence[Views]) -> Mapping[int, TrueState]:
        users = [
            user for some in views for user in range(some.graph.first, some.graph.first + len(some.graph))
        ]
        found = {}
        with PresenceReader(self.redis_url) as reader:
            for begin in range(0, len(users), USERS_PER_READ):
                for uid, state in reader.states(
                    map(UID.format, users[begin : begin + USERS_PER_READ])
                ).items():
                    found[number_of(uid)] = TrueState(state["status"], entry_id_number(state["id"]))
        return found

    def failures(self) -> list[str]:
        return [*self.server.failures(), *self.reader.broken]


@dataclass(frozen=True)
class SubjectKind:
    """A server that can be started: `running_subject` does."""

    name: str
    make_client: Callable[[Crowd, int], Friend]
    python: str = ""  # of a presence server
    broker: Contender | None = None


def subject_kinds(python: str, also: Mapping[str, str]) -> dict[str, SubjectKind]:
    """Return all servers by name; `also`: further installations, name to Python."""
    kinds = [SubjectKind(OWN, PresenceFriend, python), SubjectKind(BATCH, BatchFriend, python)]
    kinds += [SubjectKind(name, PresenceFriend, other) for name, other in also.items()]
    kinds.append(SubjectKind(MOSQUITTO, MqttFriend, broker=contenders(512)[MOSQUITTO]))
    return {each.name: each for each in kinds}


@contextlib.contextmanager
def running_subject(
    kind: SubjectKind, workers: int, *flags: str, redis: tuple[str, Any] | None = None
) -> Iterator[Subject]:
    """Run a server for the length of a ``with`` block.

    Args:
        redis: URL of, and a connection to, that of a presence server; by default it has one of its own.
    """
    with contextlib.ExitStack() as stack:
        if kind.broker is not None:
            broker = stack.enter_context(running(kind.broker))
            yield BrokerSubject(
                kind.name, [(broker.host, broker.port)], kind.make_client, lambda: [broker.pid]
            )
            return
        if redis is None:
            local = stack.enter_context(LocalRedis())
            redis = local.url, local.client
        url, client = redis
        words = ["--redis", url, "--workers", str(workers), *_bounds(kind.python), *flags]
        program = ("-P", "-m", "presence")
        server = stack.enter_context(PresenceServer(*words, program=program, python=kind.python))
        reader = stack.enter_context(contextlib.closing(Reader(url)))
        yield PresenceSubject(
            kind.name,
            [server.address],
            kind.make_client,
            lambda: usage.server_processes(server.process.pid),
            client,
            server=server,
            reader=reader,
            redis_url=url,
        )


def _bounds(python: str) -> list[str]:
    """Return the flags that allow as many watches as wanted, of those that the version knows."""
    command = [python, "-P", "-m", "presence", "serve", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HELP_TIMEOUT_S).stdout
    return [word for flag, value in BOUNDS.items() if flag in said for word in (flag, value)]
