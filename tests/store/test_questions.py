"""Questions to nodes through Redis, and their answers: recipients, waiting, and validation."""

import json
import time

import msgpack
import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.questions import NodeAnswers, Question, QuestionKind, ask, read_answer, read_question
from presence.store.redis_client import Redis
from presence.store.script_arguments import read_message, read_notice
from presence.store.shard_clients import ShardClients
from tests.support.nodes_that_answer import answer, listening, session

TOKEN = "0123456789abcdef" * 2
PATIENCE_S = 10.0  # for nodes that do answer


def asked(url: str, uid: str, *nodes: str, wait_s: float = PATIENCE_S, shards: int = 1) -> NodeAnswers:
    with ShardClients(url) as access:
        return ask(access, Keys(shards=shards), QuestionKind.EXPLAIN, uid, nodes, wait_s=wait_s)


def question(**fields: object) -> bytes:
    return json.dumps({"type": "explain", "uid": "ann", "token": TOKEN} | fields).encode()


@pytest.mark.parametrize(
    "text",
    [
        *(question(type=kind) for kind in ("displaced", ["explain"])),
        *(question(token=token) for token in ("x" * 32, TOKEN + "\n", TOKEN.upper(), "0", 7)),
        *(question(uid=uid) for uid in ("", "a" * 129, "ä" * 65, "\ud800", ["ann"], None)),
        *(b"{}", b'{"type": "explain"}', b"{" * 5000, b'{"type":' * 50_000, b"{\xff}", b'{"type": NaN}'),
    ],
)
def test_invalid_questions_are_ignored(text: bytes) -> None:
    asked = Question(QuestionKind.EXPLAIN, "änn", TOKEN)
    assert read_question(json.loads(question(uid="änn", newer=1))) == asked
    message = read_message(text)
    assert message is None or (read_question(message) or read_notice(message)) is None


def test_all_listening_nodes_are_asked_and_waited_for(shared_redis: EmbeddedRedis, client: Redis) -> None:
    first, second = answer("n1", session("n1", "s1", newer=[1])) | {"newest": True}, answer("n2")
    with listening(shared_redis.url, "n1", first), listening(shared_redis.url, "n2", second):
        started = time.monotonic()
        answers = asked(shared_redis.url, "ann", "n1", "n2", "gone")
    assert answers == NodeAnswers({"n1": first, "n2": second}, frozenset({"gone"}))
    assert time.monotonic() - started < PATIENCE_S
    assert asked(shared_redis.url, "ann") == NodeAnswers(), "no node is asked"


def test_a_silent_node_is_waited_for_no_longer_than_the_limit(
    shared_redis: EmbeddedRedis, client: Redis
) -> None:
    url = shared_redis.url
    damaged = listening(url, "n2", packed=b"\xc1")
    with listening(url, "n1", answer("n1")), damaged, listening(url, "mute") as questions:
        started = time.monotonic()
        answers = asked(url, '"},"type":"kicked"', "n1", "n2", "mute", wait_s=0.3)
        took_s = time.monotonic() - started
    assert (set(answers.answers), set(answers.not_listening)) == ({"n1"}, set())
    assert 0.3 <= took_s < 0.3 + PATIENCE_S
    assert [each.uid for each in questions] == ['"},"type":"kicked"'], (
        "a hostile name is asked about unchanged"
    )


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb({"node": "n1", "outbox": 0}),
        msgpack.packb(answer("n1") | {"outbox": "many"}),
        msgpack.packb(answer("n1") | {"sessions": 3}),
        msgpack.packb(answer("n1", session("n1", "s1") | {"due_in_s": "soon"})),
        msgpack.packb(answer("n1", {"device": ""})),
        msgpack.packb(answer("n1")) + b"\x00",
        msgpack.packb({1: {2: 3}}),
    ],
)
def test_an_invalid_answer_is_rejected(packed: bytes) -> None:
    assert read_answer(QuestionKind.EXPLAIN, packed) is None
