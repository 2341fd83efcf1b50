"""A presence wheel kept in Redis: for stateless front ends, such as HTTP long-polling or cloud functions.

A front end calls `touch` for each sign of life of a user: one script call, which moves the user to another
slot. Some process calls `due`: one script call per shard, which takes the slots that are due. There is no
leader, and no state outside Redis; any number of processes may call both.

Events are in streams, written by the same scripts that move the users: online and offline alternate for each
user. They have the form of a presence server's events, so `presence.subscriber` reads them::

    wheel = RedisWheel("redis://localhost:6379", "web")
    wheel.touch("ann")  # True: ann came online

    with subscribe_sync("redis://localhost:6379", prefix=wheel.prefix, group="push", consumer="1") as events:
        for event in events: ...

Guarantees, by the clock of Redis (if it is set, time-outs are longer or shorter by that much):

* Never early: a user is offline `idle_timeout_s` after the last touch, and no sooner.
* Late by at most a tick plus the time between two calls of `due`. Without calls no user goes offline; the
  next call takes every slot that has passed, in slices.
* Nothing is lost when a caller dies: a user is on the wheel, or the offline event is in the stream. The
  result of `due` is for logs and counters; to act on events, read the stream with a consumer group (at least
  once).
* A touch before the call that takes the user prevents the offline event. After that call, an online event
  follows the offline one, in order.
* A call whose answer was lost may be repeated: each event is written once.
* If Redis loses its data, its users are unknown: users who continue come online again, users who had just
  fallen silent are not reported.

Memory: an entry of a hash and one of a set for each user online, and one of the capped stream for each event.
`python -m benchmarks.compare` measures it, and the cost of a touch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from presence.common.errors import StoreError
from presence.common.redis_url import CLUSTER_SHARDS, is_cluster
from presence.protocol import Code
from presence.store.keys import Keys
from presence.store.script_runner import Call, Scripting
from presence.timers.interface import TimerError
from presence.timers.shared_timer import checked_id

MAX_UIDS_PER_CALL: Final = 500  # 2 ms of Redis, in which it serves no other call
MAX_SLOTS_PER_CALL: Final = 1000  # passed slots: about 1 ms if all are empty
STREAM_MAXLEN: Final = 1_000_000  # entries of a shard's stream, as of a presence server
MAX_NAME_BYTES: Final = 128


class Silence(NamedTuple):
    """A user who went offline because no touch came."""

    uid: str
    last_seen_ms: int  # the last touch, Unix milliseconds by the clock of Redis, as all times here
    due_ms: int  # the tick at which this was due: at or after the deadline
    at_ms: int  # when the user was taken

    @property
    def late_ms(self) -> int:
        """Milliseconds from the tick until the user was taken."""
        return max(0, self.at_ms - self.due_ms)


class RedisWheel:
    """The users of one wheel. Blocking; used from one thread at a time, so each thread has its own.

    As a timer: `touch` schedules or reschedules a user's silence, `forget` cancels it, `due` hands it out.

    Args:
        url: as `presence.common.redis_url` takes it.
        name: of the wheel; the same for all callers.
        idle_timeout_s: silence after which a user is offline. Callers may differ: the last touch counts.
        tick_s: resolution of the time-out. The same for all callers; the first one sets it.
        shards: number of shards of users, as of `presence.store.keys`; 16 on a Redis Cluster, else 1. The
            same for all callers.
        prefix: prefix of all keys.
        maxlen: cap of a shard's stream, roughly.

    Attributes:
        prefix: prefix of the keys of this wheel, for its subscribers.

    Raises:
        TimerError: an argument is invalid.
        ValueError: the URL is invalid.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        idle_timeout_s: float = 30.0,
        tick_s: float = 1.0,
        shards: int | None = None,
        prefix: str = "presence",
        maxlen: int = STREAM_MAXLEN,
    ) -> None:
        _check_name(name)
        if not (0.001 <= tick_s <= idle_timeout_s < float("inf")) or round(tick_s * 1000, 6) % 1:
            raise TimerError("tick_s must be whole milliseconds, and at most idle_timeout_s")
        shards = shards or (CLUSTER_SHARDS if is_cluster(url) else 1)
        self.prefix = f"{prefix}:timer:{name}"
        self._keys = Keys(self.prefix, shards)
        self._settings = {"version": "1", "shards": str(shards), "tick_ms": str(round(tick_s * 1000))}
        self._common_arguments = [self._settings["tick_ms"], str(idle_timeout_s * 1000), name, str(maxlen)]
        self._scripting = Scripting(url)
        self._is_checked = False

    def touch(self, uid: str) -> bool:
        """Note a sign of life of a user; return whether the user came online. One call of Redis.

        Raises:
            TimerError: the wheel has other settings, or a uid is invalid: 1 to `MAX_ID_BYTES` bytes of UTF-8.
            StoreUnavailable, StoreError: Redis is unreachable, or refused. The touch may have been applied.
        """
        return bool(self.touch_many([uid]))

    def touch_many(self, uids: Iterable[str]) -> list[str]:
        """Touch many users; return those who came online. About one round trip per server.

        Raises:
            As `touch`, after all other shards were served.
        """
        answers = self._call_shards("touch", uids, [])
        if any(is_new for is_new, *_ in answers):  # or Redis has lost what it had
            self._check_settings()
        return [uid.decode() for _, *came in answers for uid in came]

    def forget(self, uid: str) -> bool:
        """Log a user out: offline immediately; return whether they were online. Raises as `touch`."""
        return bool(self.forget_many([uid]))

    def forget_many(self, uids: Iterable[str]) -> list[str]:
        """Log many users out; return those who were online. Raises as `touch_many`."""
        arguments = [int(Code.LOGOUT), Code.LOGOUT.reason]
        return [uid.decode() for some in self._call_shards("forget", uids, arguments) for uid in some]

    def due(self, limit: int = 100) -> Sequence[Silence]:
        """Take users whose time-out has passed, at most `limit`, longest first in each shard.

        Their offline events are in the stream when this returns. Fewer than `limit` means that no more are
        due now in the reachable shards.

        Raises:
            TimerError: the wheel has other settings.
            StoreUnavailable, StoreError: no user was taken, and at least one shard failed.
        """
        self._check_once()
        taken: list[Silence] = []
        failure: Exception | None = None
        pending = [*range(self._keys.shards)]
        while pending and len(taken) < limit:
            asked = pending[: limit - len(taken)]
            share = min(MAX_UIDS_PER_CALL, (limit - len(taken)) // len(asked))
            arguments = [int(Code.IDLE_TIMEOUT), Code.IDLE_TIMEOUT.reason, share, MAX_SLOTS_PER_CALL]
            answers = self._scripting.evaluate([self._call("expire", shard, arguments) for shard in asked])
            pending = pending[len(asked) :]
            for shard, answer in zip(asked, answers, strict=True):
                if isinstance(answer, Exception):
                    failure = answer
                    continue
                has_more, silences = _parsed_answer(answer)
                taken += silences
                if has_more:
                    pending.append(shard)
        if failure and not taken:
            raise failure
        return taken

    def last_seen(self, uids: Iterable[str]) -> Mapping[str, int]:
        """Return the last touch of those users who are online, Unix milliseconds; one round trip.

        Users whose time-out has passed and who were not taken yet are online.

        Raises:
            StoreUnavailable, StoreError: see `touch`.
        """
        found: dict[str, int] = {}
        for shard, some in self._by_shard(uids).items():
            key = self._keys_of(shard)[0]
            for value in zip(some, *self._scripting.commands(key, [("HMGET", key, *some)]), strict=True):
                if value[1] is not None:
                    found[value[0]] = int(value[1].split()[1])
        return found

    def count(self) -> int:
        """Return the number of users online. Raises as `last_seen`."""
        keys = [self._keys_of(shard)[0] for shard in range(self._keys.shards)]
        return sum(self._scripting.commands(key, [("HLEN", key)])[0] for key in keys)

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        self._scripting.close()

    def _call_shards(self, script: str, uids: Iterable[str], arguments: Sequence[Any]) -> list[Any]:
        self._check_once()
        calls = [
            self._call(script, shard, [*arguments, *members[first : first + MAX_UIDS_PER_CALL]])
            for shard, members in self._by_shard(uids).items()
            for first in range(0, len(members), MAX_UIDS_PER_CALL)
        ]
        answers = self._scripting.evaluate(calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _by_shard(self, uids: Iterable[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for uid in dict.fromkeys(uids):
            found.setdefault(self._keys.shard(checked_id(uid)), []).append(uid)
        return found

    def _keys_of(self, shard: int) -> list[str]:
        at = f"{self.prefix}:{{{shard}}}"
        return [f"{at}:users", f"{at}:wheel", self._keys.events(shard), self._keys.absent(shard)]

    def _call(self, script: str, shard: int, arguments: Sequence[Any]) -> Call:
        slots = f"{self.prefix}:{{{shard}}}:slot:"
        return Call(f"wheel/{script}", self._keys_of(shard), [slots, *self._common_arguments, *arguments])

    def _check_once(self) -> None:
        if not self._is_checked:
            self._check_settings()

    def _check_settings(self) -> None:
        """Compare the settings with those of the wheel, or write them if there are none."""
        meta, ours = self._keys.meta, self._settings
        commands = [("HSETNX", meta, name, value) for name, value in ours.items()]
        found = self._scripting.commands(meta, [*commands, ("HMGET", meta, *ours)])[-1]
        for (name, value), present in zip(ours.items(), found, strict=True):
            if not present.isdigit():
                raise StoreError(f"{meta} is damaged, with {name} {present!r}: redis-cli DEL {meta}")
            if present.decode() != value:
                raise TimerError(f"{meta} has {name} {present.decode()}, this wheel is set to {value}")
        self._is_checked = True


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES or set(name) & set("{} ") or not name.isprintable():
        raise TimerError(f"a timer's name has 1 to {MAX_NAME_BYTES} bytes, no braces and no spaces: {name!r}")


def _parsed_answer(answer: Sequence[Any]) -> tuple[bool, list[Silence]]:
    has_more, *values = answer
    rows = zip(*[iter(values)] * 4, strict=True)
    silences = [
        Silence(uid.decode("utf-8", "backslashreplace"), int(seen), int(due), int(now))
        for uid, seen, due, now in rows
    ]
    return bool(has_more), silences
