"""The client in TypeScript: its own tests, its README, and a day with a real server."""

import re
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from loadtest.ports import free_port
from presence.auth import gate
from presence.auth.verdicts import Gate
from presence.clock import Clock
from presence.embedded import EmbeddedRedis
from presence.settings import Settings
from tests.credentials import SECRET, token, write_keys
from tests.live.events import read_events
from tests.live.server_process import ServerProcess, running_server
from tests.protocol.vectors import BAD, GOOD
from tests.system.protocol.node_client import Device, built_client, run
from tests.transports import certificates
from tests.transports.harness import Harness, serving

pytestmark = [pytest.mark.needs("node"), pytest.mark.needs("npm")]

# Time in which a server starts again, however busy the machine, before who was with it is told offline.
FLAGS = ("--idle-timeout", "60", "--disconnect-grace", "60")
HOST = f"tls://{certificates.HOST}"


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built client."""
    return built_client(tmp_path_factory.mktemp("node"))


def test_its_own_tests_pass_with_every_vector(node_client: Path) -> None:
    names = sorted(
        str(path.relative_to(node_client)) for path in (node_client / "dist" / "test").glob("*.test.js")
    )
    tests = run(node_client, "node", "--test", "--test-reporter=tap", *names)
    assert tests.returncode == 0, re.findall(r"^\s*not ok .*(?:\n.*){20}", tests.stdout, re.MULTILINE)
    assert f"vectors: {len(GOOD)} good and {len(BAD)} bad" in tests.stdout
    counted = dict(re.findall(r"^# (fail|skipped) (\d+)$", tests.stdout, re.MULTILINE))
    assert (counted["fail"], counted["skipped"]) == ("0", "0")


def test_the_example_of_its_readme_runs(node_client: Path, redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *FLAGS) as server:
        script = node_client / "dist" / "examples" / f"readme_{server.address[1]}.js"
        compiled = (node_client / "dist" / "examples" / "readme.js").read_text()
        script.write_text(compiled.replace("7400", str(server.address[1])))
        with Device(node_client, server.address, "bob") as bob:
            bob.told("connected")
            bob.sees("bob")
            example = subprocess.run(["node", script], capture_output=True, text=True, timeout=30, check=True)
            assert bob.told("message")["body"] == {"text": "hello"}
    said = example.stdout.splitlines()
    assert said == ["bob online ", "eve offline ", "sessions reached: 1", "over: logged out"]
    told = [
        (event["type"], event["reason"]) for event in read_events(redis_server.url) if event["uid"] == "ann"
    ]
    assert told == [("online", "login"), ("away", "away"), ("offline", "background")]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_session_with_real_servers(how: str, node_client: Path, redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, *FLAGS)
    server = ServerProcess(*flags, port=free_port())
    with (
        running_server(*flags) as other_server,
        Device(node_client, server.address, "ann") as ann,
        Device(node_client, server.address, "carl") as carl,
        Device(node_client, other_server.address, "bob") as bob,
    ):
        for device in (ann, carl, bob):
            device.told("connected", again=False)
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

        if how == "kill":
            server.process.kill()
        server.stop()
        ann.told("disconnected")
        assert bob.ask("logout", "background") is None
        server = ServerProcess(*flags, port=server.address[1])
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
    assert server.stop() == 0  # which has then told Redis everything
    events = [(event["uid"], event["reason"]) for event in read_events(redis_server.url)]
    assert [reason for uid, reason in events if uid == "ann"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "carl"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "bob"] == ["login", "away", "updated", "background"]


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Harness]:
    """The server's own transport, with TLS, that checks tokens."""
    settings = Settings(token_keys=write_keys(tmp_path / "keys.json", {"a": SECRET}))

    def made(clock: Clock) -> Gate:
        found = gate.from_settings(settings, clock, time.time)
        assert found is not None
        return found

    async with serving("tls", idle_timeout=5.0, gate=made) as harness:
        yield harness


async def test_it_logs_in_with_a_token_over_tls(node_client: Path, secured: Harness, tmp_path: Path) -> None:
    authority, file = tmp_path / "authority.pem", tmp_path / "token"
    certificates.authority().cert_pem.write_to_path(str(authority))
    file.write_text(f"{token('ann')}\n")
    address = (HOST, secured.address[1])
    trust = {"NODE_EXTRA_CA_CERTS": str(authority)}

    def live() -> tuple[object, ...]:
        with Device(node_client, address, "ann", "phone", f"@{file}", **trust) as ann:
            ann.told("connected")
            answers = ann.ask("query", ["bob"])["error"], ann.close()
        with Device(node_client, address, "eve", "phone", f"@{file}", **trust) as eve:
            reasons = [eve.told("disconnected")["reason"] for _ in range(2)]
        with Device(node_client, address, "ann") as wary:
            lost = wary.told("disconnected")
        return *answers, *reasons, lost["reason"], "certificate" in str(lost["message"])

    assert await trio.to_thread.run_sync(live) == (
        *("Unsupported", 0),  # this server serves no queries
        *("auth_failed", "no_token"),  # of another user's token; the file has no other
        *("unreachable", True),  # for whoever does not trust its certificate
    )
    assert secured.story() == [("login", "ann", "login"), ("end", "ann", "logout")]
