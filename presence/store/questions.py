"""Questions about a user that operators' commands ask nodes, and the nodes' answers: all kinds.

A question goes to nodes over their control channels; each writes its answer where the program polls for it,
see `presence.store.answers`. A node ignores kinds that it does not know. A new kind is a member of
`QuestionKind`, a row of `_CHECKS`, and a method of `presence.server.question_answers`.
"""

import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

import msgpack

from presence.protocol import UID_MAX_BYTES
from presence.store.answers import MAX_POLL_INTERVAL_S, MIN_POLL_INTERVAL_S, TOKEN_FORM, AnswerField
from presence.store.keys import Keys
from presence.store.shard_clients import ShardClients


class QuestionKind(Enum):
    EXPLAIN = "explain"  # everything about a user's sessions, see `presence.server.question_answers`


class Question(NamedTuple):
    kind: QuestionKind
    uid: str
    token: str  # random; names the Redis key for the answers, and nothing else


def read_question(message: Mapping[str, Any]) -> Question | None:
    """Return the question in a message of a control channel; None if it is none of a known kind."""
    try:
        kind, uid, token = QuestionKind(message["type"]), message["uid"], message["token"]
        is_valid = TOKEN_FORM.fullmatch(token) and 0 < len(uid.encode()) <= UID_MAX_BYTES
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Question(kind, uid, token) if is_valid else None


def question_text(question: Question) -> str:
    """Return the control message of a question, for `read_question`."""
    message = {"type": question.kind.value, "uid": question.uid, "token": question.token}
    return json.dumps(message, separators=(",", ":"))


def answer_field(question: Question, node: str, found: object) -> AnswerField:
    return AnswerField(question.uid, question.token, node, msgpack.packb(found))


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by node
    not_listening: frozenset[str] = frozenset()  # nodes not subscribed; a cluster never knows


def ask(
    clients: ShardClients, keys: Keys, kind: QuestionKind, uid: str, nodes: Collection[str], *, wait_s: float
) -> NodeAnswers:
    """Ask nodes about a user; return when all that are subscribed have answered, or after `wait_s`."""
    question = Question(kind, uid, secrets.token_hex(16))
    key, text = keys.answers(keys.shard(uid), question.token), question_text(question)
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
        read = {name.decode("utf-8", "replace"): read_answer(kind, packed) for name, packed in fields.items()}
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
_ROOM_FIELDS: Final[Mapping[str, Any]] = {
    "room": str,
    "sent": (int, type(None)),
    **dict.fromkeys(("sent_version", "count", "version"), int),
    "read_age_s": _NUMBER,
}
_ENDED_FIELDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("device", "session", "reason"), str),
    **dict.fromkeys(("code", "at_ms", "last_packet_ms", "deadline_ms"), int),
}


def _is_explanation(answer: Any) -> bool:
    known = isinstance(answer["node"], str) and isinstance(answer["outbox"], int)
    rooms = [
        room for session in answer["sessions"] for room in session.get("rooms", ())
    ]  # not by older nodes
    checks = (answer["sessions"], _SESSION_FIELDS), (answer["ended"], _ENDED_FIELDS), (rooms, _ROOM_FIELDS)
    for rows, shape in checks:
        for row in rows:
            known &= all(isinstance(row[name], kinds) for name, kinds in shape.items())
    return known


_CHECKS: Final[Mapping[QuestionKind, Callable[[Any], bool]]] = {QuestionKind.EXPLAIN: _is_explanation}
"""Whether an answer to a question of this kind has the fields that its readers use; may raise."""


def read_answer(kind: QuestionKind, packed: bytes) -> dict[str, Any] | None:
    """Return the answer of a node; None if no node wrote it."""
    try:
        answer = msgpack.unpackb(packed, unicode_errors="replace")
        is_answer = _CHECKS[kind](answer)
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException):
        return None
    return answer if is_answer else None
