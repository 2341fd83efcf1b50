"""Every verb asked by everybody: one table says what each is answered, and no verb is missing in it."""

import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from presence.admin import app, guard
from presence.embedded import EmbeddedRedis
from tests.admin.asking import JSON, Answered, Operators, operators

READ_SECRET: Final = "read-secret-0123456789"
ACT_SECRET: Final = "act-secret-0123456789abc"
# Verbs, an instance of each, and its body.
OPEN: Final = ("GET /healthz", "GET /readyz")
READS: Final = {
    "GET /metrics": "/metrics",
    "GET /v1/presence/{uid}": "/v1/presence/ann",
    "POST /v1/presence/query": "/v1/presence/query",
    "GET /v1/online": "/v1/online",
    "GET /v1/nodes": "/v1/nodes",
    "GET /v1/events": "/v1/events",
    "GET /v1/live": "/v1/live",
    "GET /v1/explain/{uid}": "/v1/explain/ann",
    "GET /openapi.json": "/openapi.json",
    "GET /": "/",
    "GET /static/{file}": "/static/icon.svg",
}
ACTS: Final = {"POST /v1/kick": "/v1/kick"}
TARGETS: Final = {**{each: each.partition(" ")[2] for each in OPEN}, **READS, **ACTS}
BODIES: Final = {"POST /v1/presence/query": b'{"uids":["ann"]}', "POST /v1/kick": b'{"uid":"ann"}'}


class Who(NamedTuple):
    """Somebody who asks, and what he is answered when he reads, and when he acts; what is open is 200."""

    headers: Mapping[str, str]
    with_tokens: bool
    read: int
    act: int


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


CROSS: Final = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": "http://evil.example"}
WHO: Final = {
    "near, without tokens": Who({}, False, 200, 200),
    "no token": Who({}, True, 401, 401),
    "a wrong token": Who(bearer("wrong-secret-0123456789"), True, 401, 401),
    "may read": Who(bearer(READ_SECRET), True, 200, 403),
    "may act": Who(bearer(ACT_SECRET), True, 200, 200),
    "another page, without tokens": Who(CROSS, False, 403, 403),
    "another page, with a browser's token": Who({**bearer(ACT_SECRET), **CROSS}, True, 403, 403),
    "by a wrong name, without tokens": Who({"host": "evil.example:7480"}, False, 403, 403),
}


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"# of tests\nread grafana {READ_SECRET}\nact ann {ACT_SECRET}\n")
    path.chmod(0o600)
    return path


async def answer(running: Operators, verb: str, headers: Mapping[str, str]) -> Answered:
    """Ask; of a stream the head."""
    method, target = verb.partition(" ")[0], TARGETS[verb]
    given = {name.replace("-", "_"): value for name, value in headers.items()}
    if verb in {"GET /v1/events", "GET /v1/live"}:
        method = "HEAD"  # ends after the head
    if verb in BODIES:
        given = {"content_type": JSON["content-type"], **given}
    return await running.ask(target, method, BODIES.get(verb, b""), **given)


async def test_each_verb_is_answered_to_whom_it_is_meant_for_and_to_nobody_else(
    redis_server: EmbeddedRedis, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "GUESS_DELAY_S", 0.0)
    for with_tokens in (False, True):
        async with operators(redis_server.url, admin_tokens=token_file if with_tokens else None) as running:
            table = running.app.table
            for verb, route in zip(table.verbs, table.routes, strict=True):
                assert {*(route.methods or ())} - {"HEAD"} == {verb.method}
            assert {f"{verb.method} {verb.path}" for verb in table.verbs} == set(TARGETS), "each has a row"
            for name, who in WHO.items():
                for asked in TARGETS if who.with_tokens is with_tokens else ():
                    running.context.http.acts["kick", "done"] = 0
                    expected = 200 if asked in OPEN else who.act if asked in ACTS else who.read
                    answered = await answer(running, asked, who.headers)
                    assert answered.status == expected, (
                        f"{asked}, {name}: {answered.status} {answered.body!r}"
                    )
                    acted = asked in ACTS and who.act == 200
                    assert running.context.http.acts["kick", "done"] == int(acted), f"{asked}, {name}"


@pytest.fixture
async def secured(redis_server: EmbeddedRedis, token_file: Path) -> AsyncIterator[Operators]:
    async with operators(redis_server.url, admin_tokens=token_file) as running:
        yield running


async def test_who_may_not_is_told_so_and_nothing_else(secured: Operators) -> None:
    assert (await secured.ask("/nothing")).status == 401
    assert (await secured.ask("/nothing", authorization=f"Bearer {READ_SECRET}")).code == "not_found"
    headers: dict[str, Any] = {"authorization": f"Bearer {ACT_SECRET}", "content_type": "text/plain"}
    assert (await secured.ask("/v1/kick", "POST", b'{"uid":"ann"}', **headers)).code == "not_json"
    for origin in ("null", "", "http://"):  # a page that nobody may know of, whatever the host
        headers = {"authorization": f"Bearer {ACT_SECRET}", "host": "", "origin": origin}
        assert (await secured.ask("/v1/kick", "POST", {"uid": "ann"}, **headers)).code == "cross_site"
        assert (await secured.ask("/v1/nodes", **headers)).code == "cross_site"


async def test_a_password_of_basic_is_a_token(secured: Operators) -> None:
    basic = base64.b64encode(f"anybody:{READ_SECRET}".encode()).decode()
    assert (await secured.ask("/v1/nodes", authorization=f"Basic {basic}")).status == 200
    assert (await secured.ask("/v1/nodes", authorization="Basic %%%")).code == "wrong_token"
    told = await secured.ask("/v1/nodes")
    assert told.headers["www-authenticate"].startswith('Basic realm="presence"')


async def test_beyond_loopback_without_tokens_nobody_comes_in() -> None:
    async with operators(host="192.0.2.1") as running:
        assert (await running.ask("/v1/nodes")).code == "no_token"
        assert (await running.ask("/healthz")).status == 200


async def test_a_loopback_name_is_ours_and_a_link_from_another_page_may_lead_to_the_live_page(
    redis_server: EmbeddedRedis,
) -> None:
    async with operators(redis_server.url) as running:
        for name in ("localhost:7480", "127.0.0.1", "[::1]:7480", "LOCALHOST"):
            assert (await running.ask("/v1/nodes", host=name)).status == 200, name
        answered = await running.ask("/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
        assert (answered.status, answered.kind) == (200, "text/html")
        assert "frame-ancestors 'none'" in answered.headers["content-security-policy"]


async def test_wrong_tokens_are_slow_and_few_at_once(
    secured: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "GUESSES_MAX", 0)
    answered = await secured.ask("/v1/nodes", authorization="Bearer wrong-secret-0123456789")
    assert (answered.status, answered.code) == (429, "too_many_guesses")
    assert secured.context.http.refusals["guesses"] == 1


async def test_a_process_that_begins_with_a_bad_file_lets_nobody_in_until_it_is_sound(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "TOKENS_S", 0.01)
    path = tmp_path / "tokens"
    path.write_text("read grafana short\n")
    path.chmod(0o600)
    headers = {"authorization": f"Bearer {READ_SECRET}"}
    async with operators(redis_server.url, admin_tokens=path) as running:
        assert (await running.ask("/healthz")).status == 200
        for given in ({}, headers):
            told = await running.ask("/v1/nodes", **given)
            assert (told.status, told.code) == (503, "no_tokens")
        path.write_text(f"read grafana {READ_SECRET}\n")
        with trio.fail_after(10):
            while (await running.ask("/v1/nodes", **headers)).status != 200:  # noqa: ASYNC110 - as files do, it rings no bell
                await trio.sleep(0.01)


async def test_tokens_are_read_again_and_a_bad_file_changes_nothing(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"read grafana {READ_SECRET}\n")
    path.chmod(0o600)
    async with operators(redis_server.url, admin_tokens=path) as running:
        path.write_text("read grafana short\n")
        running.app.reload()
        assert (await running.ask("/v1/nodes", authorization=f"Bearer {READ_SECRET}")).status == 200
        path.write_text(f"act ann {ACT_SECRET}\n")
        running.app.reload()
        assert (await running.ask("/v1/nodes", authorization=f"Bearer {READ_SECRET}")).code == "wrong_token"
        assert (await running.ask("/v1/nodes", authorization=f"Bearer {ACT_SECRET}")).status == 200
