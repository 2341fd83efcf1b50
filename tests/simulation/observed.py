"""The fake Redis of the simulation, which remembers what it did though it may forget its data."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgpack

from presence.store import script_runner
from tests.simulation.fake.commands import COMMANDS, xadd
from tests.simulation.fake.server import FakeRedis, FakeSnapshot
from tests.simulation.fake.values import Hash, Reply
from tests.simulation.machine import Agenda

REDIS_START_S: Final = 1_700_000_000.0
SCRIPTS: Final = tuple(name for name in script_runner._TEXTS if "/" not in name or name.startswith("rooms/"))


class ObservedEntry(NamedTuple):
    """An entry of a stream, as it was written."""

    at: float  # true time
    key: str  # of the stream
    id: str  # the entry's
    fields: dict[str, str]  # what it says
    script: str  # who wrote it
    caller: str  # the node that called the script


class ScriptRun(NamedTuple):
    """A call of a script that Redis did not refuse."""

    script: str  # its name
    keys: tuple[bytes, ...]  # as they were, like the next two
    arguments: tuple[bytes, ...]
    reply: Any
    is_new: bool  # of a batch, whether its number was none that had been applied before


class ObservedRedis(FakeRedis):
    """The fake Redis, with outages and observers.

    Attributes:
        on_entry, on_run: called with each entry written to a stream, and each script run, except those of
            rooms.
        on_room_entry, on_room_run: the same, for entries of streams of rooms, and for scripts of rooms, whose
            `reply` is still packed.
    """

    def __init__(self, agenda: Agenda, seed: str) -> None:
        self._agenda = agenda
        self.clock_offset_s = 0.0  # of its clock to true time
        self.outages = 0  # how many faults make it unreachable for all
        self._outage_spans: list[tuple[float, float]] = []
        self.refuses_connections = False  # whether it is down, so that its machine refuses connections
        self.epoch = 0  # another with each restart, which ends all connections
        self.in_flight_s = 0.0  # for how long the call that is carried out has been under way
        self.on_entry: Callable[[ObservedEntry], None] = lambda _: None
        self.on_run: Callable[[ScriptRun], None] = lambda _: None
        self.on_room_entry: Callable[[ObservedEntry], None] = lambda _: None
        self.on_room_run: Callable[[ScriptRun], None] = lambda _: None
        self._script, self._caller = "", ""
        self._names = {script_runner.digest(name).encode(): name for name in SCRIPTS}
        super().__init__(
            lambda: REDIS_START_S + agenda.now + self.clock_offset_s,
            seed=seed,
            commands={**COMMANDS, b"XADD": self._xadd},
        )

    def _xadd(self, db: FakeRedis, key: bytes, *words: bytes) -> Reply:
        entry_id = xadd(db, key, *words)
        pairs = words[4:] if words[0] == b"MAXLEN" else words[1:]
        texts = [word.decode() for word in pairs]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        tell = self.on_room_entry if key.endswith(b":rooms:events") else self.on_entry
        tell(
            ObservedEntry(
                self._agenda.now, key.decode(), entry_id.decode(), fields, self._script, self._caller
            )
        )
        return entry_id

    def run_script(self, digest: bytes, keys: Iterable[bytes], arguments: Iterable[bytes]) -> Reply:
        keys, arguments = tuple(keys), tuple(arguments)
        self._script, self._caller = self._names[digest], arguments[0].decode(errors="replace")
        before = self._batch_counter(keys) if self._script == "apply" else None
        reply = super().run_script(digest, keys, arguments)
        packed = reply[0] if isinstance(reply, list) else reply
        if self._script.startswith("rooms/"):
            self.on_room_run(ScriptRun(self._script, keys, arguments, packed, False))
            return reply
        is_new = before is not None and before != self._batch_counter(keys)
        self.on_run(ScriptRun(self._script, keys, arguments, msgpack.unpackb(packed), is_new))
        return reply

    def _batch_counter(self, keys: tuple[bytes, ...]) -> tuple[bytes | None, bytes | None]:
        own = self.data.get(keys[3], Hash())
        assert isinstance(own, Hash)
        return own.get(b"gen"), own.get(b"n")

    def make_unreachable(self, seconds: float, *, refuses: bool) -> None:
        """Make Redis unreachable for all processes for a while."""
        self.outages += 1
        self.refuses_connections = refuses
        self._outage_spans.append((self._agenda.now, self._agenda.now + seconds))

        def come_back() -> None:
            self.outages -= 1

        self._agenda.after(seconds, come_back)

    def was_unreachable(self, since: float) -> bool:
        """Whether Redis was unreachable for all, until a true moment or later."""
        return any(end >= since for _, end in self._outage_spans)

    def was_away_unnoticed(self, failed_at: float, within_s: float, brief_s: float) -> bool:
        """Whether an outage lasts, or ended less than `within_s` ago, that a process does not know of.

        Args:
            failed_at: true time at which a call of the process has failed last.
            within_s: time that others need after an outage to send what they have.
            brief_s: a shorter outage counts as unnoticed even if a call failed in it.
        """
        now = self._agenda.now
        return any(
            begin <= now < end + within_s and (end - begin < brief_s or failed_at < begin)
            for begin, end in self._outage_spans
        )

    def unreachable_between(self, since: float, until: float, least_s: float) -> float:
        """Return the seconds of a span in outages of at least `least_s` each."""
        spans: list[tuple[float, float]] = []
        for begin, end in sorted(self._outage_spans):
            if spans and begin <= spans[-1][1]:
                first, last = spans.pop()
                spans.append((first, max(end, last)))
            else:
                spans.append((begin, end))
        return sum(
            max(0.0, min(end, until) - max(begin, since)) for begin, end in spans if end - begin >= least_s
        )

    def restart(self, snapshot: FakeSnapshot | None = None) -> None:
        super().restart(snapshot)
        self.epoch += 1
