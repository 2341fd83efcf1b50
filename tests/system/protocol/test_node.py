"""The client in TypeScript: its own tests, its README, and a day with a real server."""

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import pytest
import trio

from loadtest.servers import PresenceServer, free_port
from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.core.authenticator import Authenticator
from presence.server import credentials
from presence.store.embedded import EmbeddedRedis
from tests.protocol.vectors import BAD, GOOD
from tests.support.credentials import SECRET, token, write_keys
from tests.support.events import read_events
from tests.support.server_process import running_server
from tests.support.waiting import WAIT_TIMEOUT_S, wait_for
from tests.system.protocol.node_package import PROTOCOL, run
from tests.transports import certificates
from tests.transports.harness import Harness, serving

Line = dict[str, Any]


class NodeDevice:
    """The example device: commands in, events and answers out; `lines` has its output so far."""

    def __init__(
        self, client: Path, address: tuple[str, int], uid: str, *more: str, **environment: str
    ) -> None:
        host, port = address
        self.process = subprocess.Popen(
            ["node", str(client / "dist" / "examples" / "device.js"), host, str(port), uid, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.lines: list[Line] = []
        self._taken = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()

    def ask(self, verb: str, *arguments: object) -> Any:
        """Run a command; return its answer or its error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self._wait(lambda line: line.get("verb") == verb, take=False)
        self.lines.remove(line)
        return line["answer"] if "answer" in line else line["error"]

    def sees(self, *uids: str) -> None:
        """Wait until these users are online for others too: a login is answered before Redis has it."""
        wait_for(lambda: all(each["status"] == "online" for each in self.ask("query", uids).values()))

    def told(self, event: str, **parts: object) -> Line:
        """Wait for the next matching event; `parts`: what it or its state must contain."""

        def fits(line: Line) -> bool:
            state = line.get("state") or {}
            return line.get("event") == event and all(
                line.get(name, state.get(name)) == value for name, value in parts.items()
            )

        return self._wait(fits, take=True)

    def _wait(self, fits: Callable[[Line], bool], *, take: bool) -> Line:
        give_up = time.monotonic() + WAIT_TIMEOUT_S
        with self._news:
            while True:
                for index in range(self._taken, len(self.lines)):
                    if fits(self.lines[index]):
                        if take:
                            self._taken = index + 1
                        return self.lines[index]
                assert self._news.wait(give_up - time.monotonic()), self.lines

    def close(self) -> int:
        """Log out; return the exit status."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait(WAIT_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it as a crash would."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError), self.process:
            pass
        self._reader.join(WAIT_TIMEOUT_S)


pytestmark = [pytest.mark.needs("node"), pytest.mark.needs("npm")]

# Time in which a server starts again, however busy the machine, before who was with it is told offline.
FLAGS = ("--idle-timeout", "60", "--disconnect-grace", "60")
HOST = f"tls://{certificates.HOST}"


@pytest.mark.timeout(600)  # all those tests in one
def test_its_own_tests_pass_with_every_vector(node_client: Path) -> None:
    names = sorted(
        str(path.relative_to(node_client)) for path in (node_client / "dist" / "test").glob("*.test.js")
    )
    tests = run(node_client, "node", "--test", "--test-reporter=tap", *names)
    assert tests.returncode == 0, re.findall(r"^\s*not ok .*(?:\n.*){20}", tests.stdout, re.MULTILINE)
    assert f"vectors: {len(GOOD)} good and {len(BAD)} bad" in tests.stdout
    counted = dict(re.findall(r"^# (fail|skipped) (\d+)$", tests.stdout, re.MULTILINE))
    assert (counted["fail"], counted["skipped"]) == ("0", "0")


@pytest.mark.nightly
def test_many_steps_of_its_model_find_nothing(node_client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESENCE_MODEL_STEPS", "100000")
    monkeypatch.setenv("PRESENCE_MODEL_SEED", seed := str(time.time_ns() // 1_000_000_000))
    found = run(node_client, "node", "--test", "--test-reporter=tap", "dist/test/model.test.js")
    assert found.returncode == 0, (seed, found.stdout)


def test_the_example_of_its_readme_runs(node_client: Path, redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *FLAGS) as server:
        script = node_client / "dist" / "examples" / f"readme_{server.address[1]}.mjs"
        compiled = (node_client / "dist" / "examples" / "readme.mjs").read_text()
        script.write_text(compiled.replace("7400", str(server.address[1])))
        with NodeDevice(node_client, server.address, "bob") as bob:
            bob.told("connected")
            bob.sees("bob")
            example = subprocess.run(["node", script], capture_output=True, text=True, timeout=30, check=True)
            assert bob.told("message")["body"] == {"text": "hello"}
    output = example.stdout.splitlines()
    assert output == ["bob online ", "eve offline ", "sessions reached: 1", "ended: logged out"]
    shown = [
        (event["type"], event["reason"]) for event in read_events(redis_server.url) if event["uid"] == "ann"
    ]
    assert shown == [("online", "login"), ("away", "away"), ("offline", "background")]


APP = """
import { PresenceClient, PresenceError, RecipientOffline } from "presence-client";
import type { Connector, Delivered } from "presence-client";

interface Move { readonly x: number; readonly note?: string }
const connector: Connector = { connect: () => { throw new RangeError("no way there"); } };
const client = new PresenceClient({ connector, uid: "ann", meta: { app: "1.2" } });

export async function play(move: Move): Promise<number> {
  for await (const each of client.messages<Move>({ signal: AbortSignal.timeout(1000) })) {
    const found: Delivered<Move> | undefined = each.type === "message" ? each : undefined;
    console.log(found?.body.x);
  }
  try {
    return await client.sendMessage("bob", move, { signal: AbortSignal.timeout(1000) });
  } catch (error) {
    return error instanceof RecipientOffline ? error.code : 0;
  }
}

client.connect().catch((error: unknown) => {
  console.log(error instanceof PresenceError, String(error));
});
"""


PAGE = """
import { type Options, PresenceClient, storedDevice } from "presence-client/browser";

const kept = new Map<string, string>();
const storage = { getItem: (key: string) => kept.get(key) ?? null, setItem: kept.set.bind(kept) };
const options: Options = { url: "wss://example.org", device: storedDevice(storage) };
export const client = new PresenceClient(options);
"""


def test_the_package_installs_and_works_as_published(node_client: Path, tmp_path: Path) -> None:
    packed = run(node_client, "npm", "pack", "--json", "--pack-destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    assert (node_client / "LICENSE").read_text() == (PROTOCOL.parent / "LICENSE").read_text()
    (contents,) = json.loads(packed.stdout)
    assert {"LICENSE", "README.md", "package.json"} <= {each["path"] for each in contents["files"]}
    (tarball,) = tmp_path.glob("*.tgz")
    app = tmp_path / "app"
    app.mkdir()
    installed = run(app, "npm", "install", "--offline", "--no-audit", "--no-fund", str(tarball))
    assert installed.returncode == 0, installed.stderr
    for name in ("app.mts", "app.cts"):  # as a module, and with require
        (app / name).write_text(APP)
    (app / "app.page.mts").write_text(PAGE)
    modules = node_client / "node_modules"
    options = {"module": "NodeNext", "target": "ES2022", "strict": True, "exactOptionalPropertyTypes": True}
    options |= {"types": ["node"], "typeRoots": [str(modules / "@types")], "skipLibCheck": False}
    (app / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["app.*"]}))
    compiled = run(app, "node", str(modules / "typescript" / "bin" / "tsc"), "-p", ".")
    assert compiled.returncode == 0, compiled.stdout
    (app / "both.mjs").write_text(
        "import { createRequire } from 'node:module';\n"
        "import { PresenceClient } from 'presence-client';\n"
        "const required = createRequire(import.meta.url)('presence-client');\n"
        "console.log(PresenceClient === required.PresenceClient);\n"
    )
    (app / "page.mjs").write_text(
        "import * as page from 'presence-client';\n"
        "import * as same from 'presence-client/browser';\n"
        "console.log(page.PresenceClient === same.PresenceClient, page.TcpConnector);\n"
    )
    outputs = [run(app, "node", name).stdout for name in ("app.mjs", "app.cjs", "both.mjs")]
    outputs.append(run(app, "node", "--conditions=browser", "page.mjs").stdout)
    assert outputs == ["true Unreachable: no way there\n"] * 2 + ["true\n", "true undefined\n"]


def test_what_a_user_hides_is_hidden_from_it(node_client: Path, redis_server: EmbeddedRedis) -> None:
    hidden = {"sinceMs": None, "lastSeenMs": None, "id": None, "reason": None}
    with (
        running_server("--redis", redis_server.url, *FLAGS) as server,
        NodeDevice(node_client, server.address, "ann") as ann,
        NodeDevice(node_client, server.address, "bob") as bob,
    ):
        for device in (ann, bob):
            device.told("connected", again=False)
        ann.sees("bob")
        ann.ask("watch", ["bob"])
        bob.ask("update", {"hide": ["last_seen"]})
        assert hidden.items() <= ann.told("presence", uid="bob", reason="updated")["state"].items()
        bob.ask("update", {"status": "invisible", "scope": "user"})
        ann.told("presence", uid="bob", status="offline", reason="logout")
        assert hidden.items() <= ann.ask("query", ["bob"])["bob"].items()
        assert ann.ask("message", "bob", "hi")["error"] == "RecipientOffline"
        bob.ask("update", {"status": "online", "scope": "user", "hide": []})
        assert ann.told("presence", uid="bob", status="online")["state"]["sinceMs"]


def test_it_watches_rooms_again_after_a_restart(node_client: Path, redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, *FLAGS, "--rooms", "open", "--max-listed-members", "2")
    server = PresenceServer(*flags, port=free_port())
    with (
        NodeDevice(node_client, server.address, "ann") as ann,
        NodeDevice(node_client, server.address, "bob") as bob,
        NodeDevice(node_client, server.address, "eve") as eve,
    ):
        for device in (ann, bob, eve):
            device.told("connected", again=False)
        bob.ask("update", {"rooms": ["lobby"]})
        shown = {"lobby": {"count": 1, "members": ["bob"]}}
        wait_for(lambda: ann.ask("queryRooms", ["lobby"]) == shown)
        assert ann.ask("watchRooms", ["lobby", "hall"]) == {**shown, "hall": {"count": 0, "members": []}}

        eve.ask("update", {"join": ["lobby"]})
        assert ann.told("room", room="lobby", joined=["eve"])["state"] == {
            "count": 2,
            "members": ["bob", "eve"],
        }
        ann.ask("update", {"join": ["lobby"]})
        assert ann.told("room", count=3)["state"]["members"] is None

        server.process.kill()
        server.stop()
        server = PresenceServer(*flags, port=server.address[1])
        for device in (ann, bob, eve):
            device.told("connected", again=True)
        assert eve.close() == 0
        assert sorted(ann.told("room", count=2)["state"]["members"]) == ["ann", "bob"]
        assert ann.ask("unwatchRooms", ["lobby"]) is None
        assert bob.close() == 0
        ann.ask("update", {"rooms": ["hall"]})
        assert ann.told("room", room="hall")["joined"] == ["ann"]
        assert ann.close() == 0
    assert server.stop() == 0
    assert [(line["room"], line["state"]["count"]) for line in ann.lines if line.get("event") == "room"] == [
        ("lobby", 2),
        ("lobby", 3),
        ("lobby", 2),
        ("hall", 1),
    ]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_session_with_real_servers(how: str, node_client: Path, redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, *FLAGS)
    server = PresenceServer(*flags, port=free_port())
    with (
        running_server(*flags) as other_server,
        NodeDevice(node_client, server.address, "ann") as ann,
        NodeDevice(node_client, server.address, "carl") as carl,
        NodeDevice(node_client, other_server.address, "bob") as bob,
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
        assert (message["sender"], message["body"]) == ("ann", body)
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
        server = PresenceServer(*flags, port=server.address[1])
        for device in (ann, carl):
            device.told("connected", again=True)
        gone = ann.told("presence", uid="bob")
        assert (gone["reason"], gone["state"]["status"]) == ("meanwhile", "offline")
        assert gone["state"]["lastSeenMs"] is not None

        assert carl.ask("message", "ann", "still there?") == 1
        assert ann.told("message", body="still there?")["sender"] == "carl"
        assert carl.close() == 0
        assert ann.told("presence", uid="carl")["reason"] == "logout"
        assert ann.ask("logout") is None
        assert ann.told("end")["error"] is None
        assert ann.close() == 0

    shown = [(line["uid"], line["reason"]) for line in ann.lines if line.get("event") == "presence"]
    assert shown == [("bob", "away"), ("bob", "updated"), ("bob", "meanwhile"), ("carl", "logout")]
    assert server.stop() == 0  # which has then told Redis everything
    events = [(event["uid"], event["reason"]) for event in read_events(redis_server.url)]
    assert [reason for uid, reason in events if uid == "ann"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "carl"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "bob"] == ["login", "away", "updated", "background"]


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Harness]:
    """The server's own transport, with TLS and tokens."""
    settings = Settings(token_keys=str(write_keys(tmp_path / "keys.json", {"a": SECRET})))

    def made(clock: Clock) -> Authenticator:
        found = credentials.load_authenticator(settings, clock)
        assert found is not None
        return found

    async with serving("tls", idle_timeout=5.0, authenticator=made) as harness:
        yield harness


async def test_it_logs_in_with_a_token_over_tls(node_client: Path, secured: Harness, tmp_path: Path) -> None:
    authority, file = tmp_path / "authority.pem", tmp_path / "token"
    certificates.authority().cert_pem.write_to_path(str(authority))
    file.write_text(f"{token('ann')}\n")
    address = (HOST, secured.address[1])
    trust = {"NODE_EXTRA_CA_CERTS": str(authority)}

    def live() -> tuple[object, ...]:
        with NodeDevice(node_client, address, "ann", "phone", f"@{file}", **trust) as ann:
            ann.told("connected")
            answers = ann.ask("query", ["bob"])["error"], ann.close()
        with NodeDevice(node_client, address, "eve", "phone", f"@{file}", **trust) as eve:
            reasons = [eve.told("disconnected")["reason"] for _ in range(2)]
        with NodeDevice(node_client, address, "ann") as wary:
            lost = wary.told("disconnected")
        return *answers, *reasons, lost["reason"], "certificate" in str(lost["message"])

    assert await trio.to_thread.run_sync(live) == (
        *("Unsupported", 0),  # this server serves no queries
        *("auth_failed", "no_token"),  # of another user's token; the file has no other
        *("unreachable", True),  # for whoever does not trust its certificate
    )
    assert secured.history() == [("login", "ann", "login"), ("end", "ann", "logout")]
