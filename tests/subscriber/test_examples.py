"""The examples in the docstrings run as they stand, against a Redis of the test's."""

import subprocess
import sys
import textwrap
from types import ModuleType

import pytest

from presence import reader, subscriber
from presence.store.client import Redis
from tests.subscriber.streams import Streams


def examples(module: ModuleType) -> list[str]:
    """Return the indented blocks of a module's docstring that stand after a ``::``."""
    assert module.__doc__
    found: list[list[str]] = []
    for block in module.__doc__.split("::\n")[1:]:
        lines: list[str] = []
        for line in block.splitlines():
            if line and not line.startswith("    "):
                break
            lines.append(line)
        found.append(lines)
    return [textwrap.dedent("\n".join(lines)).strip() for lines in found]


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


AT_HOME = "redis://localhost:6379"
GROUP, ALONE, VIEW = examples(subscriber)
READER, IN_A_THREAD = examples(reader)


@pytest.fixture
def streams(client: Redis) -> Streams:
    streams = Streams(client)
    streams.create_group("push")
    return streams


def test_the_group_example_pushes_to_who_went_silent(url: str, streams: Streams) -> None:
    streams.write("ann", "bob", kind="offline")
    pushed = "import trio\nasync def send_push(uid):\n    print(uid, flush=True)\n"
    pushed += "    if uid == 'bob':\n        raise SystemExit\n"
    assert run(pushed + GROUP.replace(AT_HOME, url)).split() == ["ann", "bob"]
    assert streams.pending("push") == 1, "only the last one was not acknowledged"


def test_the_example_without_a_group_prints_events(url: str, streams: Streams) -> None:
    streams.write("ann")
    program = ALONE.replace(AT_HOME, url).replace("1700000000000-0", "0-0")
    assert "uid='ann'" in run(program.replace("print(event)", "print(event)\n    break"))


def test_the_example_of_a_view_knows_who_is_online(url: str, streams: Streams) -> None:
    record = '{"id":"1-0","since_ms":5,"sessions":{"":{}}}'
    streams.client.hset(streams.keys.online(0), "ann", record)
    assert run(f"{VIEW.replace(AT_HOME, url)}\n    break\nprint(online)").strip() == "{'ann'}"


def test_the_example_of_the_reader_prints_who_is_online(url: str, streams: Streams) -> None:
    session = '{"session":"s","node":"n","login_ms":1}'
    record = f'{{"id":"1-0","since_ms":5,"sessions":{{"":{session}}}}}'
    streams.client.hset(streams.keys.online(0), "ann", record)
    streams.client.zadd(streams.keys.nodes, {"n": 10**15})  # a lease that lasts
    assert run(READER.replace(AT_HOME, url)).splitlines() == ["1 online", "online", "ann"]


def test_the_example_of_the_reader_in_a_thread(url: str, streams: Streams) -> None:
    program = f"""
import trio
from presence.reader import PresenceReader
async def main():
    reader, uids = PresenceReader({url!r}), ["ann"]
{textwrap.indent(IN_A_THREAD, "    ")}
    print(states["ann"]["status"])
trio.run(main)
"""
    assert run(program).strip() == "offline"
