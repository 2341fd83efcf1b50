"""The README is true: its lines and its examples."""

import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import protocol
from presence.embedded import EmbeddedRedis
from tests.live.events import read_events
from tests.live.server_process import running_server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """Return the code block below the marker of that name."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.+?)```", README, re.DOTALL)
    assert found, name
    return found.group(1)


@pytest.mark.parametrize("name", ["run", "demo", "test"])
def test_a_command_is_one_line(name: str) -> None:
    assert block(name).count("\n") == 1


def test_the_client_example_logs_in_beats_and_logs_out(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    flags = ("--redis", redis_server.url, "--idle-timeout", "1", "--tick", "0.1")
    with running_server(*flags) as server:
        example = block("client").replace("7400", str(server.address[1])).replace("sleep(12)", "sleep(0.7)")
        script = tmp_path / "client.py"
        script.write_text(example)
        run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=30, check=True)
        assert "session" in run.stdout
    told = [(event["uid"], event["type"], event["reason"]) for event in read_events(redis_server.url)]
    assert told == [("ann", "online", "login"), ("ann", "offline", "logout")]


def runs_until_it_says(code: str, words: str) -> None:
    """Run an example that goes on for ever, until its output holds the words."""
    program = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(20, program.kill)
    timer.start()
    try:
        assert program.stdout is not None
        assert any(words in line for line in program.stdout), words
    finally:
        timer.cancel()
        program.kill()
        program.communicate()


def test_the_library_and_the_subscriber_examples_run(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, "--idle-timeout", "1", "--tick", "0.1") as server:
        example = block("library").replace("7400", str(server.address[1]))
        runs_until_it_says(example, "bob is offline")  # and is killed: its session ends by grace or silence
        subscriber = block("subscriber").replace("redis://localhost:6379", redis_server.url)
        subscriber = subscriber.replace('group="push", consumer="worker-1"', 'after="0"')
        with socket.create_connection(server.address) as silent:
            silent.sendall(protocol.encode(protocol.login("bob")))
            runs_until_it_says(subscriber, "push to bob")
