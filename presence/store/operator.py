"""What operators do to users: end their sessions, and forget them."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from presence.store.client import RedisError, open_client
from presence.store.erasing import Eraser, Progress
from presence.store.failures import as_failure
from presence.store.keys import Keys
from presence.store.packing import Shape, erasure_text, unpacked
from presence.store.replies import Erasure
from presence.store.routes import Connect
from presence.store.scripting import Scripting

UIDS_A_CALL = 500


class Target(NamedTuple):
    """A session that is to end.

    Attributes:
        uid, device, session, node: which, and whose.
        fenced: the node was taken for dead and told nothing: its sessions end when it is swept.
    """

    uid: str
    device: str
    session: str
    node: str
    fenced: bool


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was erased.

    Attributes:
        online: users of whom nothing was: they are online.
        last_seen: times at which users were last seen.
        events: entries of the streams.
        dead_letters: copies of such entries that consumer groups gave up on.
        followups: what was to be done for them, or was told.
    """

    online: list[str]
    last_seen: int = 0
    events: int = 0
    dead_letters: int = 0
    followups: int = 0


class Operator:
    """Plain calls that block, made from one thread at a time; all raise `StoreUnavailable` or `StoreError`.

    Args:
        url: as `presence.store.address` takes it; nothing is sent yet.
        keys: how keys are called.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect = open_client) -> None:
        self._keys = keys
        self._shape = Shape(keys, maxlen=0, seen_retention_ms=0)  # nothing is trimmed here
        self._scripting = Scripting(url, connect)

    def kick(self, uids: Iterable[str], device: str | None = None, *, by: str = "") -> list[Target]:
        """Tell the nodes of all sessions of these users to end them; return the sessions.

        Each node hears of it at once, or within seconds if its control channel is broken. A user who is
        offline has no sessions.

        Args:
            uids: the users.
            device: sessions of this device only; None: all.
            by: who asks for it, for the logs of the nodes.
        """
        wanted = list(dict.fromkeys(uids))
        which = [] if device is None else [device]
        calls = [
            self._shape.operator_call("kick", self._keys.shard(uid), [uid, by, *which]) for uid in wanted
        ]
        targets: list[Target] = []
        for uid, answer in zip(wanted, self._evaluate(calls), strict=True):
            targets += [Target(uid, *row) for row in answer["sessions"]]
        return targets

    def forget(self, uids: Iterable[str], progress: Progress = lambda _looked, _total: None) -> Forgotten:
        """Erase what Redis keeps of users who are offline: last seen, events, follow-ups, dead letters.

        Who is online is left alone; who comes meanwhile keeps what is written from then on. Called again, it
        erases what an interrupted call has left.

        Args:
            uids: the users.
            progress: called now and then, see `Progress`.
        """
        eraser = Eraser(self._scripting, self._keys, progress)
        online: list[str] = []
        last_seen = events = letters = followups = 0
        by_shard: dict[int, list[str]] = {}
        for uid in dict.fromkeys(uids):
            by_shard.setdefault(self._keys.shard(uid), []).append(uid)
        for shard, members in by_shard.items():
            for first in range(0, len(members), UIDS_A_CALL):
                some = members[first : first + UIDS_A_CALL]
                (answer,) = self._evaluate([self._shape.operator_call("forget", shard, some)])
                online += answer["online"]
                last_seen += answer["seen"]
                offline = set(some).difference(answer["online"])
                if offline:
                    erased = eraser.erase(shard, offline, answer["last_id"])
                    events += erased.events
                    letters += erased.dead_letters
                    followups += erased.followups
        return Forgotten(online, last_seen, events, letters, followups)

    def note_erasure(self, nodes: Iterable[str], erasure: Erasure) -> None:
        """Have a node log that users were forgotten: the first of these that listens."""
        text = erasure_text(erasure)
        try:
            client = self._scripting.client(self._keys.meta)
            for node in nodes:
                if client.publish(self._keys.control_channel(node), text):
                    break
        except (RedisError, OSError) as error:
            raise as_failure(error) from error

    def _evaluate(self, calls: list[Any]) -> list[Any]:
        """Return the unpacked answers.

        Raises:
            StoreUnavailable, StoreError: one or more calls failed.
        """
        answers = self._scripting.evaluate(calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [unpacked(packed) for packed, _ in answers]

    def close(self) -> None:
        """Close the connection."""
        self._scripting.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
