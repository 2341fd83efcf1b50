"""Answers of nodes to programs that are no nodes: fields of a hash in Redis, which the program polls.

| asked by | reaches | field | value |
| --- | --- | --- | --- |
| a question, see `presence.store.questions` | all nodes | node | what the node knows of the user |
| a message with a `ReplyAddress` | the recipient's nodes | number, node | how many sessions got it |

Both come over the control channel of a node. The hash is in the shard of the user and expires seconds later.
A node that asks for confirmations of a message of its client gets the report over its own control channel.
What asks names no key, only a token from which the key is made, so it cannot make a node write where presence
data is.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from presence.messaging.message_bus import (
    Confirm,
    ConfirmationReport,
    Confirmed,
    DeliveryReport,
    ReplyAddress,
)
from presence.protocol import CONFIRM_MAX_S
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
_CONFIRMED: Final = "confirmed"  # the type of a report on a control channel


class AnswerField(NamedTuple):
    """One field of the answers about a user."""

    uid: str
    token: str
    name: str
    value: bytes
    to_node: str = ""  # published on the control channel of this node, and not stored


def report_field(report: DeliveryReport, node: str) -> AnswerField:
    token, confirmed = report.reply_to.token, report.confirmed
    if report.to_node and confirmed is not None:
        text = {"type": _CONFIRMED, "token": token, "devices": report.devices, **confirmed._asdict()}
        return AnswerField(report.uid, token, "", json.dumps(text).encode(), report.to_node)
    packed = msgpack.packb([report.devices, report.delivered, report.grace_s, *(confirmed or ())])
    return AnswerField(report.uid, token, f"{report.reply_to.number} {node}", packed)


def read_confirmation_report(message: Mapping[str, Any]) -> ConfirmationReport | None:
    """Return the report in a message of a control channel; None if it is of another kind."""
    token = message.get("token")
    counts: list[Any] = [message.get(name) for name in ("devices", "sessions", "by_app")]
    if message.get("type") != _CONFIRMED or not isinstance(token, str) or not _are_falling(counts):
        return None
    return ConfirmationReport(token, counts[0], Confirmed(*counts[1:]))


def _are_falling(counts: Sequence[Any]) -> bool:
    """Whether these are numbers of sessions, of which each counts some of those before."""
    return all(type(each) is int and each >= 0 for each in counts) and [*counts] == sorted(
        counts, reverse=True
    )


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
        keys: list[str] = []
        commands: list[Command] = []
        for each in answers:
            key = self._keys.answers(self._keys.shard(each.uid), each.token)
            if each.to_node:
                keys.append(key)  # of a server that is reached anyway: all forward messages
                commands.append(("PUBLISH", self._keys.control_channel(each.to_node), each.value))
            else:
                fields.setdefault(key, []).extend((each.name, each.value))
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


def read_confirm(parts: Sequence[Any]) -> Confirm | None:
    """Return what a delivery says of confirmations, behind its address; None if they are not wanted."""
    try:
        within_ms, number, node = parts
        is_valid = type(within_ms) is type(number) is int and 0 < within_ms <= 1000 * CONFIRM_MAX_S
        return Confirm(within_ms / 1000, number, node.decode()) if is_valid else None
    except (ValueError, AttributeError):
        return None


class ReadReport(NamedTuple):
    """A report on a message, as a backend reads it."""

    devices: int  # for which the node got it
    delivered: int  # of these, sessions to whose connections it was handed
    grace_s: float  # how long a session of one of them may still return; 0 if none may
    confirmed: Confirmed | None = None  # None: not known yet, or not wanted


def read_reports(
    clients: ShardClients, keys: Keys, token: str, shards: Collection[int]
) -> dict[int, dict[str, ReadReport]]:
    """Return the reports by number of the message, and by node.

    Raises `RedisError`; whatever no node wrote is left out.
    """
    answers = clients.ask(keys, shards, lambda pipe, shard: pipe.hgetall(keys.answers(shard, token)))
    found: dict[int, dict[str, ReadReport]] = {}
    for (fields,) in answers.values():
        for name, packed in fields.items():
            number, _, node = name.decode("utf-8", "replace").partition(" ")
            report = _read_report(packed)
            if report is not None and number.isascii() and number.isdigit():
                found.setdefault(int(number), {})[node] = report
    return found


def _read_report(packed: bytes) -> ReadReport | None:
    try:
        devices, delivered, grace_s, *counts = msgpack.unpackb(packed)
        if not _are_falling([devices, delivered, *counts]):
            return None
        return ReadReport(
            devices, delivered, max(0.0, float(grace_s)), Confirmed(*counts) if counts else None
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
