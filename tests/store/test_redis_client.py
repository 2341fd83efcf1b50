"""Connections to Redis: how commands are packed."""

import signal
import subprocess
import sys
from typing import Any

import pytest
import redis

from presence.store.redis_client import open_client

INTERRUPTED = """
import signal
from presence.store.redis_client import open_client

def interrupt(*_):
    raise KeyboardInterrupt

connection = open_client("redis://localhost").connection_pool.make_connection()
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
while interrupted < 100:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while True:
            connection.pack_command("RPUSH", "key", *range(2000))
    except KeyboardInterrupt:
        interrupted += 1
print("interrupted", interrupted)
"""


def connection() -> Any:
    """Return a connection that was never opened."""
    return open_client("redis://localhost").connection_pool.make_connection()


def test_an_interrupt_while_a_command_is_packed_ends_nothing_but_the_call() -> None:
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=50, check=False
    )
    assert run.returncode != -signal.SIGSEGV
    assert run.stdout == "interrupted 100\n", run.stderr


def test_words_are_packed_as_redis_py_packs_them() -> None:
    words = ("CONFIG GET", "é", b"\x00\xff", 7, -1.5, bytearray(b"ab"), memoryview(b"cd"))
    theirs: Any = redis.Redis(protocol=2).connection_pool.make_connection()
    assert b"".join(connection().pack_command(*words)) == b"".join(theirs.pack_command(*words))


@pytest.mark.parametrize("word", [None, True, ["list"], object()])
def test_a_word_of_another_type_is_refused(word: object) -> None:
    with pytest.raises(redis.DataError, match="a word of a command cannot be"):
        connection().pack_command("GET", word)
