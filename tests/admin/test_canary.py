"""Secrets leave no trace, and each act leaves one: answers and log, with canaries in all places."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from presence.admin import audit, guard
from presence.embedded import EmbeddedRedis
from presence.store.client import open_client
from tests.admin.asking import Answered, Operators, operators
from tests.admin.hands import a_hand
from tests.store.driving import login

READ, ACT = "canary-of-read-0123456789", "canary-of-act-0123456789"
REDIS = "canary-of-redis-0123456789"
OFFERED = "canary-of-a-guess-0123456789"
CANARIES = (READ, ACT, REDIS, OFFERED)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(guard, "GUESS_DELAY_S", 0.0)
    path = tmp_path / "tokens"
    path.write_text(f"read grafana {READ}\nact ann {ACT}\n")
    path.chmod(0o600)
    return path


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def everything(running: Operators) -> list[Answered]:
    """Ask for whatever there is, with each token."""
    answers = []
    for secret in (READ, ACT, OFFERED):
        for verb in running.app.table.verbs:
            target = verb.path.replace("{uid}", "ann").replace("{file}", "main.js")
            method = "HEAD" if target in {"/v1/events", "/v1/live"} else verb.method
            body = {"uid": "ann"} if verb.act else {"uids": ["ann"]} if method == "POST" else b""
            answers.append(await running.ask(target, method, body, **bearer(secret)))
    return answers


def traces(*shown: object) -> list[str]:
    return [canary for canary in CANARIES if any(canary in str(each) for each in shown)]


@pytest.mark.parametrize("password", [REDIS, f"wrong-{REDIS}"], ids=["right", "wrong"])
async def test_no_secret_is_in_an_answer_or_in_the_log(
    redis_server: EmbeddedRedis,
    tokens: Path,
    logged: list[Any],
    caplog: pytest.LogCaptureFixture,
    password: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    with open_client(redis_server.url) as client:
        client.config_set("requirepass", REDIS)
    url = redis_server.url.replace("://", f"://:{password}@")
    async with operators(url, admin_tokens=tokens) as running:
        answers = await everything(running)
        viewer = running.look("/v1/live", **bearer(READ))
        picture = await viewer.message("sample")
        viewer.leave()
        tokens.write_text(f"act ann {ACT} more\n")  # noqa: ASYNC240 - nobody else waits
        running.app.reload()
    shown = [answer.body + str(answer.headers).encode() for answer in answers]
    assert {answer.status for answer in answers} >= {200, 401, 403}
    assert traces(*shown, picture, *logged, caplog.text) == []
    print(f"{len(answers)} answers, {len(logged)} lines of log: no secret")


async def test_each_act_is_a_line(redis_server: EmbeddedRedis, tokens: Path, logged: list[Any]) -> None:
    with a_hand(redis_server.url) as hand:
        hand.apply(login("bob", "s1", "phone"))
        async with operators(redis_server.url, admin_tokens=tokens) as running:
            for body in ({"uid": "ann"}, {"uid": "bob", "device": "phone", "wait_s": 0}, {"uid": "a b"}):
                await running.ask("/v1/kick", "POST", body, **bearer(ACT))
            await running.ask("/v1/kick", "POST", {"uid": "ann"}, **bearer(READ))
            await running.ask("/v1/kick", "POST", {"uid": "ann"}, **bearer(OFFERED))
            await running.ask("/v1/kick", "POST", {"uid": "ann"})
            acts = running.context.http.acts
            assert (acts["kick", "done"], acts["kick", "failed"], acts["kick", "refused"]) == (1, 1, 4)
    lines = [line for line in logged if line["event"] == "audit"]
    told = [(line["who"], line["role"], line["uid"], line["device"], line["outcome"]) for line in lines]
    assert told == [
        ("ann", "act", "ann", None, "done"),
        ("ann", "act", "bob", "phone", "failed"),
        ("ann", "act", None, None, "refused"),
        ("grafana", "read", None, None, "refused"),
        ("none", "none", None, None, "refused"),
        ("none", "none", None, None, "refused"),
    ]
    assert {line["peer"] for line in lines} == {"127.0.0.1:5555"}
    assert [line.get("reason") for line in lines[3:]] == ["wrong_role", "wrong_token", "no_token"]


async def test_strangers_do_not_fill_the_log(
    tokens: Path, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "REFUSED_BURST", 3)
    monkeypatch.setattr(audit, "REFUSED_PER_S", 0.001)
    async with operators(admin_tokens=tokens) as running:
        for _ in range(20):
            assert (await running.ask("/v1/kick", "POST", {"uid": "ann"})).status == 401
        assert running.context.http.acts["kick", "refused"] == 20
    assert sum(line["event"] == "audit" for line in logged) == 3
