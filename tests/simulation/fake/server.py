"""An in-memory Redis for one thread: its time is an argument, its scripts run in a real Lua 5.1.

It holds what the project's scripts and store can see of a Redis, and no more: no replicas, no cluster, no
memory limit, no consumer groups. `test_fake_differential` holds it against a real server.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from tests.simulation.fake.commands import COMMANDS, Command
from tests.simulation.fake.lua import engine
from tests.simulation.fake.values import WRONG_TYPE, Reply, ReplyError, Value

V = TypeVar("V", bound=Value)


class FakeSnapshot(NamedTuple):
    """All keys at one moment, immutable."""

    data: dict[bytes, Value]
    deadlines: dict[bytes, int]


class FakeRedis:
    """A Redis server without a network.

    Args:
        now: returns Unix seconds; called once per command or script.
        seed: of the replication ids.
        commands: the known ones; a test may plant a fault here.
        channels: those with a subscriber.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        seed: str = "",
        commands: Mapping[bytes, Command] = COMMANDS,
        channels: Iterable[bytes] = (),
    ) -> None:
        self.data: dict[bytes, Value] = {}
        self.deadlines: dict[bytes, int] = {}  # key to the last Unix ms at which it is there
        self.scripts: set[bytes] = set()
        self._next_deadline: float = float("inf")
        self._now = now
        self.now_us = 0  # Unix time of the command or script that runs
        self._commands = commands
        self.channels = frozenset(channels)
        self.published: list[tuple[bytes, bytes]] = []  # channel and message of all that was published there
        self._seed = seed
        self._histories = 0
        self.replication_id = ""
        self.new_history()

    # What a client may ask

    def execute(self, *words: bytes) -> Reply:
        """Perform one command, or one whole script.

        Raises:
            ReplyError: the error reply that Redis would send.
        """
        self.now_us = round(self._now() * 1_000_000)
        if self._next_deadline < self.now_us // 1000:
            self._expire()
        match words:
            case b"EVALSHA", digest, count, *rest:
                if digest not in self.scripts:
                    raise ReplyError("NOSCRIPT No matching script. Please use EVAL.")
                return self.run_script(digest, rest[: int(count)], rest[int(count) :])
            case b"EVAL", text, count, *rest:
                return self.run_script(self._load(text), rest[: int(count)], rest[int(count) :])
        return self._call(words[0], words[1:])

    # What may happen to a server

    def snapshot(self) -> FakeSnapshot:
        return FakeSnapshot({key: value.copy() for key, value in self.data.items()}, self.deadlines.copy())

    def restore(self, snapshot: FakeSnapshot) -> None:
        """Take all keys from a snapshot, of this server or another; history and scripts stay."""
        self.data = {key: value.copy() for key, value in snapshot.data.items()}
        self.deadlines = snapshot.deadlines.copy()
        self._next_deadline = min(self.deadlines.values(), default=float("inf"))

    def flush_all(self) -> None:
        self.data.clear()
        self.deadlines.clear()

    def new_history(self) -> None:
        """Take another replication id, as after a restart or a failover."""
        self._histories += 1
        text = f"{self._seed} {self._histories}"
        self.replication_id = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def restart(self, snapshot: FakeSnapshot | None = None) -> None:
        """Restart with the data that was kept, without scripts, in another history."""
        self.restore(snapshot or FakeSnapshot({}, {}))
        self.scripts.clear()
        self.new_history()

    # What commands are made of

    def read(self, key: bytes, kind: type[V]) -> V | None:
        """Return the value of a key, or None; refuse another type."""
        found = self.data.get(key)
        if found is None or found.__class__ is kind:
            return found
        raise ReplyError(WRONG_TYPE)

    def write(self, key: bytes, kind: type[V]) -> V:
        """Return the value of a key; create it if it is missing."""
        found = self.read(key, kind)
        if found is None:
            found = self.data[key] = kind()
        return found

    def remove(self, key: bytes) -> bool:
        """Delete a key; return whether it existed."""
        self.deadlines.pop(key, None)
        return self.data.pop(key, None) is not None

    def set_deadline(self, key: bytes, until_ms: int) -> None:
        """Let a key expire at a Unix time in ms."""
        self.deadlines[key] = until_ms
        self._next_deadline = min(self._next_deadline, until_ms)

    def _expire(self) -> None:
        for key in [key for key, until_ms in self.deadlines.items() if until_ms < self.now_us // 1000]:
            self.remove(key)
        self._next_deadline = min(self.deadlines.values(), default=float("inf"))

    # Scripts

    def _load(self, text: bytes) -> bytes:
        """Store a script; return its digest."""
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        if digest not in self.scripts:
            engine().compile(digest, text)
            self.scripts.add(digest)
        return digest

    def run_script(self, digest: bytes, keys: Iterable[bytes], arguments: Iterable[bytes]) -> Reply:
        """Run a loaded script; what it wrote before it failed stays."""
        return engine().run(digest, keys, arguments, self._call)

    def _call(self, name: bytes, arguments: tuple[bytes, ...]) -> Reply:
        return self._commands[name](self, *arguments)
