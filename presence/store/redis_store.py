"""The store on one Redis: a node's batches, probes and retirements as calls of the scripts.

One connection, used from one thread at a time. A connection whose call was interrupted or failed is
closed and never reused, so that no answer can be taken for that of another call.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import redis
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from presence.store.batches import (
    Batch,
    Probe,
    Reply,
    Step,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from presence.store.client import open_client, redacted
from presence.store.packing import Shape, read_probe, read_reply, source

DATA_VERSION: Final = "1"
_SCRIPTS: Final = ("apply", "retire", "probe")
# Error replies that pass with time.
_PASSING: Final = frozenset(
    {
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "NOREPLICAS",
        "NOSCRIPT",  # flushed again between loading and calling
        "OOM",
        "READONLY",
        "TRYAGAIN",
    }
)

_Call = tuple[str, list[str], list[Any]]  # script, KEYS, ARGV


class RedisStore:
    """A `Store` on one Redis or Valkey, 6.2 or newer.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        shape: key names and bounds.
    """

    def __init__(self, url: str, shape: Shape) -> None:
        self._url = url
        self._shape = shape
        self._client: redis.Redis | None = None
        self._digests = {
            # The digest names the script to Redis, it protects nothing.
            name: hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()
            for name in _SCRIPTS
        }

    def check_meta(self) -> None:
        """Compare version and shards with what Redis has, or write them where it has none.

        Raises:
            StoreMismatch: they differ; the message names both.
            StoreUnavailable: Redis cannot be reached.
            StoreError: Redis answered with another error.
        """
        key, ours = self._shape.keys.meta, {"version": DATA_VERSION, "shards": str(self._shape.keys.shards)}
        pipeline = self._open().pipeline(transaction=True)
        for name, value in ours.items():
            pipeline.hsetnx(key, name, value)
        pipeline.hmget(key, list(ours))
        present = [value.decode() for value in self._answers(pipeline)[-1]]
        for (name, value), found in zip(ours.items(), present, strict=True):
            if value != found:
                raise StoreMismatch(
                    f"{redacted(self._url)}: {key} has {name} {found}, this node is set to {name} {value}"
                )

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        """Perform the steps in one round trip; see `Store.apply`."""
        calls: list[_Call] = []
        for step in steps:
            keys = self._shape.key_names(step.shard, step.counter.node)
            if isinstance(step, Batch):
                calls.append(("apply", keys, self._shape.apply_arguments(step)))
            else:
                calls.append(("retire", keys, self._shape.retire_arguments(step)))
        return [
            _as_failure(answer) if isinstance(answer, Exception) else read_reply(step, answer)
            for step, answer in zip(steps, self._evaluate(calls), strict=True)
        ]

    def probe(self, node: str, inbox_read: Sequence[int]) -> list[Probe]:
        """Ask every shard in one round trip; see `Store.probe`."""
        calls: list[_Call] = [
            ("probe", self._shape.key_names(shard, node), self._shape.probe_arguments(shard, node, after))
            for shard, after in enumerate(inbox_read)
        ]
        probes = []
        for shard, answer in enumerate(self._evaluate(calls)):
            if isinstance(answer, Exception):
                raise _as_failure(answer)
            probes.append(read_probe(shard, node, answer))
        return probes

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails."""
        client, self._client = self._client, None
        if client is not None:
            client.connection_pool.disconnect(inuse_connections=True)

    def _open(self) -> redis.Redis:
        if self._client is None:
            self._client = open_client(self._url)
        return self._client

    def _evaluate(self, calls: list[_Call]) -> list[Any]:
        """Run the scripts; an exception among the answers stands for a call that Redis refused to run."""
        answers = self._evaluate_once(calls)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:  # the first call, a restart or SCRIPT FLUSH; nothing of these calls was run
            loading = self._open().pipeline(transaction=False)
            for name in _SCRIPTS:
                loading.script_load(source(name))
            self._answers(loading)
            for i, answer in zip(missing, self._evaluate_once([calls[i] for i in missing]), strict=True):
                answers[i] = answer
        return answers

    def _evaluate_once(self, calls: list[_Call]) -> list[Any]:
        pipeline = self._open().pipeline(transaction=False)
        for name, keys, arguments in calls:
            pipeline.evalsha(self._digests[name], len(keys), *keys, *arguments)
        return self._answers(pipeline, raise_on_error=False)

    def _answers(self, pipeline: Any, *, raise_on_error: bool = True) -> list[Any]:
        try:
            answers: list[Any] = pipeline.execute(raise_on_error=raise_on_error)
        except (RedisError, OSError, ValueError) as error:  # ValueError: closed under the call's feet
            self.close()
            raise _as_failure(error) from error
        except BaseException:
            self.close()
            raise
        return answers


def _as_failure(error: Exception) -> StoreUnavailable | StoreError:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, (RedisConnectionError, RedisTimeoutError)) or not isinstance(error, ResponseError):
        return StoreUnavailable(text)
    # redis-py cuts the code off where it has a class for it; a pipeline writes the command before the rest.
    code = error.status_code or str(error).rpartition("caused error: ")[2].partition(" ")[0]
    return StoreUnavailable(text) if code in _PASSING else StoreError(text)
