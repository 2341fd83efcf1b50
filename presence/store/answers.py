"""Answers of nodes to programs that are no nodes: fields of a hash in Redis, which the program polls.

| asked by | reaches | field | value |
| --- | --- | --- | --- |
| a question, see `presence.store.questions` | all nodes | node | what the node knows of the user |
| a message with a `ReplyAddress` | the recipient's nodes | number, node | how many sessions got it |

Both come over the control channel of a node. The hash is in the shard of the user and expires seconds later.
What asks names no key, only a token from which the key is made, so it cannot make a node write where presence
data is.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from presence.messaging.message_bus import DeliveryReport, ReplyAddress
from presence.store.cluster_routes import Connect
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.script_runner import Command, Scripting, raise_errors
from presence.store.shard_clients import ShardClients

ANSWER_TTL_MS: Final = 10_000  # far longer than any program waits for answers
MIN_POLL_INTERVAL_S: Final = 0.005  # a node answers within a millisecond or two;
MAX_POLL_INTERVAL_S: Final = 0.05  # those that have not by then take longer
MAX_NUMBER: Final = 10_000  # of a message among those with one token
TOKEN_FORM: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class AnswerField(NamedTuple):
    """One field of the answers about a user."""

    uid: str
    token: str
    name: str
    value: bytes


def report_field(report: DeliveryReport, node: str) -> AnswerField:
    packed = msgpack.packb([report.devices, report.delivered, report.grace_s])
    return AnswerField(report.uid, report.reply_to.token, f"{report.reply_to.number} {node}", packed)


class AnswerKeys(Scripting):
    """The node's side; see `presence.server.answer_queue.AnswerChannel`.

    Args:
        url, connect: see `Scripting`.
        keys: key names.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._keys = keys

    def write(self, answers: Iterable[AnswerField]) -> None:
        """Store in one round trip to each server that has some of the keys."""
        fields: dict[str, list[Any]] = {}
        for each in answers:
            key = self._keys.answers(self._keys.shard(each.uid), each.token)
            fields.setdefault(key, []).extend((each.name, each.value))
        keys: list[str] = []
        commands: list[Command] = []
        for key, values in fields.items():
            expire = ("PEXPIRE", key, ANSWER_TTL_MS)
            transaction: list[Command] = [("MULTI",), ("HSET", key, *values), expire, ("EXEC",)]
            keys += [key] * len(transaction)
            commands += transaction
        for answer in raise_errors(self._exchange(keys, commands)):
            if isinstance(answer, list):
                raise_errors(answer)


# Reports on messages


def read_address(parts: Sequence[Any]) -> ReplyAddress | None:
    """Return the address in a delivery, from its token and number on; None if it is none."""
    token, number = parts[:2]
    address = ReplyAddress(token.decode(), number)
    is_valid = type(number) is int and 0 <= number < MAX_NUMBER and TOKEN_FORM.fullmatch(address.token)
    return address if is_valid else None


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
