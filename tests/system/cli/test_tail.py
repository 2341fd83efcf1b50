"""``presence tail``, run as a process against a real Valkey."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from presence.store.embedded import EmbeddedRedis, embedded_redis
from presence.store.redis_client import Redis, open_client

pytestmark = pytest.mark.usefixtures("clean_environment")
DEADLINE_S = 20.0


def event(client: Redis, entry_id: str, kind: str = "online", **fields: str | int) -> None:
    values: dict[Any, Any] = {"v": 1, "type": kind, "uid": "u", "code": 1, "at_ms": 1_700_000_000_123}
    values |= fields
    client.hset("presence:meta", "shards", 1)  # as of any server
    client.xadd("presence:{0}:events", values, id=entry_id)


class Tail:
    def __init__(self, url: str, *flags: str) -> None:
        command = [sys.executable, "-m", "presence", "tail", "--redis", url, *flags]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def stop_reading(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.stdout = None

    def complaint(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def wait_until_reading(self, client: Redis) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not any(peer["cmd"] == "xread" for peer in client.client_list()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def tail() -> Iterator[Callable[..., Tail]]:
    running: list[Tail] = []

    def start(url: str, *flags: str) -> Tail:
        running.append(Tail(url, *flags))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.communicate()


StartTail = Callable[..., Tail]


def test_tail_prints_only_new_events_as_json(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail
) -> None:
    event(client, "1-0")
    running = tail(redis_server.url, "--json")
    running.wait_until_reading(client)
    event(client, "2-0", since_ms=5, session="7")
    fields = {"id": "2-0", "shard": 0, "v": 1, "type": "online", "uid": "u", "code": 1, "since_ms": 5}
    assert json.loads(running.line()) == {**fields, "at_ms": 1_700_000_000_123, "session": "7"}
    assert running.stop(signal.SIGINT) == 0
    assert running.complaint() == ""


def test_tail_shows_who_goes_away_and_what_he_says(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail
) -> None:
    event(client, "1-0", "online")
    meta = '{"text":"h\u00ed \x1b[2J\nforged"}'
    event(client, "2-0", "away", reason="back", node="n1", device="d", status_ms=7, meta=meta)
    assert json.loads(tail(redis_server.url, "--json", "--after=0", "--type=away").line())["id"] == "2-0"
    line = tail(redis_server.url, "--after=0", "--type=away").line()
    assert line.split()[:2] == ["2023-11-14", "22:13:20.123"]
    assert line.split()[2:8] == ["away", "back", "u", "(d)", "2-0", "n1"]
    assert line.endswith('{"text":"h\u00ed \\u{1b}[2J\\u{a}forged"}')


@pytest.mark.parametrize("more", [True, False], ids=["with more to print", "while nothing happens"])
def test_tail_ends_quietly_when_nobody_reads(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail, more: bool
) -> None:
    event(client, "1-0")
    running = tail(redis_server.url, "--after", "0")
    assert running.line()
    running.wait_until_reading(client)
    running.stop_reading()
    if more:
        event(client, "2-0")
    assert running.process.wait(DEADLINE_S) == 0
    assert running.complaint() == ""


def test_tail_in_a_group_acknowledges_what_it_printed(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail
) -> None:
    client.xgroup_create("presence:{0}:events", "g", "0", mkstream=True)
    for number in range(1, 4):
        event(client, f"{number}-0")
    deaf = tail(redis_server.url, "--group", "g", "--consumer", "c")
    deaf.stop_reading()
    assert deaf.process.wait(DEADLINE_S) == 0
    assert pending(client), "what could not be printed stays with the group"
    running = tail(redis_server.url, "--json", "--group", "g", "--consumer", "c")
    assert [json.loads(running.line())["id"] for _ in range(3)] == ["1-0", "2-0", "3-0"]
    deadline = time.monotonic() + DEADLINE_S
    while pending(client):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tail_under_a_name_that_is_in_use_says_so(
    redis_server: EmbeddedRedis, client: Redis, tail: StartTail
) -> None:
    client.xgroup_create("presence:{0}:events", "g", "0", mkstream=True)
    event(client, "1-0")
    first = tail(redis_server.url, "--json", "--group", "g", "--consumer", "c")
    assert json.loads(first.line())["id"] == "1-0"
    second = tail(redis_server.url, "--json", "--group", "g", "--consumer", "c")
    assert second.process.wait(DEADLINE_S) == 1
    assert "consumer c of group g is used by process" in second.complaint()
    event(client, "2-0")
    assert json.loads(first.line())["id"] == "2-0"


def pending(client: Redis) -> int:
    answer: Any = client.xpending("presence:{0}:events", "g")
    count: int = answer["pending"]
    return count


def test_tail_goes_on_after_redis_was_restarted(tmp_path: Path, tail: StartTail) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    extra = ("--port", str(port), "--bind", "127.0.0.1")
    url = f"redis://127.0.0.1:{port}"
    with embedded_redis(tmp_path, extra), open_client(url) as client:
        event(client, "1-0")
        running = tail(url, "--json", "--after", "0")
        assert json.loads(running.line())["id"] == "1-0"
    assert running.complaint().startswith(f"presence: lost Redis at {url}, retrying: ")
    with embedded_redis(tmp_path, extra), open_client(url) as client:
        event(client, "2-0")
        assert json.loads(running.line())["id"] == "2-0"
        assert running.complaint() == f"presence: Redis at {url} is reachable again\n"
        assert running.stop() == 0
