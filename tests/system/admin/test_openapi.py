"""The description of the HTTP interface is valid, complete, and true of every response."""

import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from presence.admin.event_feed import TYPES
from presence.admin.page_files import description
from presence.admin.request_checks import MAX_UIDS, MAX_USERS, USERS_DEFAULT
from presence.core.profiles import Profile
from presence.sender import MAX_MESSAGES, Status
from presence.server.readiness import Readiness
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.admin.asking import Answered, Operators, operators
from tests.admin.hands import a_hand
from tests.rooms.keys_by_hand import AT_MS, HandMadeRooms
from tests.store.driving import end, login

DESCRIBED = description()
QUERY, KICK, BAN, UNBAN = "/v1/presence/query", "/v1/kick", "/v1/ban", "/v1/unban"
MESSAGE = "/v1/message"
ROSTER = "/v1/roster"
ONE = {"from": "@shop", "to": "ann", "body": {"order": 7}}
META = {"mood": "fine", "raw": {"$bin": "00ff"}}
Asked = tuple[str, str, str, Any, int]
"""The path as it is described, what is asked, and the status."""


def gets(path: str, status: int, *ends: str) -> list[Asked]:
    """Return requests for paths and parameters with these ends."""
    return [(path, "GET", path.partition("{")[0] + end, b"", status) for end in ends or ("",)]


def posts(path: str, status: int, *bodies: Any) -> list[Asked]:
    return [(path, "POST", path, body, status) for body in bodies]


ASKED = [
    *(asked for path in ("/healthz", "/readyz", "/metrics", "/v1/nodes") for asked in gets(path, 200)),
    *(asked for path in ("/openapi.json", "/") for asked in gets(path, 200)),
    *gets("/v1/presence/{uid}", 200, "ann", "bob", "%F0%9F%A6%8A%2F%C3%A9"),
    *gets("/v1/presence/{uid}", 400, "", "%ff", "a%20b", "a%0Ab", 129 * "x"),
    *gets("/v1/presence", 200, "?uid=ann", "?uid=.", "?uid=..&more=1", "?uid=%F0%9F%A6%8A%2F%C3%A9"),
    *gets("/v1/presence", 400, "", "?uid=", "?uid=%ff", "?uid=a+b", "?uid=ann&uid=bob"),
    *posts(QUERY, 200, {"uids": ["ann", "bob", "zoe", "ann"]}),
    *posts(QUERY, 413, {"uids": [f"u{n}" for n in range(501)]}),
    *posts(QUERY, 400, {"uids": ["a b"]}, {"uids": ["\ud800"]}, {"uids": "ann"}, {"uid": ["ann"]}),
    *posts(QUERY, 415, b"{"),
    *gets("/v1/online", 200, "", "?limit=0", "?limit=1&cursor=0-0"),
    *gets("/v1/online", 200, "?uid_prefix=a", "?class=phone&node=n1", "?status=invisible"),
    *gets("/v1/online", 400, "?limit=1001", "?limit=-1", "?cursor=7-7", "?uid_prefix=a%20b", "?status=off"),
    *gets("/v1/events", 400, "?type=everything", "?from=yesterday", "?from=3:1-1"),
    *gets("/v1/explain/{uid}", 200, "ann", "bob", "%F0%9F%91%A8%E2%80%8D%F0%9F%91%A9"),
    *gets("/v1/explain/{uid}", 400, "a%20b"),
    *gets("/v1/explain", 200, "?uid=..", "?uid=%EF%BB%BFann"),
    *gets("/v1/explain", 400, "", "?uid=%ff"),
    *posts(KICK, 200, {"uid": "zoe"}, {"uid": "ann", "device": "tv", "wait_s": 0}),
    *posts(KICK, 202, {"uid": "ann", "device": "phone", "wait_s": 0}),
    *posts(KICK, 400, *({"uid": "ann", **more} for more in ({"wait_s": 31}, {"devcie": ""}, {"device": 7}))),
    *posts(KICK, 400, {"device": "phone"}),
    *posts(KICK, 415, b"{"),
    *posts(BAN, 202, {"uids": ["ann", "zoe"], "device": "phone", "for_s": 60.5, "reason": "é", "wait_s": 0}),
    *posts(BAN, 200, {"uids": ["ann"], "device": ""}, {"uids": ["zoe"], "for_s": None}, {"uids": []}),
    *posts(
        BAN, 400, *({"uids": ["ann"], **more} for more in ({"for_s": 0}, {"for_s": 10**9}, {"reason": 7}))
    ),
    *posts(BAN, 400, {"uids": ["ann"], "reason": 201 * "x"}, {"uids": ["a b"]}, {"device": ""}),
    *posts(BAN, 413, {"uids": [f"u{n}" for n in range(501)]}),
    *posts(BAN, 415, b"{"),
    *posts(BAN, 200, {"addresses": ["192.0.2.0/24", "2001:db8::/64"], "for_s": 60, "reason": "é"}),
    *posts(BAN, 200, {"addresses": ["127.0.0.1"], "force": True, "for_s": 0.01}),
    *posts(BAN, 400, *({"addresses": each} for each in ([], ["x"], ["::1"], ["0.0.0.0/0"], "192.0.2.1"))),
    *posts(BAN, 400, {"addresses": ["192.0.2.1"], "uids": ["ann"]}, {"uids": ["ann"], "force": 1}),
    *posts(BAN, 413, {"addresses": [f"10.0.{n // 256}.{n % 256}" for n in range(501)]}),
    *gets("/v1/bans", 200),
    *posts(UNBAN, 200, {"addresses": ["192.0.2.0/24", "192.0.2.1"]}),
    *posts(UNBAN, 400, {"addresses": ["192.0.2.1/8"]}),
    *posts(UNBAN, 200, {"uids": ["ann", "bob"], "device": ""}, {"uids": ["ann", "zoe"]}),
    *posts(UNBAN, 400, {"uids": ["ann"], "for_s": 1}),
    *posts(
        MESSAGE, 200, {**ONE, "to": "zoe"}, {**ONE, "device": "tv"}, {**ONE, "device": None, "body": None}
    ),
    *posts(
        MESSAGE, 200, {"from": "@shop", "messages": [{"to": "zoe", "body": 1}, {"to": "bob", "body": []}]}
    ),
    *posts(MESSAGE, 413, {"from": "@shop", "messages": [{"to": "ann", "body": 1}] * 101}),
    *posts(MESSAGE, 400, {"from": "@shop"}, {**ONE, "from": "the shop"}, {**ONE, "messages": []}),
    *posts(MESSAGE, 415, b"{"),
    *posts(ROSTER, 200, {"uid": "ann", "put": ["bob", "bob"]}, {"uid": "ann", "remove": [], "add": ["é"]}),
    *posts(ROSTER, 400, {"uid": "ann"}, {"uid": "ann", "put": [], "add": []}, {"uid": "ann", "put": "bob"}),
    *posts(ROSTER, 400, {"put": []}, {"uid": "ann", "add": ["a b"]}, {"uid": "ann", "set": []}),
    *posts(ROSTER, 413, {"uid": "ann", "put": [f"u{n}" for n in range(501)]}),
    *posts(ROSTER, 200, {"uid": "zoe", "put": [f"u{n}" for n in range(500)]}),
    *posts(ROSTER, 409, {"uid": "zoe", "add": ["one-more"]}),
    *posts(ROSTER, 415, b"{"),
    *gets("/v1/roster/{uid}", 200, "ann", "nobody", "%F0%9F%A6%8A%2F%C3%A9"),
    *gets("/v1/roster/{uid}", 400, "a%20b"),
    *gets("/v1/roster", 200, "?uid=.."),
    *gets("/v1/roster", 400, ""),
    *gets("/v1/rooms", 200, "", "?largest=10", "?limit=1&cursor=0-0"),
    *gets("/v1/rooms", 400, "?largest=0", "?largest=1&limit=1", "?limit=1001", "?cursor=9-9"),
    *gets("/v1/rooms/{name}", 200, "lobby", "lobby?members=1000", "nothing", "%F0%9F%A6%8A%2F%C3%A9"),
    *gets("/v1/rooms/{name}", 400, "a%20b", "%ff", 65 * "x", "lobby?members=-1", "lobby?members=1&cursor=x"),
    *gets("/static/{file}", 200, "main.js"),
    *gets("/static/{file}", 404, "../app.py", "%2e%2e/app.py"),
]


@pytest.fixture
async def running(redis_server: EmbeddedRedis) -> AsyncIterator[Operators]:
    with a_hand(redis_server.url) as hand:
        profile = Profile(meta='{"mood":"fine","raw":{"$bin":"00ff"}}')
        hand.apply(login("ann", "s1", "phone", profile=profile), login("bob", "s2"), end("bob", "s2"))
        with open_client(redis_server.url) as client:
            HandMadeRooms(client, 1).fill("lobby", {"ann": "-", "eve": "i"})
        async with operators(redis_server.url) as running:
            yield running


def shape_of(path: str, method: str, answered: Answered) -> dict[str, Any]:
    """Return what the description says of a response of this status."""
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


def test_the_description_is_valid_and_has_the_codes_limits() -> None:
    validate(DESCRIBED)
    uids = DESCRIBED["paths"][QUERY]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert uids["properties"]["uids"]["maxItems"] == MAX_UIDS
    message = DESCRIBED["paths"][MESSAGE]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert message["oneOf"][1]["properties"]["messages"]["maxItems"] == MAX_MESSAGES
    outcome = DESCRIBED["components"]["schemas"]["MessageOutcome"]["properties"]
    assert outcome["status"]["enum"] == list(get_args(Status))
    limit = DESCRIBED["paths"]["/v1/online"]["get"]["parameters"][0]["schema"]
    assert (limit["maximum"], limit["default"]) == (MAX_USERS, USERS_DEFAULT)
    types = DESCRIBED["paths"]["/v1/events"]["get"]["parameters"][1]["schema"]
    assert types["items"]["enum"] == list(TYPES)
    workers = DESCRIBED["components"]["schemas"]["Readiness"]["properties"]["workers"]
    assert workers["additionalProperties"]["enum"] == [*(each.value for each in Readiness), "no_answer"]


async def test_the_description_has_every_endpoint_and_no_other(running: Operators) -> None:
    described = {(method, path) for path, verbs in DESCRIBED["paths"].items() for method in verbs}
    assert described == {(endpoint.method.lower(), endpoint.template) for endpoint in running.app.endpoints}
    assert (await running.ask("/openapi.json")).json() == json.loads(json.dumps(DESCRIBED))


async def test_every_response_matches_the_description(running: Operators) -> None:
    for path, method, target, body, status in ASKED:
        answered = await running.ask(target, method, body)
        assert answered.status == status, f"{method} {target}: {answered.status} {answered.body[:200]!r}"
        schema = shape_of(path, method, answered)
        if answered.kind == "application/json":
            assert wrong(schema, answered.json()) == [], f"{method} {target}: {answered.body[:400]!r}"
    asked = {path for path, *_, status in ASKED if status == 200}
    assert asked | {"/v1/events", "/v1/live"} == set(DESCRIBED["paths"])


async def test_an_event_matches_the_description(running: Operators) -> None:
    viewer = running.look("/v1/events?from=0")
    for kind in ("online", "online", "offline"):
        event = await viewer.message()
        assert event["event"] == kind
        assert wrong({"$ref": "#/components/schemas/Event"}, json.loads(event["data"])) == []


async def test_states_read_singly_together_and_in_pages_are_equal(running: Operators) -> None:
    state = (await running.ask("/v1/presence/ann")).json()
    assert (state["status"], state["meta"], state["sessions"][0]["device"]) == ("online", META, "phone")
    query = (await running.ask(QUERY, "POST", {"uids": ["ann", "bob"]})).json()["presence"]
    assert (query["ann"], query["bob"]["status"]) == (state, "offline")
    assert (await running.ask("/v1/online?limit=0")).json() == {"count": 1, "users": {}, "cursor": None}
    page = (await running.ask("/v1/online")).json()
    assert (page["count"], list(page["users"]), page["cursor"]) == (1, ["ann"], None)
    assert page["users"]["ann"]["meta"] == META


async def test_a_room_has_its_numbers_and_the_members_that_are_asked_for(running: Operators) -> None:
    lobby = {"name": "lobby", "count": 2, "public": 1, "since_ms": AT_MS, "id": f"{AT_MS}-0"}
    assert (await running.ask("/v1/rooms/lobby")).json() == {**lobby, "members": {}, "cursor": None}
    members = (await running.ask("/v1/rooms/lobby?members=1000")).json()["members"]
    assert members["eve"] == {"status": "online", "invisible": True, "id": "5-1"}
    listed = {"rooms": [{"name": "lobby", "count": 2}], "cursor": None}
    for target in ("/v1/rooms", "/v1/rooms?largest=5"):
        assert (await running.ask(target)).json() == listed


async def test_another_method_is_refused_with_the_allowed_ones(running: Operators) -> None:
    answered = await running.ask("/v1/kick", "GET")
    assert (answered.status, answered.headers["allow"]) == (405, "POST")
    assert (await running.ask("/v1/nodes", "DELETE")).status == 405


async def test_an_unchanged_file_is_not_sent_again(running: Operators) -> None:
    first = await running.ask("/static/main.js")
    assert (first.kind, first.headers["cache-control"]) == ("text/javascript", "no-cache")
    again = await running.ask("/static/main.js", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert "304" in DESCRIBED["paths"]["/static/{file}"]["get"]["responses"]


def test_the_schema_rejects_a_wrong_response() -> None:
    assert wrong({"$ref": "#/components/schemas/State"}, {"status": "here"})
