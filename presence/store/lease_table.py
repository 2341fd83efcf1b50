"""The table of leases on Redis, one server or a cluster, of which one server has it."""

from collections.abc import Mapping, Sequence

import msgpack

from presence.store.client import open_client
from presence.store.interface import LeaseRow
from presence.store.keys import Keys
from presence.store.packing import FENCE_KEPT_S, is_name, read_lease_row, unpacked
from presence.store.routes import Connect
from presence.store.scripting import Call, Scripting


class RedisLeaseTable:
    """A `LeaseTable` on Redis or Valkey, 6.2 or newer; see `Scripting` for its connections.

    Args:
        url: as `presence.store.address` takes it.
        keys: how keys are called.
        lease_s: for how long a renewal holds, by Redis' clock; only shown, see `lease.lua`.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, keys: Keys, lease_s: float, connect: Connect = open_client) -> None:
        self._keys = keys
        self._lease_ms = round(lease_s * 1000)
        self._scripting = Scripting(url, connect)

    def renew(
        self, node: str, counter: int, stats: str, sweeping: Sequence[str]
    ) -> Mapping[str, LeaseRow] | None:
        """Renew a lease and return all rows; see `LeaseTable.renew`."""
        arguments = [node, counter, self._lease_ms, stats, msgpack.packb(list(sweeping))]
        answer = unpacked(self._scripting.one(Call("lease", self._keys.lease_keys, arguments)))
        if answer["status"] != "ok":
            return None
        return {name: read_lease_row(text, end_ms) for name, text, end_ms in answer["rows"] if is_name(name)}

    def claim(self, node: str, seen: str, wanted: str) -> bool:
        """Change a row if it is as seen; see `LeaseTable.claim`."""
        return self._change(node, seen, wanted) is not None

    def bury(self, node: str, seen: str) -> str | None:
        """Take a row away; see `LeaseTable.bury`."""
        return self._change(node, seen, "")

    def _change(self, node: str, seen: str, wanted: str) -> str | None:
        arguments = [node, seen, wanted, FENCE_KEPT_S * 1000]
        answer = unpacked(self._scripting.one(Call("claim", self._keys.lease_keys, arguments)))
        return answer.get("told", "") if answer["status"] == "ok" else None

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails."""
        self._scripting.close()
