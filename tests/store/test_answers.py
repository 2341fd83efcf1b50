"""Answers of nodes in Redis: where they are, and for how long."""

from contextlib import closing
from typing import Any

import pytest

from presence.common.errors import StoreError
from presence.store.answers import ANSWER_TTL_MS, AnswerField, AnswerKeys
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.redis_client import Redis

TOKEN = "0123456789abcdef" * 2


def test_an_answer_is_kept_for_seconds(shared_redis: EmbeddedRedis, client: Redis) -> None:
    with closing(AnswerKeys(shared_redis.url, Keys())) as answers:
        answers.write([AnswerField("ann", TOKEN, "n1", b"one"), AnswerField("bob", TOKEN, "n2", b"two")])
    (key,) = client.keys("*")
    assert key == f"presence:{{0}}:answers:{TOKEN}".encode()
    assert client.hgetall(key) == {b"n1": b"one", b"n2": b"two"}
    left_ms: Any = client.pttl(key)
    assert 0 < left_ms <= ANSWER_TTL_MS
    client.delete(key)
    client.set(key, "in the way")
    with closing(AnswerKeys(shared_redis.url, Keys())) as answers, pytest.raises(StoreError):
        answers.write([AnswerField("ann", TOKEN, "n1", b"one")])
