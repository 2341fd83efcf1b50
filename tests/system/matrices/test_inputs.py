"""Inputs that one layer takes and another refuses: odd names, metas and bodies, through every layer.

A cell is an input and a layer. Every layer takes what the protocol takes, byte by byte, and shows people a
text that no other name has; every layer refuses what the protocol refuses, and says so.
"""

import contextlib
import io
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from loadtest.servers import PresenceServer
from presence import protocol
from presence.auth import tokens
from presence.auth.key_file import load as load_keys
from presence.cli.main import main
from presence.client import connect_blocking
from presence.common import meta_json
from presence.common.text import printable
from presence.followups import FollowUps
from presence.passes import PassIssuer
from presence.protocol import Code, Kind
from presence.reader import PresenceReader
from presence.sender import PresenceSender
from presence.subscriber import Online, Snapshot, follow_sync, subscribe_sync
from presence.timers.interface import TimerError
from tests.admin.browser import Browser, browsing, wait_until
from tests.admin.processes import ADMIN, url_of
from tests.support.odd_inputs import BODIES, METAS, NAMES, NO_NAMES, devices, some
from tests.support.phone import Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import WebhookReceiver
from tests.system.protocol.node_package import built_client

ASKER: Final = "the-one-who-asks"
SECRET: Final = b"a secret of the matrix"
SOME_NAMES, SOME_OTHERS = 1, 4  # in the full tier
LOOK_UP = """
document.getElementById("search-uid").value = arguments[0];
document.getElementById("search").requestSubmit();
"""
TYPESCRIPT = """
import { PresenceClient } from "./dist/src/index.js";
import { readFileSync } from "node:fs";
const { host, port, names } = JSON.parse(readFileSync(0, "utf8"));
const outcomes = [];
for (const uid of names) {
  try {
    const client = new PresenceClient({ host, port, uid, device: "ts" });
    await client.connect();
    const got = new Promise((done) => client.on("message", ({ from, body }) => done([from, body])));
    const states = await client.query([uid]);
    await client.sendMessage(uid, uid);
    const [from, body] = await got;
    const isSame = [...states.keys(), from, body].every((each) => each === uid);
    outcomes.push(isSame ? "taken" : "changed");
    await client.logout();
  } catch (error) {
    outcomes.push(`${error.name}: ${error.message}`);
  }
}
process.stdout.write(JSON.stringify(outcomes));
process.exit(0);
"""


def strictly(text: str | bytes) -> Any:
    """Return what a text of JSON holds; fail if it has values that JSON has not."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@dataclass
class Stage:
    """A server with everything around it, and what has arrived there."""

    server: PresenceServer
    redis_url: str
    url: str  # of HTTP
    keys: Path  # that sign tokens
    reader: PresenceReader
    sender: PresenceSender
    followups: FollowUps
    asker: Phone
    followed: set[str] = field(default_factory=set)
    grouped: set[str] = field(default_factory=set)
    tailed: dict[str, Any] = field(default_factory=dict)  # the last event of a user, from JSON
    lines: list[str] = field(default_factory=list)  # of the same for people
    hooks: WebhookReceiver = field(default_factory=lambda: WebhookReceiver(SECRET))
    browser: Browser | None = None
    typescript: Mapping[str, str] = field(default_factory=dict)  # outcome by name

    @contextlib.contextmanager
    def online(self, uid: str, **login: Any) -> Iterator[Phone]:
        """A session of a user, which Redis knows."""
        phone = wait_for(lambda: self._logged_in(uid, login))
        try:
            yield phone
        finally:
            with contextlib.suppress(OSError, AssertionError):
                phone.ask(protocol.logout(id=2))
            phone.close()

    def _logged_in(self, uid: str, login: dict[str, Any]) -> Phone | None:
        """Log in; return None while the server may not know yet that a ban was lifted."""
        phone = Phone(self.server.address)
        answer = phone.ask(protocol.login(uid, id=1, **login))
        if answer.kind == Kind.OK:
            session = answer.payload["session"]
            with contextlib.suppress(AssertionError):
                wait_for(
                    lambda: session in [each["session"] for each in self.reader.state(uid)["sessions"]], 5.0
                )
                return phone
        else:
            assert answer.payload["code"] == Code.BANNED, answer
        phone.close()
        return None

    def command(self, *words: str) -> tuple[int, str, str]:
        """Run a command; return its status, output and errors."""
        out, err = io.StringIO(), io.StringIO()
        name, *rest = words
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([name, *_first(rest), "--redis", self.redis_url, *_rest(rest)])
        assert "Traceback" not in err.getvalue()
        return status, out.getvalue(), err.getvalue()

    def command_of_keys(self, *words: str) -> tuple[int, str, str]:
        """Run a command with the file of keys instead of Redis."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([*words, "--keys", str(self.keys)])
        return status, out.getvalue(), err.getvalue()

    def http(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of a response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, strictly(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, strictly(error.read())


def _first(words: list[str]) -> list[str]:
    """Return the words up to those of which none is a flag."""
    return words[: words.index("--")] if "--" in words else words


def _rest(words: list[str]) -> list[str]:
    return words[words.index("--") :] if "--" in words else []


# What each layer does with a name that the protocol takes.

Layer = Callable[[Stage, str], object]


def of_the_protocol(stage: Stage, uid: str) -> None:
    with stage.online(uid) as phone:
        answer = stage.asker.ask(protocol.query([uid], id=3)).payload["presence"]
        assert {name: state["status"] for name, state in answer.items()} == {uid: "online"}
        assert [*stage.asker.ask(protocol.watch([uid], id=4)).payload["presence"]] == [uid]
        assert stage.asker.ask(protocol.message(uid, uid, id=5)).payload == {"delivered": 1}
        assert phone.next().payload["body"] == uid
        stage.asker.ask(protocol.unwatch([uid], id=6))


def of_a_device(stage: Stage, name: str) -> None:
    with stage.online("of-devices", device=name):
        assert [each["device"] for each in stage.reader.state("of-devices")["sessions"]] == [name]
        assert printable(name) in stage.command("status", "of-devices")[1]
        status, answer = stage.http("v1/kick", {"uid": "of-devices", "device": name})
        assert (status, answer["sessions"]) == (200, 1)
    with stage.online("of-devices", device=name):
        status, out, _ = stage.command("ban", f"--device={name}", "--for", "60s", "--", "of-devices")
        assert status == 0
        assert "1 session ended" in out
        status, out, _ = stage.command("unban", f"--device={printable(name)}", "--", "of-devices")
        assert "1 ban lifted" in out


def of_the_client_in_python(stage: Stage, uid: str) -> None:
    host, port = stage.server.address
    with connect_blocking(host, port, uid=uid, device="py") as client:
        assert [*client.query([uid])] == [uid]
        wait_for(lambda: client.query([uid])[uid].status == "online")
        assert client.send_message(uid, uid) == 1


def of_the_client_in_typescript(stage: Stage, uid: str) -> None:
    assert stage.typescript[uid] == "taken"


def of_status(stage: Stage, uid: str) -> None:
    with stage.online(uid):
        for typed in (uid, printable(uid)):
            status, out, _ = stage.command("status", "--", typed)
            assert status == 0
            assert out.startswith(f"{printable(uid)}  online")
            assert [*strictly(stage.command("status", "--json", "--", typed)[1])] == [uid]
        assert f"{printable(uid)}  online" in stage.command("status", "--list")[1]
        assert uid in strictly(stage.command("status", "--list", "--json")[1])


def of_explain(stage: Stage, uid: str) -> None:
    with stage.online(uid):
        status, out, _ = stage.command("explain", "--", printable(uid))
        assert (status, out.splitlines()[0]) == (0, f"{printable(uid)}  online")
        assert strictly(stage.command("explain", "--json", "--", uid)[1])["uid"] == uid


def of_kick(stage: Stage, uid: str) -> None:
    with stage.online(uid) as phone:
        status, out, _ = stage.command("kick", "--", uid)
        assert (status, out) == (0, f"{printable(uid)}  1 session ended\n")
        assert phone.next().payload["code"] == Code.KICKED


def of_ban(stage: Stage, uid: str) -> None:
    with stage.online(uid) as phone:
        status, out, _ = stage.command("ban", "--for", "60s", "--reason", "of the matrix", "--", uid)
        assert status == 0
        assert out.startswith(f"{printable(uid)}  banned until")
        assert phone.next().payload["code"] == Code.BANNED
    assert f"{printable(uid)}  banned until" in stage.command("bans")[1]
    assert uid in [each["uid"] for each in strictly(stage.command("bans", "--json")[1])["bans"]]
    refused = Phone(stage.server.address)
    assert refused.ask(protocol.login(uid, id=1)).payload["code"] == Code.BANNED
    refused.close()
    assert "1 ban lifted" in stage.command("unban", "--", uid)[1]


def of_forget(stage: Stage, uid: str) -> None:
    with stage.online(uid):
        status, _, err = stage.command("forget", "--", uid)
        assert status == 1
        assert err.startswith(f"presence: {printable(uid)} is online")
    wait_for(lambda: stage.reader.state(uid)["last_seen_ms"] is not None)
    assert strictly(stage.command("forget", "--json", "--", uid)[1])["forgotten"] == [uid]
    assert stage.reader.state(uid)["last_seen_ms"] is None


def of_followups(stage: Stage, uid: str) -> None:
    status, out, err = stage.command("followups", "add", "--after", "900", "--name", "odd", "--", uid)
    assert status == 0, err
    planned = out.partition("  ")[0]
    assert planned.startswith(f"odd:{printable(uid)}:")
    listed = strictly(stage.command("followups", "list", "--json", f"--uid={uid}")[1])
    assert listed["uid"] == uid
    assert printable(uid) in stage.command("followups", "list")[1]
    assert stage.command("followups", "cancel", "--", planned)[:2] == (0, "cancelled: 1\n")
    stage.followups.add(uid, after=900, name="odd")
    assert stage.command("followups", "cancel", f"--uid={printable(uid)}")[:2] == (0, "cancelled: 1\n")


def of_tail(stage: Stage, uid: str) -> None:
    wait_for(lambda: uid in stage.tailed)
    wait_for(lambda: any(f"  {printable(uid)}  " in line for line in list(stage.lines)))


def of_tokens(stage: Stage, uid: str) -> None:
    status, text, err = stage.command_of_keys("token", "sign", f"--uid={uid}")
    assert status == 0, err
    token = tokens.parse(text.strip(), load_keys(stage.keys))
    assert tokens.check(token, tokens.TokenRules(("presence",)), time.time()).uid == uid
    if not uid.endswith("*"):
        PassIssuer(stage.keys).issue(ASKER, [uid], ttl_s=60)


def of_http_reads(stage: Stage, uid: str) -> None:
    with stage.online(uid):
        escaped = quote(uid, safe="")
        paths = [f"?uid={escaped}"] + ([f"/{escaped}"] if uid not in {".", ".."} else [])
        for end in paths:
            assert stage.http(f"v1/presence{end}")[1]["status"] == "online", end
            explained = stage.http(f"v1/explain{end}")[1]
            assert (explained["uid"], explained["state"]["status"]) == (uid, "online"), end
        assert [*stage.http("v1/presence/query", {"uids": [uid]})[1]["presence"]] == [uid]
        assert uid in stage.http("v1/online?limit=1000")[1]["users"]


def of_http_actions(stage: Stage, uid: str) -> None:
    with stage.online(uid) as phone:
        status, answer = stage.http("v1/message", {"from": "@shop", "to": uid, "body": uid})
        assert (status, answer["status"], answer["to"]) == (200, "delivered", uid)
        assert phone.next().payload["body"] == uid
        status, answer = stage.http("v1/kick", {"uid": uid})
        assert (status, answer["uid"], answer["sessions"]) == (200, uid, 1)
    status, answer = stage.http("v1/ban", {"uids": [uid], "for_s": 60})
    assert (status, [*answer["users"]]) == (200, [uid])
    assert uid in [each["uid"] for each in stage.http("v1/bans")[1]["bans"]]
    assert stage.http("v1/unban", {"uids": [uid]})[1] == {"lifted": {uid: [None]}}

    def logged() -> set[str]:
        lines = list(stage.server.lines)
        return {each["action"] for each in lines if each["event"] == "audit" and each.get("uid") == uid}

    wait_for(lambda: logged() >= {"kick", "message"})


def of_subscribers(stage: Stage, uid: str) -> None:
    wait_for(lambda: uid in stage.followed and uid in stage.grouped)


def of_webhooks(stage: Stage, uid: str) -> None:
    wait_for(lambda: uid in stage.hooks.uids)


def of_readers(stage: Stage, uid: str) -> None:
    with stage.online(uid):
        assert [*stage.reader.states([uid])] == [uid]
        assert uid in {each for page in stage.reader.pages() for each in page.states}


def of_the_sender(stage: Stage, uid: str) -> None:
    with stage.online(uid) as phone:
        assert stage.sender.send(uid, uid).delivered == 1
        assert phone.next().payload == {"from": "@matrix", "body": uid, "at_ms": pytest.approx(0, abs=2**53)}


def of_the_page(stage: Stage, uid: str) -> None:
    """Search as an operator does, kick, and look at the events."""
    browser = stage.browser
    assert browser is not None
    for typed in (uid, printable(uid)):
        with stage.online(uid):
            browser.run(LOOK_UP, typed)
            wait_until(lambda: browser.text("user-status") == "online", f"{uid!a} is explained", 8)
            assert browser.text("user-uid") == printable(uid)
            wait_until(lambda: browser.find("kick").is_displayed(), "the user can be kicked", 8)
            if typed != uid:
                continue
            browser.find("kick").click()
            assert browser.text("kick-uid") == printable(uid)
            browser.find("kick-sure").click()
            wait_until(lambda: browser.text("kick-outcome") == "kicked: 1 session", "and is kicked", 8)
    rows = browser.run(
        "return [...document.querySelectorAll('#feed .feed-user')].map((row) => row.textContent)"
    )
    assert printable(uid) in rows
    assert browser.run("return document.querySelectorAll('#feed img, #feed script, #user img').length") == 0


LAYERS: Final[dict[str, Layer]] = {
    "protocol": of_the_protocol,
    "device": of_a_device,
    "client in Python": of_the_client_in_python,
    "client in TypeScript": of_the_client_in_typescript,
    "status": of_status,
    "explain": of_explain,
    "kick": of_kick,
    "ban, bans, unban": of_ban,
    "followups": of_followups,
    "token": of_tokens,
    "HTTP, reads": of_http_reads,
    "HTTP, actions": of_http_actions,
    "subscribers": of_subscribers,
    "webhooks": of_webhooks,
    "readers": of_readers,
    "sender": of_the_sender,
    "tail": of_tail,
    "page": of_the_page,
    "forget": of_forget,
}


# What each layer does with a name that the protocol refuses.


def refused_by_the_protocol(stage: Stage, name: str) -> None:
    packet = protocol.Packet(Kind.LOGIN, 1, {"uid": name})
    try:
        data = protocol.codec.encode_unchecked(packet)
    except UnicodeEncodeError:  # nothing that could be sent
        return
    phone = Phone(stage.server.address)
    phone.send(data)
    answer = phone.next()
    assert answer.payload["code"] in {Code.PROTOCOL_ERROR, Code.TOO_LARGE}
    phone.close()


def refused_by_commands(stage: Stage, name: str) -> None:
    commands: list[tuple[str, ...]] = [
        *(("status",), ("explain",), ("kick",), ("ban",), ("unban",), ("forget",)),
        ("followups", "add", "--after", "1", "--name", "x"),
    ]
    for words in commands:
        status, out, err = stage.command(*words, "--", name)
        assert (status, out) == (2, ""), words
        assert "is not a valid uid" in err
        assert all(line.isprintable() for line in err.splitlines())
    for action in ("list", "cancel"):
        assert stage.command("followups", action, f"--uid={name}")[0] == 2
    if name:
        assert stage.command("ban", f"--device={name}", "--", ASKER)[0] == 2
    assert stage.command_of_keys("token", "sign", f"--uid={name}")[0] == 2


def refused_by_http(stage: Stage, name: str) -> None:
    bodies: list[tuple[str, Any]] = [
        *(("v1/presence/query", {"uids": [name]}), ("v1/kick", {"uid": name}), ("v1/ban", {"uids": [name]})),
        *(("v1/unban", {"uids": [name]}), ("v1/message", {"from": "@x", "to": name, "body": 1})),
        ("v1/message", {"from": name, "to": ASKER, "body": 1}),
    ]
    for path, body in bodies:
        status, answer = stage.http(path, body)
        assert status in {400, 413}, path
        assert answer["error"]["code"].startswith(("bad_", "request_entity")), path
    with contextlib.suppress(UnicodeEncodeError):
        escaped = quote(name, safe="")
        for path in ("v1/presence?uid=", "v1/presence/", "v1/explain?uid=", "v1/explain/"):
            if len(escaped) < 10_000:
                assert stage.http(path + escaped)[0] == 400, path


def refused_by_libraries(stage: Stage, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: stage.reader.state(name),
        lambda: stage.sender.send(name, 1),
        lambda: stage.sender.send_all([], name=name),
        lambda: PresenceSender(stage.redis_url, name),
        lambda: stage.followups.add(name, after=1, name="x"),
        lambda: PassIssuer(stage.keys).issue(name, [], ttl_s=1),
        lambda: PassIssuer(stage.keys).issue(ASKER, [name], ttl_s=1),
        lambda: protocol.encode(protocol.login(name)),
        lambda: protocol.encode(protocol.query([name])),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except (ValueError, protocol.EncodeError, TimerError):
            continue
        raise AssertionError(f"call {number} takes it")


def refused_by_the_client_in_typescript(stage: Stage, name: str) -> None:
    assert stage.typescript[name] != "taken", "it is taken"


REFUSING: Final[dict[str, Layer]] = {
    "protocol": refused_by_the_protocol,
    "commands": refused_by_commands,
    "HTTP": refused_by_http,
    "libraries": refused_by_libraries,
    "client in TypeScript": refused_by_the_client_in_typescript,
}


# Metas and bodies


def meta_of_the_protocol(stage: Stage, meta: dict[str, Any]) -> None:
    with stage.online("of-metas", meta=meta, private=meta):
        shown = stage.asker.ask(protocol.query(["of-metas"], id=3)).payload["presence"]["of-metas"]
        assert repr(shown.get("meta", {})) == repr(meta)
        state = stage.reader.state("of-metas")
        assert repr(state.get("meta", {})) == repr(state.get("private", {})) == repr(meta)


def meta_of_programs(stage: Stage, meta: dict[str, Any]) -> None:
    with stage.online("of-metas", meta=meta):
        for found in (
            strictly(stage.command("status", "--json", "of-metas")[1])["of-metas"],
            strictly(stage.command("explain", "--json", "of-metas")[1])["state"],
            stage.http("v1/presence/of-metas")[1],
            stage.http("v1/explain/of-metas")[1]["state"],
        ):
            assert repr(found.get("meta", {})) == repr(as_json(meta))
        for words in (("status", "of-metas"), ("explain", "of-metas"), ("status", "--list")):
            status, out, _ = stage.command(*words)
            assert status == 0
            assert all(line.isprintable() for line in out.splitlines())


def as_json(meta: dict[str, Any]) -> Any:
    """Return a meta as JSON has it, without numbers that JSON has not."""
    return json.loads(meta_json.to_text(meta) or "{}", parse_constant=lambda _word: None)


def meta_of_webhooks_and_tail(stage: Stage, meta: dict[str, Any]) -> None:
    before = len(stage.hooks.accepted)
    with stage.online("of-metas", meta=meta) as phone:
        phone.ask(protocol.update(id=9, status="away"))
        wait_for(lambda: stage.tailed.get("of-metas", {}).get("type") == "away")
        wait_for(lambda: len(stage.hooks.accepted) > before)
    assert stage.hooks.refused == 0


def body_between_clients(stage: Stage, body: Any) -> None:
    with stage.online("of-bodies") as phone:
        assert stage.asker.ask(protocol.message("of-bodies", body, id=5)).payload == {"delivered": 1}
        assert repr(phone.next().payload["body"]) == repr(body)
        assert stage.sender.send("of-bodies", body).delivered == 1
        assert repr(phone.next().payload["body"]) == repr(body)


def body_over_http(stage: Stage, body: Any) -> None:
    try:
        json.dumps(body, allow_nan=False)
    except (TypeError, ValueError):
        return
    with stage.online("of-bodies") as phone:
        assert stage.http("v1/message", {"from": "@shop", "to": "of-bodies", "body": body})[0] == 200
        assert repr(phone.next().payload["body"]) == repr(body)


META_LAYERS: Final[dict[str, Callable[[Stage, Any], object]]] = {
    "protocol, readers": meta_of_the_protocol,
    "commands, HTTP": meta_of_programs,
    "webhooks, tail": meta_of_webhooks_and_tail,
}
BODY_LAYERS: Final[dict[str, Callable[[Stage, Any], object]]] = {
    "clients, sender": body_between_clients,
    "HTTP": body_over_http,
}


# The stage


@contextlib.contextmanager
def reading(name: str, read: Callable[[], object]) -> Iterator[None]:
    """Call a function again and again in a thread, until the end of the block."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            read()

    thread = threading.Thread(target=repeat, name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def program(*words: str, on_line: Callable[[str], object] = len) -> Iterator[None]:
    """Run a command in a process of its own, and pass on the lines of its output."""
    process = subprocess.Popen([sys.executable, "-m", "presence", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout

    def read() -> None:
        for line in output:
            on_line(line.removesuffix("\n"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        process.terminate()
        thread.join()
        output.close()
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("inputs")
    keys, secret = folder / "keys.json", folder / "secret"
    assert main(["token", "keygen", "--append-to", str(keys)]) == 0
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    flags = (
        "--uid-login-rate",
        "1000",
        "--address-login-rate",
        "0",
        "--disconnect-grace",
        "0.5",
        "--idle-timeout",
        "1200",
        "--device-events",
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(*flags, *ADMIN))
        redis_url = server.redis_url
        made = Stage(
            server,
            redis_url,
            url_of(server),
            keys,
            stack.enter_context(PresenceReader(redis_url)),
            stack.enter_context(PresenceSender(redis_url, "@matrix")),
            stack.enter_context(FollowUps(redis_url)),
            Phone(server.address),
        )
        assert made.asker.ask(protocol.login(ASKER, id=1)).kind == Kind.OK
        stack.enter_context(made.hooks.running())
        hooks = ("--url", made.hooks.url, "--secret-file", str(secret), "--after", "0", "--batch", "20")
        stack.enter_context(program("webhooks", "run", "--redis", redis_url, *hooks))

        def keep(line: str) -> None:
            event = strictly(line)
            made.tailed[event.get("uid", "")] = event

        stack.enter_context(program("tail", "--json", "--after=0", "--redis", redis_url, on_line=keep))
        stack.enter_context(program("tail", "--after=0", "--redis", redis_url, on_line=made.lines.append))
        group = stack.enter_context(subscribe_sync(redis_url, group="odd:*?", consumer="c", after="0"))
        follower = stack.enter_context(follow_sync(redis_url))

        def read_group() -> None:
            if isinstance(event := group.poll(), Online):
                made.grouped.add(event.uid)

        def read_follower() -> None:
            match follower.poll():
                case Online(uid=uid):
                    made.followed.add(uid)
                case Snapshot() as snapshot:
                    made.followed.update(snapshot.online)

        stack.enter_context(reading("group", read_group))
        stack.enter_context(reading("follow", read_follower))
        yield made
        made.asker.close()


def run_matrix(stage: Stage, cells: list[tuple[str, str, Callable[[], object]]]) -> None:
    """Try each cell, print what held, and fail with those that did not."""
    failed, begun = [], time.monotonic()
    for what, layer, attempt in cells:
        word = "held"
        try:
            attempt()
        except Exception as error:
            word = "BROKEN"
            failed.append(f"{what}: {layer}: {type(error).__name__}: {str(error)[:300]}")
        print(f"{word:<6}  {layer}: {what}", *failed[-1:] if word == "BROKEN" else ())
    print(f"{len(cells)} cells, {len(cells) - len(failed)} held, {time.monotonic() - begun:.0f} s")
    assert failed == []


def cells_of(
    inputs: Mapping[str, Any], layers: Mapping[str, Callable[[Stage, Any], object]], stage: Stage
) -> list[tuple[str, str, Callable[[], object]]]:
    """Return the cells, without layers that do not run and names that are too long for devices."""
    absent = {
        *(() if stage.browser else ("page",)),
        *(() if stage.typescript else ("client in TypeScript",)),
    }
    return [
        (what, layer, partial(attempt, stage, value))
        for what, value in inputs.items()
        for layer, attempt in layers.items()
        if layer not in absent and (layer != "device" or what in devices())
    ]


def test_some_names_are_taken_or_refused_by_every_layer(stage: Stage) -> None:
    names = {
        **some(NAMES, SOME_NAMES),
        **{what: NAMES[what] for what in ("zero-width joiner", "dots", "long flag")},
    }
    run_matrix(
        stage, [*cells_of(names, LAYERS, stage), *cells_of(some(NO_NAMES, SOME_OTHERS), REFUSING, stage)]
    )


def test_metas_and_bodies_pass_every_layer_unchanged(stage: Stage) -> None:
    run_matrix(stage, [*cells_of(METAS, META_LAYERS, stage), *cells_of(BODIES, BODY_LAYERS, stage)])


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
@pytest.mark.needs("node")
def test_all_names_are_taken_or_refused_by_every_layer(stage: Stage, tmp_path: Path) -> None:
    folder = built_client(tmp_path)
    (folder / "odd.mjs").write_text(TYPESCRIPT)
    names = [*NAMES.values(), *NO_NAMES.values()]
    host, port = stage.server.address
    asked = json.dumps({"host": host, "port": port, "names": names})
    run = subprocess.run(
        ["node", "odd.mjs"], input=asked, capture_output=True, text=True, check=False, cwd=folder, timeout=300
    )
    assert run.returncode == 0, run.stderr
    stage.typescript = dict(zip(names, json.loads(run.stdout), strict=True))
    with browsing(tmp_path / "profile") as stage.browser:
        stage.browser.look(1440, 900)
        stage.browser.driver.get(stage.url)
        run_matrix(stage, [*cells_of(NAMES, LAYERS, stage), *cells_of(NO_NAMES, REFUSING, stage)])
        assert stage.browser.breaches() == []
    stage.browser = None
