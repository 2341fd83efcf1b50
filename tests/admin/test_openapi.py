"""The description of the HTTP interface is valid, whole, and true of every answer."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from presence.admin.event_feed import TYPES
from presence.admin.page_files import description
from presence.admin.requests import UIDS_MAX, USERS_DEFAULT, USERS_MAX
from presence.changes import Profile
from presence.embedded import EmbeddedRedis
from presence.inquiries import Readiness
from tests.admin.asking import Answered, Operators, operators
from tests.admin.hands import a_hand
from tests.store.driving import end, login

DESCRIBED = description()
QUERY, KICK = "/v1/presence/query", "/v1/kick"
META = {"mood": "fine", "raw": {"$bin": "00ff"}}
# What is asked, and the status, and the kind of answer that it must be told to have.
ASKED: list[tuple[str, str, str, Any, int]] = [
    ("/healthz", "GET", "/healthz", b"", 200),
    ("/readyz", "GET", "/readyz", b"", 200),
    ("/metrics", "GET", "/metrics", b"", 200),
    ("/v1/presence/{uid}", "GET", "/v1/presence/ann", b"", 200),
    ("/v1/presence/{uid}", "GET", "/v1/presence/bob", b"", 200),
    ("/v1/presence/{uid}", "GET", "/v1/presence/%F0%9F%A6%8A%2F%C3%A9", b"", 200),
    ("/v1/presence/{uid}", "GET", "/v1/presence/", b"", 400),
    ("/v1/presence/{uid}", "GET", "/v1/presence/%ff", b"", 400),
    ("/v1/presence/{uid}", "GET", "/v1/presence/a%20b", b"", 400),
    ("/v1/presence/{uid}", "GET", "/v1/presence/" + 129 * "x", b"", 400),
    (QUERY, "POST", QUERY, {"uids": ["ann", "bob", "zoe", "ann"]}, 200),
    (QUERY, "POST", QUERY, {"uids": [f"u{n}" for n in range(501)]}, 413),
    (QUERY, "POST", QUERY, {"uids": ["a b"]}, 400),
    (QUERY, "POST", QUERY, {"uids": ["\ud800"]}, 400),
    (QUERY, "POST", QUERY, {"uids": "ann"}, 400),
    (QUERY, "POST", QUERY, {"uid": ["ann"]}, 400),
    (QUERY, "POST", QUERY, b"{", 415),
    ("/v1/online", "GET", "/v1/online", b"", 200),
    ("/v1/online", "GET", "/v1/online?limit=0", b"", 200),
    ("/v1/online", "GET", "/v1/online?limit=1&cursor=0-0", b"", 200),
    ("/v1/online", "GET", "/v1/online?limit=1001", b"", 400),
    ("/v1/online", "GET", "/v1/online?limit=-1", b"", 400),
    ("/v1/online", "GET", "/v1/online?cursor=7-7", b"", 400),
    ("/v1/nodes", "GET", "/v1/nodes", b"", 200),
    ("/v1/events", "GET", "/v1/events?type=everything", b"", 400),
    ("/v1/events", "GET", "/v1/events?from=yesterday", b"", 400),
    ("/v1/events", "GET", "/v1/events?from=3:1-1", b"", 400),
    ("/v1/explain/{uid}", "GET", "/v1/explain/ann", b"", 200),
    ("/v1/explain/{uid}", "GET", "/v1/explain/bob", b"", 200),
    ("/v1/explain/{uid}", "GET", "/v1/explain/a%20b", b"", 400),
    ("/v1/explain/{uid}", "GET", "/v1/explain/%F0%9F%91%A8%E2%80%8D%F0%9F%91%A9", b"", 200),
    (KICK, "POST", KICK, {"uid": "zoe"}, 200),
    (KICK, "POST", KICK, {"uid": "ann", "device": "tv", "wait_s": 0}, 200),
    (KICK, "POST", KICK, {"uid": "ann", "device": "phone", "wait_s": 0}, 202),
    (KICK, "POST", KICK, {"uid": "ann", "wait_s": 31}, 400),
    (KICK, "POST", KICK, {"uid": "ann", "devcie": "phone"}, 400),
    (KICK, "POST", KICK, {"device": "phone"}, 400),
    (KICK, "POST", KICK, {"uid": "ann", "device": 7}, 400),
    (KICK, "POST", KICK, b"{", 415),
    ("/openapi.json", "GET", "/openapi.json", b"", 200),
    ("/", "GET", "/", b"", 200),
    ("/static/{file}", "GET", "/static/main.js", b"", 200),
    ("/static/{file}", "GET", "/static/../app.py", b"", 404),
    ("/static/{file}", "GET", "/static/%2e%2e/app.py", b"", 404),
]


@pytest.fixture
async def running(redis_server: EmbeddedRedis) -> AsyncIterator[Operators]:
    with a_hand(redis_server.url) as hand:
        said = Profile(meta='{"mood":"fine","raw":{"$bin":"00ff"}}')
        hand.apply(login("ann", "s1", "phone", profile=said), login("bob", "s2"), end("bob", "s2"))
        async with operators(redis_server.url) as running:
            yield running


def shape_of(path: str, method: str, answered: Answered) -> dict[str, Any]:
    """Return what the description says of an answer of this status."""
    responses = DESCRIBED["paths"][path][method.lower()]["responses"]
    assert str(answered.status) in responses, f"{method} {path}: {answered.status} is not described"
    response = responses[str(answered.status)]
    if "$ref" in response:
        response = DESCRIBED["components"]["responses"][response["$ref"].rpartition("/")[2]]
    content: dict[str, Any] = response["content"]
    assert answered.kind in content, f"{method} {path}: {answered.kind} is not described"
    return dict(content[answered.kind]["schema"])


def wrong(schema: dict[str, Any], value: Any) -> list[str]:
    whole = {**schema, "components": DESCRIBED["components"]}
    return [error.message for error in OAS31Validator(whole).iter_errors(value)]


def test_the_description_is_valid_and_its_bounds_and_words_are_those_of_the_code() -> None:
    validate(DESCRIBED)
    uids = DESCRIBED["paths"][QUERY]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert uids["properties"]["uids"]["maxItems"] == UIDS_MAX
    limit = DESCRIBED["paths"]["/v1/online"]["get"]["parameters"][0]["schema"]
    assert (limit["maximum"], limit["default"]) == (USERS_MAX, USERS_DEFAULT)
    types = DESCRIBED["paths"]["/v1/events"]["get"]["parameters"][1]["schema"]
    assert types["items"]["enum"] == list(TYPES)
    workers = DESCRIBED["components"]["schemas"]["Readiness"]["properties"]["workers"]
    assert workers["additionalProperties"]["enum"] == [*(each.value for each in Readiness), "no_answer"]


async def test_the_description_has_every_verb_and_no_other(running: Operators) -> None:
    described = {(method, path) for path, verbs in DESCRIBED["paths"].items() for method in verbs}
    assert described == {(verb.method.lower(), verb.path) for verb in running.app.table.verbs}
    assert (await running.ask("/openapi.json")).json() == json.loads(json.dumps(DESCRIBED))


async def test_every_answer_is_as_it_is_described(running: Operators) -> None:
    statuses = set()
    for path, method, target, body, status in ASKED:
        answered = await running.ask(target, method, body)
        assert answered.status == status, f"{method} {target}: {answered.status} {answered.body[:200]!r}"
        schema = shape_of(path, method, answered)
        if answered.kind == "application/json":
            assert wrong(schema, answered.json()) == [], f"{method} {target}: {answered.body[:400]!r}"
        statuses.add((method, path, status))
    print(f"{len(ASKED)} answers of {len({path for _, path, _ in statuses})} paths are as described")
    asked = {path for _, path, status in statuses if status == 200}
    assert asked | {"/v1/events", "/v1/live"} == set(DESCRIBED["paths"])


async def test_an_event_is_as_it_is_described(running: Operators) -> None:
    viewer = running.look("/v1/events?from=0")
    for kind in ("online", "online", "offline"):
        told = await viewer.message()
        assert told["event"] == kind
        assert wrong({"$ref": "#/components/schemas/Event"}, json.loads(told["data"])) == []
    viewer.leave()


async def test_the_state_of_who_is_online_is_told_with_what_he_says(running: Operators) -> None:
    state = (await running.ask("/v1/presence/ann")).json()
    assert (state["status"], state["meta"], state["sessions"][0]["device"]) == (
        "online",
        META,
        "phone",
    )
    query = (await running.ask(QUERY, "POST", {"uids": ["ann", "bob"]})).json()["presence"]
    assert query["ann"] == state
    assert query["bob"]["status"] == "offline"


async def test_a_count_and_a_page(running: Operators) -> None:
    assert (await running.ask("/v1/online?limit=0")).json() == {"count": 1, "users": {}, "cursor": None}
    page = (await running.ask("/v1/online")).json()
    assert (page["count"], list(page["users"]), page["cursor"]) == (1, ["ann"], None)
    assert page["users"]["ann"]["meta"] == META


async def test_another_method_is_refused_by_name(running: Operators) -> None:
    answered = await running.ask("/v1/kick", "GET")
    assert (answered.status, answered.headers["allow"]) == (405, "POST")
    assert (await running.ask("/v1/nodes", "DELETE")).status == 405


async def test_a_file_that_has_not_changed_is_not_sent_again(running: Operators) -> None:
    first = await running.ask("/static/main.js")
    assert (first.kind, first.headers["cache-control"]) == ("text/javascript", "no-cache")
    again = await running.ask("/static/main.js", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert "304" in DESCRIBED["paths"]["/static/{file}"]["get"]["responses"]


def test_a_schema_catches_a_wrong_answer() -> None:
    assert wrong({"$ref": "#/components/schemas/State"}, {"status": "here"})
