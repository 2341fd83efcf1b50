"""The way of letters through Redis: one script call per shard and batch, and what a node is sent."""

from collections.abc import Mapping, Sequence

import msgpack

from presence.messaging.letters import Delivery, Found, Letter
from presence.store.batches import StoreError, StoreUnavailable
from presence.store.client import open_client
from presence.store.packing import Shape, unpacked
from presence.store.routes import Connect
from presence.store.scripting import Scripting


class Deliveries:
    """A `Post` on Redis or Valkey, with connections of its own; see `Scripting` for these.

    Args:
        url: as `presence.store.address` takes it.
        shape: key names.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, shape: Shape, connect: Connect = open_client) -> None:
        self._shape = shape
        self._scripting = Scripting(url, connect)

    def deliver(
        self, node: str, letters: Sequence[Letter], here: Mapping[str, Mapping[str, int]]
    ) -> list[Found | StoreUnavailable | StoreError]:
        """Hand letters to the nodes that have their recipients; see `Post.deliver`."""
        places: dict[int, list[int]] = {}  # by shard, in order
        for place, letter in enumerate(letters):
            places.setdefault(self._shape.keys.shard(letter.to), []).append(place)
        in_cluster = "1" if self._scripting.is_cluster else ""
        calls = []
        for shard, some in places.items():
            flat = [part for place in some for part in letters[place]]
            ours = {to: here[to] for place in some if (to := letters[place].to) in here}
            arguments = [node, in_cluster, _packed(flat), _packed(ours)]
            calls.append(self._shape.operator_call("deliver", shard, arguments))
        answers: list[Found | StoreUnavailable | StoreError] = [_NOBODY] * len(letters)
        for some, answer in zip(places.values(), self._scripting.evaluate(calls), strict=True):
            if isinstance(answer, (StoreUnavailable, StoreError)):
                for place in some:
                    answers[place] = answer
            else:
                flat = unpacked(answer[0])
                for place, handed, devices in zip(some, flat[::2], flat[1::2], strict=True):
                    answers[place] = Found(handed, tuple(devices))
        return answers

    def close(self) -> None:
        """Close the connections; a call that waits in another thread fails."""
        self._scripting.close()


_NOBODY = Found(0)


def _packed(values: object) -> bytes:
    """Return MessagePack as Lua's takes it, which knows one kind of string: old raw."""
    packed: bytes = msgpack.packb(values, use_bin_type=False)
    return packed


def read_deliveries(packed: bytes) -> list[Delivery]:
    """Return what a node was sent over its control channel; nothing if it is not as deliver.lua packs it."""
    try:
        flat = msgpack.unpackb(packed, raw=True)
        return [
            Delivery(uid.decode(), tuple([device.decode() for device in devices]), frame)
            for uid, devices, frame in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
            if type(frame) is bytes
        ]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return []
