"""Each example, started as its page says."""

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from websockets.sync.client import ClientConnection, connect

from loadtest.servers import free_port
from tests.docs.pages import ROOT
from tests.support.waiting import wait_for

DEADLINE_S = 30.0


def collect(printed: IO[str], lines: list[str]) -> None:
    for line in printed:
        lines.append(line.strip())  # noqa: PERF401 - others look at the list meanwhile


@contextmanager
def running(name: str, *words: str) -> Iterator[list[str]]:
    """Run an example; the list receives the lines that it prints."""
    lines: list[str] = []
    command = [sys.executable, "-m", f"examples.{name}", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=collect, args=(process.stdout, lines))
        reader.start()
        try:
            yield lines
        finally:
            process.terminate()
    reader.join()


def test_the_push_sender() -> None:
    with running("push_sender") as lines:
        wait_for(lambda: "push to ann, token token-of-ann: you have gone offline" in lines, DEADLINE_S)


def test_the_matchmaker() -> None:
    with running("matchmaker") as lines:
        wait_for(lambda: "ann receives {'won_against': 'bob'}" in lines, DEADLINE_S)
    assert {"ann plays against bob", "bob plays against ann"} & {*lines}
    assert "ann wins: bob stayed away" in lines


def test_the_chat_roster() -> None:
    port = free_port()

    @contextmanager
    def tab(uid: str, *friends: str) -> Iterator[ClientConnection]:
        with connect(f"ws://127.0.0.1:{port}/ws/{uid}") as socket:
            socket.send(json.dumps({"watch": [*friends]}))
            yield socket

    def next_of(socket: ClientConnection) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(socket.recv(DEADLINE_S))
        return {name: value for name, value in found.items() if name != "last_seen_ms"}

    with running("chat_roster", "--port", str(port)) as lines:
        wait_for(lambda: bool(lines), DEADLINE_S)
        wait_for(lambda: b"<title>Chat roster" in page(port), DEADLINE_S)
        with tab("ann", "bob") as ann:
            assert next_of(ann) == {"uid": "bob", "status": "offline"}
            ann.send(json.dumps({"to": "bob", "text": "are you there?"}))
            assert next_of(ann) == {"undelivered": "bob", "text": "are you there?"}
            with tab("bob", "ann") as bob:
                assert next_of(ann) == {"uid": "bob", "status": "online"}
                assert next_of(bob) == {"uid": "ann", "status": "online"}
                ann.send(json.dumps({"to": "bob", "text": "hello"}))
                assert next_of(bob) == {"from": "ann", "text": "hello"}
                bob.send(json.dumps({"status": "away"}))
                assert next_of(ann) == {"uid": "bob", "status": "away"}
            assert next_of(ann) == {"uid": "bob", "status": "offline"}


def page(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1) as answer:
            found: bytes = answer.read()
    except OSError:
        return b""
    return found
