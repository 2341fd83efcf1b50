"""Calls of the Lua scripts over one connection to Redis.

Used from one thread at a time. A connection whose call was interrupted or failed is closed and never reused,
so that no answer can be taken for that of another call.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

import redis
from redis.exceptions import NoScriptError, RedisError

from presence.store.client import open_client
from presence.store.failures import as_failure

_OF_A_SHARD: Final = frozenset({"apply", "compare", "fence", "forget", "kick", "probe", "retire", "sweep"})

# Read with the code that calls them: a worker forked after an upgrade in place has the code of before it.
_TEXTS: Final = {
    file.name: file.read_text("utf-8")
    for file in (resources.files("presence.store") / "scripts").iterdir()
    if file.name.endswith(".lua")
}

Connect = Callable[[str], "redis.Redis"]


@cache
def source(name: str) -> str:
    """Return the text of a script; one that works on a shard has what these share before it."""
    parts = ("prelude", name) if name in _OF_A_SHARD else (name,)
    return "".join(_TEXTS[f"{part}.lua"] for part in parts)


@cache
def digest(name: str) -> str:
    """Return what a script is called by; the digest names it to Redis, it protects nothing."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """A call of a script: its name, KEYS and ARGV."""

    script: str
    keys: list[str]
    arguments: list[Any]


class Scripting:
    """One connection to a Redis or Valkey, 6.2 or newer, opened when it is needed.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        connect: makes the client.
    """

    def __init__(self, url: str, connect: Connect = open_client) -> None:
        self.url = url
        self._connect = connect
        self._client: redis.Redis | None = None

    def open(self) -> "redis.Redis":
        """Return the client."""
        if self._client is None:
            self._client = self._connect(self.url)
        return self._client

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails."""
        client, self._client = self._client, None
        if client is not None:
            client.connection_pool.disconnect(inuse_connections=True)

    def evaluate(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip.

        Returns:
            The answers in order; an exception among them stands for a call that Redis refused to run.

        Raises:
            StoreUnavailable, StoreError: the call as a whole failed; any of the scripts may have run.
        """
        answers = self._evaluate_once(calls)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:  # the first call, a restart or SCRIPT FLUSH; nothing of these calls was run
            loading = self.open().pipeline(transaction=False)
            for name in {calls[i].script: None for i in missing}:
                loading.script_load(source(name))
            self.answers(loading)
            for i, answer in zip(missing, self._evaluate_once([calls[i] for i in missing]), strict=True):
                answers[i] = answer
        return [as_failure(each) if isinstance(each, RedisError) else each for each in answers]

    def one(self, call: Call) -> Any:
        """Run one script and return its answer.

        Raises:
            StoreUnavailable, StoreError: it failed or was refused.
        """
        (answer,) = self.evaluate([call])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _evaluate_once(self, calls: Sequence[Call]) -> list[Any]:
        pipeline = self.open().pipeline(transaction=False)
        for name, keys, arguments in calls:
            pipeline.evalsha(digest(name), len(keys), *keys, *arguments)
        return self.answers(pipeline, raise_on_error=False)

    def answers(self, pipeline: Any, *, raise_on_error: bool = True) -> list[Any]:
        """Execute a pipeline of this connection.

        Raises:
            StoreUnavailable, StoreError: see `evaluate`.
        """
        try:
            answers: list[Any] = pipeline.execute(raise_on_error=raise_on_error)
        except (RedisError, OSError, ValueError) as error:  # ValueError: closed under the call's feet
            self.close()
            raise as_failure(error) from error
        except BaseException:
            self.close()
            raise
        return answers
