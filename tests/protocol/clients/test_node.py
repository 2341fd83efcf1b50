"""The client in TypeScript: its own tests, its README, and a day with a real server."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence.embedded import EmbeddedRedis
from tests.live.events import read_events
from tests.live.server_process import ServerProcess, running_server
from tests.live.test_return import free_port
from tests.protocol.clients.node_client import Device, devices, run
from tests.protocol.vectors import BAD, GOOD

pytestmark = [pytest.mark.needs("node"), pytest.mark.needs("npm")]

T = 1.0
FLAGS = ("--idle-timeout", str(T), "--tick", "0.1", "--disconnect-grace", "0.3")


def test_its_own_tests_pass_with_every_vector(node_client: Path) -> None:
    names = sorted(
        str(path.relative_to(node_client)) for path in (node_client / "dist" / "test").glob("*.test.js")
    )
    tests = run(node_client, "node", "--test", "--test-reporter=tap", *names)
    assert tests.returncode == 0, re.findall(r"^\s*not ok .*(?:\n.*){20}", tests.stdout, re.MULTILINE)
    assert f"vectors: {len(GOOD)} good and {len(BAD)} bad" in tests.stdout
    counted = dict(re.findall(r"^# (tests|pass|fail|skipped) (\d+)$", tests.stdout, re.MULTILINE))
    print(f"the client in TypeScript: {counted}, {len(GOOD)} good and {len(BAD)} bad vectors")
    assert (counted["fail"], counted["skipped"]) == ("0", "0")


def test_the_example_of_its_readme_runs(node_client: Path, redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *FLAGS) as server:
        script = node_client / "dist" / "examples" / f"readme_{server.address[1]}.js"
        compiled = (node_client / "dist" / "examples" / "readme.js").read_text()
        script.write_text(compiled.replace("7400", str(server.address[1])))
        with devices(node_client, server.address, "bob") as (bob,):
            example = subprocess.run(["node", script], capture_output=True, text=True, timeout=30, check=True)
            assert bob.told("message")["body"] == {"text": "hello"}
    said = example.stdout.splitlines()
    assert said == ["bob online ", "eve offline ", "sessions reached: 1", "over: logged out"]
    told = [
        (event["type"], event["reason"]) for event in read_events(redis_server.url) if event["uid"] == "ann"
    ]
    assert told == [("online", "login"), ("away", "away"), ("offline", "background")]


class Restarted:
    """A server that stops and starts again on its port."""

    def __init__(self, redis_url: str) -> None:
        self._flags = ("--redis", redis_url, *FLAGS, "--port", str(free_port()))
        self.process = ServerProcess(*self._flags)
        self.address = self.process.address

    def stop(self) -> None:
        assert self.process.stop() == 0, self.process.lines[-5:]

    def start(self) -> None:
        self.process = ServerProcess(*self._flags)


@pytest.fixture
def server(redis_server: EmbeddedRedis) -> Iterator[Restarted]:
    server = Restarted(redis_server.url)
    yield server
    server.stop()


def watching(ann: Device, *uids: str) -> dict[str, str]:
    return {uid: state["status"] for uid, state in ann.ask("watch", uids).items()}


def test_a_session_with_a_real_server(
    node_client: Path, redis_server: EmbeddedRedis, server: Restarted
) -> None:
    with devices(node_client, server.address, "ann", "bob", "carl") as (ann, bob, carl):
        assert watching(ann, "bob", "carl", "eve") == {"bob": "online", "carl": "online", "eve": "offline"}
        assert ann.ask("query", ["bob"])["bob"]["status"] == "online"

        assert ann.ask("message", "bob", {"text": "hi", "numbers": [1, 2.5, None]}) == 1
        message = bob.told("message")
        assert (message["from"], message["body"]) == ("ann", {"text": "hi", "numbers": [1, 2.5, None]})
        assert ann.ask("message", "eve", "hi")["error"] == "RecipientOffline"

        bob.ask("away")
        assert ann.told("presence", uid="bob")["state"]["status"] == "away"
        bob.ask("update", {"meta": {"text": "at lunch"}})
        assert ann.told("presence", uid="bob", reason="updated")["state"]["meta"] == {"text": "at lunch"}

        server.stop()
        for device in (ann, bob, carl):
            device.told("disconnected")
        bob.kill()
        server.start()
        for device in (ann, carl):
            device.told("connected", again=True)
        gone = ann.told("presence", uid="bob")
        assert (gone["state"]["status"], gone["state"]["lastSeenMs"] is None) == ("offline", False)

        assert carl.ask("message", "ann", "still there?") == 1
        assert ann.told("message", body="still there?")["from"] == "carl"
        assert carl.close() == 0
        assert ann.told("presence", uid="carl")["reason"] == "logout"
        assert ann.ask("watch", ["carl"])["carl"]["lastSeenMs"] is not None
        assert ann.ask("logout", "background") is None
        assert ann.told("end")["error"] is None
        assert ann.close() == 0

    of_carl = [line["reason"] for line in ann.lines if line.get("uid") == "carl"]
    assert of_carl == ["logout"], "of who was back in time nobody is told"
    server.stop()  # which has then told Redis everything
    events = read_events(redis_server.url)
    told = {
        uid: [event["reason"] for event in events if event["uid"] == uid] for uid in ("ann", "bob", "carl")
    }
    assert told["ann"] == ["login", "background"]
    assert told["carl"] == ["login", "logout"]
    assert told["bob"][:3] == ["login", "away", "updated"]
    seen = [
        line["state"]["id"] for line in ann.lines if line.get("event") == "presence" and line["state"]["id"]
    ]
    ids = [tuple(map(int, id.split("-"))) for id in seen]
    assert ids == sorted(set(ids)), "each newer than the one before"
