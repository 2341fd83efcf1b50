"""What stands before every answer: headers that all have, mistakes that are told to nobody, and counts."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from structlog.testing import capture_logs

from presence.admin import guard
from tests.admin.asking import Operators, ask, operators, scope_of

SECRET = "what is in a failure"


async def fails(_request: Request) -> Response:
    raise RuntimeError(SECRET)


def break_verb(running: Operators, path: str) -> None:
    """Let a verb fail."""
    (route,) = [
        route
        for verb, route in zip(running.app.table.verbs, running.app.table.routes, strict=True)
        if verb.path == path
    ]
    running.app.table.routes[running.app.table.routes.index(route)] = type(route)(route.path, fails)


async def test_a_mistake_of_ours_is_logged_and_not_told() -> None:
    async with operators() as running:
        break_verb(running, "/v1/nodes")
        with capture_logs() as lines:
            answered = await running.ask("/v1/nodes")
        assert (answered.status, answered.code) == (500, "internal")
        assert SECRET not in answered.body.decode()
        assert [line["event"] for line in lines] == ["a request of an operator failed"]
        assert running.context.http.requests["/v1/nodes", "5xx"] == 1


async def test_every_answer_has_the_headers_that_bind_browsers() -> None:
    async with operators() as running:
        for target in ("/healthz", "/", "/nothing", "/v1/kick", "/static/main.js"):
            answered = await running.ask(target)
            for name, value in guard.HEADERS.items():
                assert answered.headers[name.lower()] == value, target
            assert "unsafe" not in answered.headers["content-security-policy"]


async def test_paths_of_strangers_are_counted_as_others() -> None:
    async with operators() as running:
        for number in range(5):
            await running.ask(f"/{number}")
        assert running.context.http.requests["other", "4xx"] == 5
        await running.ask("/static/main.js")
        assert running.context.http.requests["/static", "2xx"] == 1


async def test_two_headers_of_a_name_are_one_that_is_no_token() -> None:
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


async def test_a_verb_of_a_route_answers_head_without_more() -> None:
    async with operators() as running:
        assert (await ask(running.app, "/openapi.json", "HEAD")).status == 200


@pytest.mark.parametrize("target", ["/v1/explain%2Fann", "/%76%31/explain/ann", "/%761/presence/ann"])
async def test_a_path_that_encodes_more_than_the_uid_is_of_nobody(target: str) -> None:
    async with operators() as running:
        answered = await running.ask(target)
        assert (answered.status, answered.code) == (404, "not_found")
        assert running.asked["explain"] == 0
