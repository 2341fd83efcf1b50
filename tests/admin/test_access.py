"""Access to each endpoint in every role, and the trace it leaves: secrets are nowhere."""

import base64
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import structlog.testing
import trio
from starlette.requests import Request
from starlette.responses import Response

from presence.admin import app, auth_middleware, views
from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.ops.kick import KickResult
from presence.protocol import Code
from presence.server.server import Server
from presence.store import ban_table as store_bans
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.admin.asking import JSON, Answered, Operators, operators, scope_of
from tests.admin.hands import a_hand
from tests.store.driving import login
from tests.support.waiting import until
from tests.transports.harness import Client

READ, ACT = "canary-of-read-0123456789", "canary-of-act-0123456789"
REDIS = "canary-of-redis-0123456789"
OFFERED = "canary-of-a-guess-0123456789"
CANARIES = (READ, ACT, REDIS, OFFERED)
# Endpoints, an instance of each, and its body.
OPEN: Final = ("GET /healthz", "GET /readyz")
READS: Final = {
    "GET /metrics": "/metrics",
    "GET /v1/presence/{uid}": "/v1/presence/ann",
    "GET /v1/presence": "/v1/presence?uid=ann",
    "POST /v1/presence/query": "/v1/presence/query",
    "GET /v1/online": "/v1/online",
    "GET /v1/nodes": "/v1/nodes",
    "GET /v1/events": "/v1/events",
    "GET /v1/live": "/v1/live",
    "GET /v1/explain/{uid}": "/v1/explain/ann",
    "GET /v1/explain": "/v1/explain?uid=ann",
    "GET /v1/bans": "/v1/bans",
    "GET /v1/roster/{uid}": "/v1/roster/ann",
    "GET /v1/roster": "/v1/roster?uid=ann",
    "GET /v1/rooms": "/v1/rooms",
    "GET /v1/rooms/{name}": "/v1/rooms/lobby",
    "GET /openapi.json": "/openapi.json",
    "GET /": "/",
    "GET /static/{file}": "/static/icon.svg",
}
ACTS: Final = {
    f"POST {path}": path for path in ("/v1/kick", "/v1/ban", "/v1/unban", "/v1/message", "/v1/roster")
}
TARGETS: Final = {**{each: each.partition(" ")[2] for each in OPEN}, **READS, **ACTS}
BODIES: Final = {
    **dict.fromkeys(("POST /v1/presence/query", "POST /v1/ban", "POST /v1/unban"), b'{"uids":["ann"]}'),
    "POST /v1/kick": b'{"uid":"ann"}',
    "POST /v1/roster": b'{"uid":"ann","add":["bob"]}',
    "POST /v1/message": b'{"from":"@shop","to":"ann","body":1}',
}


class Role(NamedTuple):
    """Who asks, and the status for reads and for actions; open endpoints answer 200."""

    headers: Mapping[str, str]
    with_tokens: bool
    read: int
    act: int


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


CROSS: Final = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "origin": "http://evil.example"}
ROLES: Final = {
    "near, without tokens": Role({}, False, 200, 200),
    "no token": Role({}, True, 401, 401),
    "a wrong token": Role(bearer(OFFERED), True, 401, 401),
    "may read": Role(bearer(READ), True, 200, 403),
    "may act": Role(bearer(ACT), True, 200, 200),
    "another page, without tokens": Role(CROSS, False, 403, 403),
    "another page, with a browser's token": Role({**bearer(ACT), **CROSS}, True, 403, 403),
    "another page's picture, without tokens": Role({"sec_fetch_site": "cross-site"}, False, 403, 403),
    "by a wrong name, without tokens": Role({"host": "evil.example:7480"}, False, 403, 403),
}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# of tests\nread grafana {READ}\nact ann {ACT}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
async def secured(redis_server: EmbeddedRedis, tokens: Path) -> AsyncIterator[Operators]:
    async with operators(redis_server.url, admin_tokens=tokens) as running:
        yield running


@pytest.fixture
def a_guess_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a wrong token at each endpoint."""
    monkeypatch.setattr(auth_middleware, "GUESSES_BURST", len(TARGETS))


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


async def answer(running: Operators, verb: str, headers: Mapping[str, str]) -> Answered:
    """Send a request; of a stream return the head."""
    method, target = verb.partition(" ")[0], TARGETS[verb]
    if verb in {"GET /v1/events", "GET /v1/live"}:
        method = "HEAD"  # ends after the head
    given = {"content_type": JSON["content-type"], **headers} if verb in BODIES else headers
    return await running.ask(target, method, BODIES.get(verb, b""), **given)


async def kick(running: Operators, secret: str = "", **body: Any) -> Answered:
    return await running.ask("/v1/kick", "POST", {"uid": "ann", **body}, **(bearer(secret) if secret else {}))


@pytest.mark.usefixtures("a_guess_for_each")
async def test_each_endpoint_answers_the_permitted_roles_only(
    redis_server: EmbeddedRedis, tokens: Path
) -> None:
    for with_tokens in (False, True):
        async with operators(redis_server.url, admin_tokens=tokens if with_tokens else None) as running:
            verbs = running.app.endpoints
            assert all({*(verb.methods or ())} - {"HEAD"} == {verb.method} for verb in verbs)
            assert {f"{verb.method} {verb.template}" for verb in verbs} == set(TARGETS), "each has a row"
            for name, role in ROLES.items():
                for asked in TARGETS if role.with_tokens is with_tokens else ():
                    actions = running.context.http.actions
                    actions.update(dict.fromkeys(actions, 0))
                    expected = 200 if asked in OPEN else role.act if asked in ACTS else role.read
                    answered = await answer(running, asked, role.headers)
                    assert answered.status == expected, f"{asked}, {name}: {answered.body!r}"
                    for header, value in auth_middleware.HEADERS.items():
                        assert answered.headers[header.lower()] == value, asked
                    acted = asked in ACTS and role.act == 200
                    # A message to ann, who is offline, is an action that has failed.
                    done = [actions[verb, "done"] for verb in ("kick", "ban", "unban", "roster")]
                    assert sum(done) + actions["message", "failed"] == int(acted), f"{asked}, {name}"
    assert "unsafe" not in auth_middleware.HEADERS["Content-Security-Policy"]


async def test_a_refusal_reveals_nothing_else(secured: Operators) -> None:
    response = await secured.ask("/nothing")
    assert (response.status, response.headers["content-security-policy"]) == (
        401,
        auth_middleware.HEADERS["Content-Security-Policy"],
    )
    assert response.headers["www-authenticate"].startswith('Basic realm="presence"')
    assert (await secured.ask("/nothing", **bearer(READ))).code == "not_found"
    headers: dict[str, Any] = {**bearer(ACT), "content_type": "text/plain"}
    assert (await secured.ask("/v1/kick", "POST", b'{"uid":"ann"}', **headers)).code == "not_json"
    for origin in ("null", "", "http://"):  # an origin that is opaque, whatever the host
        headers = {**bearer(ACT), "host": "", "origin": origin}
        assert (await secured.ask("/v1/kick", "POST", {"uid": "ann"}, **headers)).code == "cross_site"
        assert (await secured.ask("/v1/nodes", **headers)).code == "cross_site"
    basic = base64.b64encode(f"anybody:{READ}".encode()).decode()
    assert (await secured.ask("/v1/nodes", authorization=f"Basic {basic}")).status == 200
    assert (await secured.ask("/v1/nodes", authorization="Basic %%%")).code == "wrong_token"


async def test_beyond_loopback_without_tokens_every_request_is_refused() -> None:
    async with operators(host="192.0.2.1") as running:
        assert (await running.ask("/v1/nodes")).code == "no_token"
        assert (await running.ask("/healthz")).status == 200


async def test_loopback_names_are_accepted_and_cross_site_links_may_open_the_live_page(
    redis_server: EmbeddedRedis,
) -> None:
    async with operators(redis_server.url) as running:
        for name in ("localhost:7480", "127.0.0.1", "[::1]:7480", "LOCALHOST"):
            assert (await running.ask("/v1/nodes", host=name)).status == 200, name
        for name in ("", "[::1].evil", "127.0.0.1:80@evil", "127.0.0.1.evil.example", "[::1", "localhost:x"):
            assert (await running.ask("/v1/nodes", host=name)).code == "wrong_host", name
        answered = await running.ask("/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
        assert (answered.status, answered.kind) == (200, "text/html")


async def test_duplicate_origin_headers_are_refused() -> None:
    async with operators() as running:
        scope = scope_of("GET", "/v1/nodes", {"origin": "http://127.0.0.1:7480"})
        scope["headers"].append((b"origin", b"http://evil.example"))
        statuses = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        await running.app.asgi(scope, receive, send)
        assert statuses[0] == 403


async def ask_from(running: Operators, address: str, secret: str) -> Answered:
    scope = {**scope_of("GET", "/v1/nodes", bearer(secret)), "client": (address, 5555)}
    return await running.ask_scope(scope)


async def test_guesses_of_an_address_are_limited_and_a_right_one_is_not_told_from_others(
    secured: Operators,
) -> None:
    for _ in range(auth_middleware.GUESSES_BURST):
        assert (await ask_from(secured, "192.0.2.1", OFFERED)).status == 401
    for secret in (OFFERED, ACT):
        answered = await ask_from(secured, "192.0.2.1", secret)
        assert (answered.status, answered.code) == (429, "too_many_guesses")
        assert 0 < answered.json()["error"]["retry_after"] <= 1 / auth_middleware.GUESSES_PER_S
    assert secured.context.http.refusals["guesses"] == 2


async def test_guesses_keep_nobody_out_at_another_address_and_no_probe(secured: Operators) -> None:
    for n in range(2 * auth_middleware.GUESSES_BURST):
        await ask_from(secured, f"2001:db8::{n:x}", OFFERED)
    assert (await ask_from(secured, "2001:db8::ffff", ACT)).status == 429, "the network counts"
    assert (await ask_from(secured, "2001:db8:0:1::1", ACT)).status == 200
    scope = {**scope_of("GET", "/readyz", bearer(OFFERED)), "client": ("2001:db8::1", 5555)}
    assert (await secured.ask_scope(scope)).status == 200


async def test_a_right_token_is_no_guess(secured: Operators) -> None:
    for _ in range(2 * auth_middleware.GUESSES_BURST):
        assert (await ask_from(secured, "192.0.2.1", READ)).status == 200


async def test_a_connection_is_closed_after_the_response_to_a_stranger(secured: Operators) -> None:
    for target, given, closed in (
        ("/healthz", {}, True),
        ("/v1/nodes", bearer(OFFERED), True),
        ("/v1/nodes", {}, True),
        ("/v1/nodes", bearer(READ), False),
        ("/nothing", bearer(READ), False),
    ):
        headers = (await secured.ask(target, **given)).headers
        assert (headers.get("connection") == "close") is closed, (target, given)


async def test_with_an_invalid_token_file_all_are_refused_until_it_is_valid(
    redis_server: EmbeddedRedis, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "TOKENS_RETRY_INTERVAL_S", 0.01)
    good = tokens.read_text()  # noqa: ASYNC240 - no other task runs
    tokens.write_text("read grafana short\n")  # noqa: ASYNC240 - see above
    async with operators(redis_server.url, admin_tokens=tokens) as running:
        assert (await running.ask("/healthz")).status == 200
        for given in ({}, bearer(READ)):
            response = await running.ask("/v1/nodes", **given)
            assert (response.status, response.code) == (503, "no_tokens")
        tokens.write_text(good)  # noqa: ASYNC240 - see above
        with trio.fail_after(10):
            while (await running.ask("/v1/nodes", **bearer(READ))).status != 200:  # noqa: ASYNC110 - files send no notification
                await trio.sleep(0.01)


async def test_tokens_are_reread_and_an_invalid_file_changes_nothing(
    secured: Operators, tokens: Path
) -> None:
    for text, codes in ((f"act ann {ACT} more\n", (200, 200)), (f"act ann {ACT}\n", (401, 200))):
        tokens.write_text(text)  # noqa: ASYNC240 - no other task runs
        secured.app.reload()
        assert [(await secured.ask("/v1/nodes", **bearer(each))).status for each in (READ, ACT)] == [*codes]


# Log and audit


@pytest.mark.usefixtures("a_guess_for_each")
@pytest.mark.parametrize("password", [REDIS, f"wrong-{REDIS}"], ids=["right", "wrong"])
async def test_no_secret_is_in_a_response_or_in_the_log(
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
        answers = [
            await answer(running, verb, bearer(secret)) for secret in (READ, ACT, OFFERED) for verb in TARGETS
        ]
        viewer = running.look("/v1/live", **bearer(READ))
        picture = await viewer.message("sample")
        viewer.leave()
        tokens.write_text(f"act ann {ACT} more\n")  # noqa: ASYNC240 - no other task runs
        running.app.reload()
    shown = [each.body + str(each.headers).encode() for each in answers]
    assert {each.status for each in answers} >= {200, 401, 403}
    everything = (*shown, picture, *logged, caplog.text)
    assert [canary for canary in CANARIES if any(canary in str(each) for each in everything)] == []


async def test_each_action_is_one_audit_line(
    redis_server: EmbeddedRedis, tokens: Path, logged: list[Any]
) -> None:
    with a_hand(redis_server.url) as hand:
        hand.apply(login("bob", "s1", "phone"))
        async with operators(redis_server.url, admin_tokens=tokens) as running:
            await kick(running, ACT)
            await kick(running, ACT, uid="bob", device="phone", wait_s=0)
            await kick(running, ACT, uid="a b")
            for secret in (READ, OFFERED, ""):
                await kick(running, secret)
            acts = running.context.http.actions
            assert (acts["kick", "done"], acts["kick", "failed"], acts["kick", "refused"]) == (1, 1, 4)
    lines = [line for line in logged if line["event"] == "audit"]
    response = [
        (line["operator"], line["role"], line["uid"], line["device"], line["outcome"]) for line in lines
    ]
    assert response == [
        ("ann", "act", "ann", None, "done"),
        ("ann", "act", "bob", "phone", "failed"),
        ("ann", "act", None, None, "refused"),
        ("grafana", "read", None, None, "refused"),
        ("none", "none", None, None, "refused"),
        ("none", "none", None, None, "refused"),
    ]
    assert {line["peer"] for line in lines} == {"127.0.0.1:5555"}
    assert [line.get("reason") for line in lines[3:]] == ["wrong_role", "wrong_token", "no_token"]


async def test_unauthenticated_requests_do_not_fill_the_log(
    tokens: Path, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_middleware, "REFUSALS_LOGGED_BURST", 3)
    monkeypatch.setattr(auth_middleware, "REFUSALS_LOGGED_PER_S", 0.001)
    async with operators(admin_tokens=tokens) as running:
        for _ in range(20):
            assert (await kick(running)).status == 401
        assert running.context.http.actions["kick", "refused"] == 20
    assert sum(line["event"] == "audit" for line in logged) == 3


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(MemoryError(), False), (LookupError("a mistake"), True)]
)
async def test_many_internal_errors_are_one_log_line(
    logged: list[Any], error: Exception, has_traceback: bool
) -> None:
    async def fails(_request: Request) -> Response:
        raise error

    async with operators() as running:
        verbs = running.app.endpoints
        (place,) = [at for at, verb in enumerate(verbs) if verb.template == "/v1/nodes"]
        verbs[place] = auth_middleware.Endpoint("GET", "/v1/nodes", verbs[place].need, fails)
        for _ in range(10):
            assert (await running.ask("/v1/nodes")).status == 500
    (line,) = logged
    assert line["event"] == "admin request failed"
    assert bool(line.get("exc_info")) is has_traceback


async def test_an_internal_error_is_logged_and_not_revealed(logged: list[Any]) -> None:
    secret = "details of a failure"

    async def fails(_request: Request) -> Response:
        raise RuntimeError(secret)

    async with operators() as running:
        verbs = running.app.endpoints
        (place,) = [at for at, verb in enumerate(verbs) if verb.template == "/v1/nodes"]
        verbs[place] = auth_middleware.Endpoint("GET", "/v1/nodes", verbs[place].need, fails)
        answered = await running.ask("/v1/nodes")
        assert (answered.status, answered.code) == (500, "internal")
        assert secret not in answered.body.decode()
        assert [line["event"] for line in logged] == ["admin request failed"]
        assert running.context.http.requests["/v1/nodes", "5xx"] == 1
        for number in range(5):
            await running.ask(f"/{number}")
        await running.ask("/static/main.js")
        assert running.context.http.requests["other", "4xx"] == 5, "invented paths share one counter"
        assert running.context.http.requests["/static", "2xx"] == 1


@pytest.mark.parametrize("target", ["/v1/explain%2Fann", "/%76%31/explain/ann", "/%761/presence/ann"])
async def test_a_path_that_encodes_more_than_the_uid_is_not_found(target: str) -> None:
    async with operators() as running:
        answered = await running.ask(target)
        assert (answered.status, answered.code) == (404, "not_found")
        assert running.asked["explain"] == 0


async def test_a_kick_beyond_the_limit_is_busy(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def wait(*_: object, **__: object) -> KickResult:
        ends.wait(30)
        return KickResult([], {})

    monkeypatch.setattr(views, "kick", wait)
    async with operators(redis_server.url) as running, trio.open_nursery() as nursery:
        limiter = running.app.sources.queries._acting
        for _ in range(views.KICK_THREADS):
            nursery.start_soon(kick, running)
        await until(lambda: not limiter.available_tokens)
        response = await kick(running)
        assert (response.status, response.code) == (503, "busy")
        ends.set()


async def test_each_ban_is_logged_with_who_made_it(secured: Operators, logged: list[Any]) -> None:
    users = [f"u{n}" for n in range(12)]
    await secured.ask("/v1/ban", "POST", {"uids": users, "for_s": 60}, **bearer(ACT))
    await secured.ask("/v1/ban", "POST", {"uids": ["a b"]}, **bearer(ACT))
    await secured.ask("/v1/unban", "POST", {"uids": ["u1", "zoe"]}, **bearer(ACT))
    await secured.ask("/v1/unban", "POST", {"uids": ["u1"]}, **bearer(READ))
    lines = [line for line in logged if line["event"] == "audit"]
    assert [(line["operator"], line["action"], line["outcome"]) for line in lines] == [
        ("ann", "ban", "done"),
        ("ann", "ban", "refused"),
        ("ann", "unban", "done"),
        ("grafana", "unban", "refused"),
    ]
    assert (lines[0]["users"], lines[0]["uids"]) == (12, users[:10])
    assert lines[2]["lifted"] == 1
    bans = (await secured.ask("/v1/bans", **bearer(READ))).json()["bans"]
    assert {each["uid"] for each in bans} == set(users) - {"u1"}
    assert {each["by"] for each in bans} == {"ann (HTTP)"}


async def test_bans_of_addresses_are_logged_listed_and_lifted(secured: Operators, logged: list[Any]) -> None:
    networks = {"addresses": ["192.0.2.0/24", "::ffff:198.51.100.1"]}
    canonical = ["192.0.2.0/24", "198.51.100.1"]
    banned = await secured.ask("/v1/ban", "POST", {**networks, "reason": "spam"}, **bearer(ACT))
    assert banned.json() == {"until_ms": None, "users": {}, "addresses": canonical}
    refused = await secured.ask("/v1/ban", "POST", {"addresses": ["0.0.0.0/0"]}, **bearer(ACT))
    assert (refused.status, refused.code) == (400, "bad_addresses")
    listed = (await secured.ask("/v1/bans", **bearer(READ))).json()["addresses"]
    assert [(each["address"], each["reason"], each["by"]) for each in listed] == [
        (address, "spam", "ann (HTTP)") for address in canonical
    ]
    lifted = await secured.ask("/v1/unban", "POST", networks, **bearer(ACT))
    assert lifted.json() == {"lifted": {}, "addresses": dict.fromkeys(canonical, True)}
    lines = [line for line in logged if line["event"] == "audit"]
    assert [(line["action"], line["outcome"], line.get("addresses")) for line in lines] == [
        ("ban", "done", canonical),
        ("ban", "refused", None),
        ("unban", "done", canonical),
    ]


async def test_a_full_table_of_bans_is_a_conflict(
    secured: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_bans, "MAX_BANS", 1)
    answered = await secured.ask("/v1/ban", "POST", {"uids": ["ann", "bob"]}, **bearer(ACT))
    assert (answered.status, answered.code) == (409, "too_many_bans")
    networks = {"addresses": ["192.0.2.1", "192.0.2.2"]}
    answered = await secured.ask("/v1/ban", "POST", networks, **bearer(ACT))
    assert (answered.status, answered.code) == (409, "too_many_bans")
    assert (await secured.ask("/v1/bans", **bearer(READ))).json() == {"bans": [], "addresses": []}


async def test_a_kick_ends_one_device_or_all(redis_server: EmbeddedRedis) -> None:
    server = Server(Settings(port=0), redis_server.url, 10, Clock())
    async with operators(redis_server.url) as running, trio.open_nursery() as nursery:
        address = await nursery.start(server.serve)
        devices = [Client(await trio.open_tcp_stream(*address)) for _ in range(3)]
        for device, name in zip(devices, ("phone", None, "tv"), strict=True):
            await device.login("ann", name)
        with trio.fail_after(30):
            while len((await running.ask("/v1/presence/ann")).json()["sessions"]) < 3:  # noqa: ASYNC110 - Redis sends no notification
                await trio.sleep(0.01)
        for device, body in zip(devices, ({"device": "phone"}, {"device": ""}, {}), strict=True):
            response = await kick(running, **body)
            assert (response.status, response.json()) == (200, {"uid": "ann", "sessions": 1, "left": []})
            (goodbye,) = await device.rest()
            assert (goodbye.payload["code"], goodbye.payload["reconnect"]) == (Code.KICKED, False)
            await device.stream.aclose()
        nursery.cancel_scope.cancel()
