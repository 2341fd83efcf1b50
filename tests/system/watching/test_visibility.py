"""Whom a client may query, watch and message, on a real server: by its token, a renewed token, and passes.

ann asks about bob, who is online.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest

from loadtest.servers import PresenceServer
from presence import protocol
from presence.passes import PassIssuer
from presence.protocol import Code, Kind, Packet
from tests.support.credentials import AUDIENCE, SECRET, write_keys
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

HIDDEN = {"status": "not_allowed"}
VERBS: tuple[Callable[[str], Packet], ...] = (
    lambda uid: protocol.query([uid]),
    lambda uid: protocol.watch([uid]),
    lambda uid: protocol.message(uid, "hello"),
)


def token(uid: str, see: list[str] | None = None, ttl_s: float = 3600) -> str:
    claims: dict[str, Any] = {"sub": uid, "aud": AUDIENCE, "exp": time.time() + ttl_s}
    if see is not None:
        claims["see"] = see
    return jwt.encode(claims, SECRET, "HS256", headers={"kid": "a"})


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_keys(tmp_path_factory.mktemp("keys") / "keys.json", {"a": SECRET})


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[PresenceServer]:
    flags = ("--token-keys", str(keys), "--visibility", "claims", "--disconnect-grace", "0.5")
    with PreloadedServer(*flags) as server:
        yield server


@contextmanager
def online(server: PresenceServer, uid: str, see: list[str] | None = None, **login: Any) -> Iterator[Line]:
    line = Line(server.address, protocol.login(uid, token=token(uid, see), **login))
    try:
        assert line.answer.kind == Kind.OK
        yield line
    finally:
        line.close()


@pytest.fixture
def bob(server: PresenceServer) -> Iterator[Line]:
    """bob, whom a query by someone who may see him finds online until he logs out."""
    with online(server, "bob", meta={"push": "secret"}) as line, online(server, "probe", ["*"]) as probe:
        wait_for(lambda: probe.status("bob")["status"] == "online")
        yield line
        line.ask(protocol.logout())
        wait_for(lambda: probe.status("bob")["status"] == "offline")


NOT_BOB: tuple[list[str] | None, ...] = None, [], ["eve"], ["bob-"]
BOB = ["bob"], ["bo*"], ["*"]


@pytest.mark.parametrize(
    ("see", "sees_bob"), [*((see, False) for see in NOT_BOB), *((see, True) for see in BOB)]
)
def test_each_verb_shows_whom_the_token_names(
    server: PresenceServer, bob: Line, see: list[str] | None, *, sees_bob: bool
) -> None:
    with online(server, "ann", see) as ann:
        for verb in ("query", "watch"):
            state = ann.status("bob", verb)
            assert (state["status"], "meta" in state) == (
                ("online", True) if sees_bob else ("not_allowed", False)
            )
        assert ann.message("bob") == (0 if sees_bob else Code.NOT_ALLOWED)
        assert ann.status("ann") != HIDDEN
        bob.ask(protocol.update(status="away"))
        assert [status for _, status, _ in ann.pushes()] == (["away"] if sees_bob else [])
        bob.ask(protocol.update(status="online"))


def test_a_hidden_user_and_one_that_does_not_exist_look_the_same(server: PresenceServer, bob: Line) -> None:
    with online(server, "ann", ["eve"]) as ann:
        for make in VERBS:
            times: dict[str, list[float]] = {"bob": [], "xyz": []}  # of one length
            answers = set()
            for _ in range(100):
                for uid, took in times.items():
                    started = time.perf_counter()
                    answer = ann.ask(make(uid))
                    took.append(time.perf_counter() - started)
                    answers.add(repr({**answer.payload}).replace(uid, "UID"))
            assert len(answers) == 1, answers
            there, absent = (min(took) for took in times.values())  # the median is of waits
            assert 0.5 < there / absent < 2, "nothing is looked up for either"


def test_a_mixed_list_answers_for_each_user(server: PresenceServer, bob: Line) -> None:
    with online(server, "ann", ["bob", "nobody"]) as ann:
        for packet in (protocol.query(["bob", "eve", "nobody"]), protocol.watch(["eve", "bob", "nobody"])):
            states = ann.ask(packet).payload["presence"]
            statuses = {uid: state["status"] for uid, state in states.items()}
            assert statuses == {"bob": "online", "eve": "not_allowed", "nobody": "offline"}
            assert states["eve"] == HIDDEN


def test_a_renewed_token_that_names_fewer_ends_watches(server: PresenceServer, bob: Line) -> None:
    with online(server, "ann", ["bob", "eve"]) as ann:
        assert ann.status("bob", "watch")["status"] == "online"
        ann.status("eve", "watch")
        assert ann.ask(protocol.update(token=token("ann", ["eve"]))).kind == Kind.OK
        assert ann.pushes() == [("bob", "not_allowed", "not_allowed")]
        bob.ask(protocol.update(meta={"mood": "seen"}))
        assert ann.pushes() == []
        assert ann.status("bob") == HIDDEN
        with online(server, "eve"):
            assert [push[:2] for push in ann.pushes()] == [("eve", "online")]
        # More again: the client asks again.
        ann.ask(protocol.update(token=token("ann", ["bob"])))
        assert ("eve", "not_allowed", "not_allowed") in ann.pushes()
        assert ann.status("bob", "watch")["status"] == "online"


def test_the_token_of_a_login_that_takes_over_counts(server: PresenceServer, bob: Line) -> None:
    with online(server, "ann", ["*"]) as before:
        assert before.status("bob", "watch")["status"] == "online"
        with online(server, "ann", []) as after:
            assert after.status("bob", "watch") == HIDDEN
            bob.ask(protocol.update(meta={"mood": "well"}))
            assert after.pushes() == []


def test_a_pass_shows_users_until_it_expires(server: PresenceServer, keys: Path, bob: Line) -> None:
    passes = PassIssuer(keys)
    with online(server, "ann", []) as ann:
        watch = protocol.watch(["bob", "eve"], visibility_pass=passes.issue("ann", ["bob"], ttl_s=4))
        states = ann.ask(watch).payload["presence"]
        assert (states["bob"]["status"], states["eve"]) == ("online", HIDDEN)
        assert ann.message("bob") == 0
        started = time.monotonic()
        push = ann.read(8)
        assert (push.payload["uid"], push.payload["status"]) == ("bob", "not_allowed")
        assert 4 - 1 < time.monotonic() - started < 4 + 1.5 + 1, "a pass ends in whole seconds"
        bob.ask(protocol.update(meta={"mood": "late"}))
        assert ann.pushes() == []
        assert (ann.status("bob"), ann.message("bob")) == (HIDDEN, Code.NOT_ALLOWED)


def test_no_pass_serves_another_user_or_as_a_token_and_no_token_as_a_pass(
    server: PresenceServer, keys: Path, bob: Line
) -> None:
    passes = PassIssuer(keys)
    expired = jwt.encode(
        {"sub": "ann", "aud": f"{AUDIENCE}:pass", "exp": time.time() - 1, "see": ["bob"]},
        SECRET,
        "HS256",
        headers={"kid": "a"},
    )
    forged = jwt.encode(
        {"sub": "ann", "aud": f"{AUDIENCE}:pass", "exp": time.time() + 60, "see": ["bob"]},
        b"another thirty-two bytes of a key",
        "HS256",
        headers={"kid": "a"},
    )
    with online(server, "ann", []) as ann:
        for bad in (passes.issue("eve", ["bob"], ttl_s=60), token("ann", ["bob"]), expired, forged, "x"):
            answer = ann.ask(protocol.watch(["bob"], visibility_pass=bad))
            assert answer.payload["code"] == Code.AUTH_FAILED
            assert ann.status("bob") == HIDDEN
    line = Line(server.address, protocol.login("ann", token=passes.issue("ann", ["*"], ttl_s=60)))
    line.close()
    assert line.answer.payload["code"] == Code.AUTH_FAILED
