"""What became of messages whose senders are no nodes, as the recipients' nodes report it through Redis.

A message with a `ReplyAddress` reaches nodes like any other, by deliver.lua and their control channels. Each
node that got it writes a report: a field of a hash in the shard of the recipient, which the sender polls and
which expires seconds later. As with the questions of `presence.store.ask_nodes`, an address names no key,
only a token from which the key is made, so it cannot make a node write where presence data is. A node of
another version ignores such messages.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgpack

from presence.messaging.letters import ReplyAddress, Report
from presence.store.client import open_client
from presence.store.cluster_routes import Connect
from presence.store.keys import Keys
from presence.store.script_runner import Command, Scripting, raise_errors
from presence.store.shard_clients import ShardClients

REPORT_TTL_MS: Final = 10_000  # far longer than any sender waits
MAX_NUMBER: Final = 10_000  # of a message among those with one token
_TOKEN: Final = re.compile(rb"[0-9a-f]{32}")


def read_address(parts: Sequence[Any]) -> ReplyAddress | None:
    """Return the address in a delivery, from its token and number on; None if it is none."""
    token, number = parts[:2]
    if type(number) is not int or not 0 <= number < MAX_NUMBER or not _TOKEN.fullmatch(token):
        return None
    return ReplyAddress(token.decode(), number)


class ReportKeys(Scripting):
    """The node's side; see `presence.server.delivery_reports.ReportChannel`.

    Args:
        url, connect: see `Scripting`.
        keys: key names.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._keys = keys

    def write(self, node: str, reports: Iterable[Report]) -> None:
        """See `ReportChannel`; one round trip to each server that has some of the keys."""
        fields: dict[str, list[Any]] = {}
        for each in reports:
            key = self._keys.answers(self._keys.shard(each.uid), each.reply_to.token)
            packed = msgpack.packb([each.devices, each.delivered, each.grace_s])
            fields.setdefault(key, []).extend((f"{each.reply_to.number} {node}", packed))
        keys: list[str] = []
        commands: list[Command] = []
        for key, values in fields.items():
            expire = ("PEXPIRE", key, REPORT_TTL_MS)
            transaction: list[Command] = [("MULTI",), ("HSET", key, *values), expire, ("EXEC",)]
            keys += [key] * len(transaction)
            commands += transaction
        for answer in raise_errors(self._exchange(keys, commands)):
            if isinstance(answer, list):
                raise_errors(answer)


def read_reports(
    clients: ShardClients, keys: Keys, token: str, shards: Collection[int]
) -> dict[int, dict[str, tuple[int, int, float]]]:
    """Return by number of the message, and by node, the devices, deliveries and seconds of grace reported.

    Raises `RedisError`; whatever no node wrote is left out.
    """
    answers = clients.ask(keys, shards, lambda pipe, shard: pipe.hgetall(keys.answers(shard, token)))
    found: dict[int, dict[str, tuple[int, int, float]]] = {}
    for (fields,) in answers.values():
        for name, packed in fields.items():
            number, _, node = name.decode("utf-8", "replace").partition(" ")
            report = _read_report(packed)
            if report is not None and number.isascii() and number.isdigit():
                found.setdefault(int(number), {})[node] = report
    return found


def _read_report(packed: bytes) -> tuple[int, int, float] | None:
    try:
        devices, delivered, grace_s = msgpack.unpackb(packed)
        if not (type(devices) is type(delivered) is int and 0 <= delivered <= devices):
            return None
        return devices, delivered, max(0.0, float(grace_s))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
