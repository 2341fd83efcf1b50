"""Calls of the Lua scripts, over one connection to each Redis server that has some of the keys.

Used from one thread at a time. A connection whose call was interrupted or failed is closed and never reused,
so that no answer can be taken for that of another call.
"""

import hashlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import redis
from redis.exceptions import RedisError, ResponseError

from presence.common.errors import StoreError, StoreUnavailable
from presence.store.cluster_routes import Connect, NoOwner, Routes
from presence.store.error_classes import (
    CALL_ERRORS,
    CallInterrupted,
    as_failure,
    code_of,
    is_elsewhere,
    needs_operator,
    of_another_type,
)
from presence.store.keys import NODE_PARTS, value_type
from presence.store.redis_client import CALL_TIMEOUT_S, open_client

T = TypeVar("T")

# The first line of a script of one shard, and of a shared part, names the shared parts whose locals it uses.
# The lines `-- provides:` of a shared part name those of its locals that others use; a test compares them.
_REQUIRES: Final = re.compile(r"-- requires:((?: \w+)+)\n")


def _texts(folder: Traversable, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each script below a folder: its path without the suffix, and its text."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _texts(each, f"{path}{each.name}/")
        elif each.name.endswith(".lua"):
            yield path + each.name.removesuffix(".lua"), each.read_text("utf-8")


# Read at import: a worker forked after an upgrade in place still has the code from before it.
_TEXTS: Final = dict(_texts(resources.files("presence.store") / "scripts"))

MIN_WAIT_S: Final = 0.05  # for an answer that has arrived, even past the deadline

# By the type of a value, the command that types.lua reads it with.
READS: Final = {"hash": "HLEN", "stream": "XRANGE", "zset": "ZSCORE", "set": "SMEMBERS"}

Command = Sequence[Any]
"""A command: its name, and arguments of types that redis-py packs."""


# Shared parts before which a function opens that holds the rest of the script. Each call runs a script from
# its first line, and mostly defines functions. To capture a variable of the enclosing function, Lua walks
# over all those captured since; those of outer functions cost little. A function captures 60 at most.
_OPENS_FUNCTION: Final = frozenset({"lib/shard", "lib/record_cache", "lib/entries", "lib/profile"})


@cache
def source(name: str) -> str:
    """Return the text of a script, with the shared parts before it."""
    text, opened = "", 0
    for part in (*parts_before(name), name):
        if part in _OPENS_FUNCTION or (part == name and opened):
            text += "return (function()\n"
            opened += 1
        text += _TEXTS[part]
    return text + "\nend)()" * opened


def parts_before(name: str) -> tuple[str, ...]:
    """Return the shared parts of a script, each after those it requires; in a folder, those of the folder."""
    folder, _, _ = name.rpartition("/")
    if folder not in {"", "lib"}:
        preludes = ("timers", "followups") if folder == "followups" else (folder,)
        return ("lib/effects", "lib/raised_errors", *(f"{each}/prelude" for each in preludes))
    required = _REQUIRES.match(_TEXTS[name])
    parts = [f"lib/{part}" for part in required[1].split()] if required else []
    return tuple(dict.fromkeys(each for part in parts for each in (*parts_before(part), part)))


@cache
def digest(name: str) -> str:
    """Return the digest by which Redis knows a script; it has no security purpose."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """A call of a script: its name, KEYS and ARGV."""

    script: str
    keys: list[str]
    arguments: list[Any]

    def by_digest(self) -> Command:
        """Return the command that runs a script Redis knows."""
        return ("EVALSHA", digest(self.script), len(self.keys), *self.keys, *self.arguments)

    def by_text(self) -> Command:
        """Return the command that runs a script and makes it known."""
        return ("EVAL", source(self.script), len(self.keys), *self.keys, *self.arguments)


def keys_of(call: Call, text: str, others: Iterable[str] = ()) -> list[str]:
    """Return the keys that a call may have used: declared, computed by its script, or named by an error.

    `others`: ids of nodes in its shard.
    """
    nodes = [key for key in call.keys if ":node:" in key and value_type(key) == "hash"]
    nodes += [f"{call.arguments[3]}{id}" for id in others]  # see lib/shard.lua
    if call.script in {"fence", "sweep"}:
        nodes.append(f"{call.arguments[3]}{call.arguments[9]}")
    named = re.findall(r"\(\w+ (\S+)\)", text)  # see lib/effects.lua
    return list(
        dict.fromkeys([*call.keys, *nodes, *(f"{n}:{part}" for n in nodes for part in NODE_PARTS), *named])
    )


class Scripting:
    """Connections to a Redis or Valkey, 6.2 or newer, or to the servers of a cluster; opened when needed.

    Failed and refused calls raise `StoreUnavailable` or `StoreError`.

    Args:
        url: as `presence.common.redis_url` takes it.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, connect: Connect = open_client) -> None:
        self.url = url
        self._routes = Routes(url, connect)
        # Connections that redis-py's pools need not lend again. Routes discard a client whose server cannot
        # serve a call; its connection goes with it.
        self._idle: WeakKeyDictionary[redis.Redis, Any] = WeakKeyDictionary()
        self._opened = itertools.count(1)
        self._numbers: WeakKeyDictionary[redis.Redis, int] = WeakKeyDictionary()  # of the last connections

    @property
    def is_cluster(self) -> bool:
        """Whether keys are on several servers."""
        return self._routes.is_cluster

    def connection_number(self, key: str) -> int | None:
        """Return the number of the connection to the server that has a key; None: there is none.

        A caller that reads page by page begins again if it has changed: the cursor of a scan means nothing to
        another server, or to the same one after a restart.
        """
        try:
            return self._numbers.get(self._routes.client(key))
        except RedisError:
            return None

    def close(self) -> None:
        """Close the connections; a call in another thread fails. The next call opens them again."""
        self._idle.clear()
        self._routes.close()

    def shut_down(self) -> None:
        """Close the connections for good."""
        self._routes.shut_down()

    def evaluate(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts, in one round trip to each server that has some of their keys.

        Returns:
            The answers in order, with a `StoreUnavailable` or `StoreError` for a failed call. Redis has not
            run a failed call, except that it may have run one whose answer is a `StoreInterrupted`.
        """
        answers = self._send(calls, Call.by_digest)
        # These changed nothing: the server did not know the script (first call, restart, SCRIPT FLUSH) or
        # redirected us, or the script asks for it. Repeat them by text, which cannot be flushed meanwhile.
        again = [
            i
            for i, answer in enumerate(answers)
            if isinstance(answer, RedisError) and code_of(answer) in {"NOSCRIPT", "MOVED", "REPEAT"}
        ]
        if again:
            for i, answer in zip(again, self._send([calls[i] for i in again], Call.by_text), strict=True):
                answers[i] = answer
        return [
            as_failure(self._explained(call, each)) if isinstance(each, Exception) else each
            for call, each in zip(calls, answers, strict=True)
        ]

    def _explained(self, call: Call, error: Exception) -> Exception:
        """Return an error that names the keys with values of another type, if that was the reason."""
        if code_of(error) != "WRONGTYPE" or call.script == "types":
            return error
        names = keys_of(call, str(error), self._nodes_of(call))
        keys = {key: read for key in names if (read := READS.get(value_type(key)))}
        answers = self.evaluate([Call("types", [*keys], [*keys.values()])]) if keys else []
        found = [key.decode() for answer in answers if isinstance(answer, list) for key in answer]
        return of_another_type(found) if found else error

    def _nodes_of(self, call: Call) -> list[str]:
        """Return the ids of the nodes in a shard, whose hashes its scripts read as they need them."""
        traces = next((key for key in call.keys if key.endswith(":traces")), None)
        if traces is None:
            return []
        try:
            (rows,) = self.commands(traces, [("HGETALL", traces)])
        except (StoreError, StoreUnavailable):  # then this key may be the one
            return []
        return [id.decode("utf-8", "replace") for id in rows[::2]]

    def one(self, call: Call) -> Any:
        """Run one script and return its answer."""
        (answer,) = self.evaluate([call])
        if isinstance(answer, Exception):
            try:
                raise answer
            finally:
                del answer  # the frame is in its traceback: each would keep the other
        return answer

    def commands(self, key: str, commands: Sequence[Command]) -> list[Any]:
        """Run plain commands on keys of one slot, in one round trip; return the raw replies."""
        return raise_errors(_with_keys(commands, self._exchange([key] * len(commands), commands)))

    def transact(self, key: str, commands: Sequence[Command]) -> list[Any]:
        """Run plain commands in one transaction; otherwise as `commands`."""
        answers = self.commands(key, [("MULTI",), *commands, ("EXEC",)])
        return raise_errors(_with_keys(commands, answers[-1]))

    def _send(self, calls: Sequence[Call], command_of: Callable[[Call], Command]) -> list[Any]:
        return self._exchange([call.keys[0] for call in calls], [command_of(call) for call in calls])

    def _exchange(self, keys: Sequence[str], commands: Sequence[Command]) -> list[Any]:
        """Send each server its commands, then read the answers; failures are exceptions among them."""
        no_owner = NoOwner("no server of the cluster has it")
        answers: list[Any] = [no_owner] * len(commands)
        try:
            exchanges = [_Exchange(*group, self._idle) for group in self._routes.groups(keys)]
            for exchange in exchanges:
                exchange.send([commands[place] for place in exchange.places], self._routes.check)
                if exchange.is_new:
                    self._numbers[exchange.client] = next(self._opened)
            # Several hanging servers take no longer than one.
            deadline = time.monotonic() + CALL_TIMEOUT_S if len(exchanges) > 1 else None
            for exchange in exchanges:
                exchange.receive(answers, deadline)
        except (RedisError, OSError) as error:  # no server is known
            self.close()
            return [_without_traceback(error)] * len(commands)
        except BaseException:
            self.close()
            raise
        for exchange in exchanges:
            if exchange.failure or any(_leads_elsewhere(answers[place]) for place in exchange.places):
                self._routes.invalidate(exchange.client)
        for answer in answers:
            self._routes.note_redirect(answer)
        return answers


def raise_errors(answers: list[Any]) -> list[Any]:
    """Return the answers; if one is an exception, raise it as the failure that it means."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise as_failure(answer) from answer
    return answers


def _with_keys(commands: Sequence[Command], answers: Sequence[Any]) -> list[Any]:
    """Return the answers to commands; an error names the key whose value has another type."""
    return [
        of_another_type([str(command[2 if command[0] == "XINFO" else 1])])
        if isinstance(answer, Exception) and code_of(answer) == "WRONGTYPE"
        else answer
        for command, answer in zip(commands, answers, strict=True)
    ]


def _leads_elsewhere(answer: object) -> bool:
    return isinstance(answer, RedisError) and is_elsewhere(answer)


class _Exchange:
    """One exchange with one server."""

    def __init__(
        self, client: "redis.Redis", places: list[int], idle: MutableMapping["redis.Redis", Any]
    ) -> None:
        self.client = client
        self.places = places  # positions of its commands
        self._idle = idle
        self.failure: Exception | None = None  # what broke it; nothing more is read then
        self.is_new = False  # whether its connection is one that no exchange had before
        self._connection: Any = None  # redis-py's, whose types are loose

    def send(self, commands: Sequence[Command], check: Callable[["redis.Redis"], None]) -> None:
        """Send commands, after checking the server."""
        try:
            check(self.client)
            self._connection = self._connect()
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except CALL_ERRORS as error:
            self.failure = self._interrupted(error)

    def _connect(self) -> Any:
        """Return the idle connection, unless it was closed meanwhile, or a new one."""
        pool: Any = self.client.connection_pool
        if (connection := self._idle.pop(self.client, None)) is not None:
            try:
                if not connection.can_read():
                    return connection
            except CALL_ERRORS:
                pass
            connection.disconnect()
            pool.release(connection)
        self.is_new = True
        return pool.get_connection()

    def receive(self, answers: list[Any], deadline: float | None) -> None:
        """Store the answers, or what broke the exchange, at their positions; without a deadline if None."""
        for place in self.places:
            answers[place] = self.failure or self._read_one(deadline)
        if self.failure is None:
            self._idle[self.client] = self._connection

    def _read_one(self, deadline: float | None) -> Any:
        try:
            if deadline is None:
                return self._connection.read_response()
            return self._connection.read_response(timeout=max(MIN_WAIT_S, deadline - time.monotonic()))
        except ResponseError as error:
            return _without_traceback(error)
        except CALL_ERRORS as error:
            self.failure = self._interrupted(error)
            return self.failure

    def _interrupted(self, error: Exception) -> Exception:
        """Return what broke the exchange, as `CallInterrupted` if commands were sent and it is no reply."""
        is_reply = bool(code_of(error)) or needs_operator(error)
        if self._connection is None or is_reply:
            return _without_traceback(error)
        return CallInterrupted(f"{type(error).__name__}: {error}")


def _without_traceback(error: Exception) -> Exception:
    """Return an error that is passed on as an answer.

    The frames of its traceback would refer to it in turn, and keep the connection until garbage is collected.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
