"""Answers of nodes to programs that are no nodes: fields of a hash in Redis, which the program polls.

| asked by | reaches | field | value |
| --- | --- | --- | --- |
| an explain request | all nodes | node | what the node knows of the user |
| a message with a `ReplyAddress` | the recipient's nodes | number, node | how many sessions got it |

Both come over the control channel of a node. The hash is in the shard of the user and expires seconds later.
What asks names no key, only a token from which the key is made, so it cannot make a node write where presence
data is. Nodes that do not know a kind of question ignore it.
"""

import json
import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

from presence.messaging.message_bus import ReplyAddress, Report
from presence.outbox.replies import Question
from presence.protocol import UID_MAX_BYTES
from presence.store.cluster_routes import Connect
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.script_runner import Command, Scripting, raise_errors
from presence.store.shard_clients import ShardClients

ANSWER_TTL_MS: Final = 10_000  # far longer than any program waits for answers
MIN_POLL_INTERVAL_S: Final = 0.005  # a node answers within a millisecond or two;
MAX_POLL_INTERVAL_S: Final = 0.05  # those that have not by then take longer
MAX_NUMBER: Final = 10_000  # of a message among those with one token
_KIND: Final = "explain"
_TOKEN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Answer(NamedTuple):
    """One field of the answers about a user."""

    uid: str
    token: str
    name: str
    value: bytes


def answer_to(question: Question, node: str, found: object) -> Answer:
    return Answer(question.uid, question.token, node, msgpack.packb(found))


def answer_with(report: Report, node: str) -> Answer:
    packed = msgpack.packb([report.devices, report.delivered, report.grace_s])
    return Answer(report.uid, report.reply_to.token, f"{report.reply_to.number} {node}", packed)


class AnswerKeys(Scripting):
    """The node's side; see `presence.server.question_responder.AnswerChannel`.

    Args:
        url, connect: see `Scripting`.
        keys: key names.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._keys = keys

    def write(self, answers: Iterable[Answer]) -> None:
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


# Explain requests


def read_question(message: Mapping[str, Any]) -> Question | None:
    """Return the question in a message of a control channel; None if it is none of a known kind."""
    try:
        kind, uid, token = message["type"], message["uid"], message["token"]
        is_one = kind == _KIND and _TOKEN.fullmatch(token) and 0 < len(uid.encode()) <= UID_MAX_BYTES
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Question(uid, token) if is_one else None


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by node
    not_listening: frozenset[str] = frozenset()  # nodes not subscribed; a cluster never knows


def ask(clients: ShardClients, keys: Keys, uid: str, nodes: Collection[str], wait_s: float) -> NodeAnswers:
    """Ask nodes about a user; return when all that are subscribed have answered, or after `wait_s`."""
    token = secrets.token_hex(16)
    key = keys.answers(keys.shard(uid), token)
    text = json.dumps({"type": _KIND, "uid": uid, "token": token}, separators=(",", ":"))
    names = sorted(nodes)
    if not names:
        return NodeAnswers()
    with clients.at(key).pipeline(transaction=False) as pipe:
        for node in names:
            pipe.publish(keys.control_channel(node), text)
        receivers = pipe.execute()
    listening = {node for node, count in zip(names, receivers, strict=True) if count or clients.is_cluster}
    deadline, pause_s = time.monotonic() + wait_s, MIN_POLL_INTERVAL_S
    answers: dict[str, dict[str, Any]] = {}
    while not answers.keys() >= listening:
        fields: Any = clients.at(key).hgetall(key)
        read = {name.decode("utf-8", "replace"): read_answer(packed) for name, packed in fields.items()}
        answers = {name: answer for name, answer in read.items() if answer is not None}
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        if not answers.keys() >= listening:
            clients.pause(min(pause_s, left_s))
            pause_s = min(2 * pause_s, MAX_POLL_INTERVAL_S)
    return NodeAnswers(answers, frozenset(names) - listening - answers.keys())


_NUMBER: Final = (int, float)
_SESSION_FIELDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("device", "session", "node", "link", "status"), str),
    **dict.fromkeys(("login_ms", "last_packet_ms"), int),
    **dict.fromkeys(("last_packet_age_s", "idle_timeout_s"), _NUMBER),
    **dict.fromkeys(("slot", "slots_from_hand"), (int, type(None))),
    "due_in_s": (*_NUMBER, type(None)),
    "ends_as": dict,
    "vouched": bool,
}
_ENDED_FIELDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("device", "session", "reason"), str),
    **dict.fromkeys(("code", "at_ms", "last_packet_ms", "deadline_ms"), int),
}


def read_answer(packed: bytes) -> dict[str, Any] | None:
    """Return the answer of a node, see `presence.server.session_report`; None if no node wrote it."""
    try:
        answer = msgpack.unpackb(packed, unicode_errors="replace")
        known = isinstance(answer["node"], str) and isinstance(answer["outbox"], int)
        for rows, shape in ((answer["sessions"], _SESSION_FIELDS), (answer["ended"], _ENDED_FIELDS)):
            for row in rows:
                known &= all(isinstance(row[name], kinds) for name, kinds in shape.items())
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException):
        return None
    return answer if known else None


# Reports on messages


def read_address(parts: Sequence[Any]) -> ReplyAddress | None:
    """Return the address in a delivery, from its token and number on; None if it is none."""
    token, number = parts[:2]
    address = ReplyAddress(token.decode(), number)
    is_valid = type(number) is int and 0 <= number < MAX_NUMBER and _TOKEN.fullmatch(address.token)
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
