"""The store on Redis, one server or a cluster: a node's batches, probes and sweeps as script calls."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from presence.store.address import redacted
from presence.store.batches import Step, StoreError, StoreMismatch, StoreUnavailable
from presence.store.client import open_client
from presence.store.packing import Shape, read_probe, read_reply
from presence.store.replies import Probe, Reply
from presence.store.routes import Connect
from presence.store.scripting import Call, Scripting

T = TypeVar("T")

DATA_VERSION: Final = "1"


class RedisStore:
    """A `Store` on Redis or Valkey, 6.2 or newer; see `Scripting` for its connections.

    Args:
        url: as `presence.store.address` takes it.
        shape: key names and bounds.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, shape: Shape, connect: Connect = open_client) -> None:
        self._shape = shape
        self._scripting = Scripting(url, connect)

    def check_meta(self) -> None:
        """Compare version and shards with what Redis has, or write them where it has none.

        Raises:
            StoreMismatch: they differ; the message names both.
            StoreUnavailable: Redis cannot be reached.
            StoreError: Redis answered with another error.
        """
        key, ours = self._shape.keys.meta, {"version": DATA_VERSION, "shards": str(self._shape.keys.shards)}
        commands = [("HSETNX", key, name, value) for name, value in ours.items()]
        found = self._scripting.commands(key, [*commands, ("HMGET", key, *ours)])[-1]
        present = [value.decode("utf-8", "replace") for value in found]
        for (name, value), found in zip(ours.items(), present, strict=True):
            if value != found:
                url = redacted(self._scripting.url)
                raise StoreMismatch(f"{url}: {key} has {name} {found}, this node is set to {name} {value}")

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        """Perform the steps in one round trip; see `Store.apply`."""
        calls = [self._shape.call(step) for step in steps]
        return [
            answer
            if isinstance(answer, (StoreUnavailable, StoreError))
            else _or_unreadable(partial(read_reply, step, answer))
            for step, answer in zip(steps, self._scripting.evaluate(calls), strict=True)
        ]

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        """Ask shards in one round trip; see `Store.probe`."""
        calls = [
            Call("probe", self._shape.key_names(shard, node), self._shape.probe_arguments(shard, node, after))
            for shard, after in inbox_read.items()
        ]
        return {
            shard: answer
            if isinstance(answer, (StoreUnavailable, StoreError))
            else _or_unreadable(partial(read_probe, shard, node, answer))
            for shard, answer in zip(inbox_read, self._scripting.evaluate(calls), strict=True)
        }

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails."""
        self._scripting.close()


def _or_unreadable(read: Callable[[], T]) -> T | StoreError:
    """Return what an answer says; an error if somebody else wrote where the scripts keep their answers."""
    try:
        return read()
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        return StoreError(f"an answer that no script gives: {type(error).__name__}: {error}")
