"""The client in TypeScript: its own tests, its README, and a day with a real server."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.ports import free_port
from presence.embedded import EmbeddedRedis
from tests.live.events import read_events
from tests.live.server_process import ServerProcess, running_server
from tests.protocol.vectors import BAD, GOOD
from tests.system.protocol.clients.node_client import devices, run

pytestmark = [pytest.mark.needs("node"), pytest.mark.needs("npm")]

# Time in which a server starts again, however busy the machine, before who was with it is told offline.
FLAGS = ("--idle-timeout", "60", "--disconnect-grace", "60")


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
            bob.sees("bob")
            example = subprocess.run(["node", script], capture_output=True, text=True, timeout=30, check=True)
            assert bob.told("message")["body"] == {"text": "hello"}
    said = example.stdout.splitlines()
    assert said == ["bob online ", "eve offline ", "sessions reached: 1", "over: logged out"]
    told = [
        (event["type"], event["reason"]) for event in read_events(redis_server.url) if event["uid"] == "ann"
    ]
    assert told == [("online", "login"), ("away", "away"), ("offline", "background")]


class Restarted:
    """A server that stops, or is killed, and starts again on its port."""

    def __init__(self, redis_url: str) -> None:
        self._flags = ("--redis", redis_url, *FLAGS, "--port", str(free_port()))
        self.start()
        self.address = self.process.address

    def start(self) -> None:
        self.process = ServerProcess(*self._flags)

    def stop(self) -> None:
        assert self.process.stop() == 0, self.process.lines[-5:]

    def kill(self) -> None:
        self.process.process.kill()
        self.process.stop()


@pytest.fixture
def server(redis_server: EmbeddedRedis) -> Iterator[Restarted]:
    server = Restarted(redis_server.url)
    yield server
    server.stop()


@pytest.fixture
def other_server(redis_server: EmbeddedRedis) -> Iterator[ServerProcess]:
    with running_server("--redis", redis_server.url, *FLAGS) as other:
        yield other


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_session_with_real_servers(
    how: str, node_client: Path, redis_server: EmbeddedRedis, server: Restarted, other_server: ServerProcess
) -> None:
    with (
        devices(node_client, server.address, "ann", "carl") as (ann, carl),
        devices(node_client, other_server.address, "bob") as (bob,),
    ):
        ann.sees("bob", "carl")
        states = ann.ask("watch", ["bob", "carl", "eve"])
        statuses = {uid: state["status"] for uid, state in states.items()}
        assert statuses == {"bob": "online", "carl": "online", "eve": "offline"}
        assert ann.ask("query", ["bob"]) == {"bob": states["bob"]}

        body = {"text": "hi", "numbers": [1, 2.5, None]}
        assert ann.ask("message", "bob", body) == 1
        message = bob.told("message")
        assert (message["from"], message["body"]) == ("ann", body)
        assert ann.ask("message", "eve", "hi")["error"] == "RecipientOffline"

        bob.ask("away")
        assert ann.told("presence", uid="bob")["state"]["status"] == "away"
        bob.ask("update", {"meta": {"text": "at lunch"}})
        assert ann.told("presence", uid="bob", reason="updated")["state"]["meta"] == {"text": "at lunch"}

        getattr(server, how)()
        ann.told("disconnected")
        assert bob.ask("logout", "background") is None
        server.start()
        for device in (ann, carl):
            device.told("connected", again=True)
        gone = ann.told("presence", uid="bob")
        assert (gone["reason"], gone["state"]["status"]) == ("meanwhile", "offline")
        assert gone["state"]["lastSeenMs"] is not None

        assert carl.ask("message", "ann", "still there?") == 1
        assert ann.told("message", body="still there?")["from"] == "carl"
        assert carl.close() == 0
        assert ann.told("presence", uid="carl")["reason"] == "logout"
        assert ann.ask("logout") is None
        assert ann.told("end")["error"] is None
        assert ann.close() == 0

    told = [(line["uid"], line["reason"]) for line in ann.lines if line.get("event") == "presence"]
    assert told == [("bob", "away"), ("bob", "updated"), ("bob", "meanwhile"), ("carl", "logout")]
    server.stop()  # which has then told Redis everything
    events = [(event["uid"], event["reason"]) for event in read_events(redis_server.url)]
    assert [reason for uid, reason in events if uid == "ann"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "carl"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "bob"] == ["login", "away", "updated", "background"]
