"""Messages of operators to users: answers, refusals of bad ones, the rate, and their trace in the log."""

import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio

from presence.admin import views
from presence.admin.handlers import MESSAGES_PER_S
from presence.common.errors import StoreInterrupted
from presence.messaging.message_bus import Confirmed
from presence.sender import MAX_MESSAGES, Message, Outcome, PresenceSender
from presence.store.embedded import EmbeddedRedis
from tests.admin.asking import Answered, Operators, operators
from tests.admin.hands import a_hand
from tests.store.driving import login
from tests.support.nodes_that_answer import ListeningNode, all_of
from tests.support.waiting import until

ONE = {"from": "@shop", "to": "ann", "body": {"order": 7}}


async def send(running: Operators, body: Any, **headers: str) -> Answered:
    return await running.ask("/v1/message", "POST", body, **headers)


@pytest.fixture
async def running(redis_server: EmbeddedRedis) -> AsyncIterator[Operators]:
    """Operators, and a node n1 with ann on two devices."""
    with a_hand(redis_server.url) as hand, ListeningNode(redis_server.url, "n1", all_of):
        hand.apply(login("ann", "s1", "phone"), login("ann", "s2"))
        async with operators(redis_server.url) as running:
            yield running


def outcome(to: str, status: str, delivered: int = 0) -> dict[str, Any]:
    return {"to": to, "status": status, "delivered": delivered, "unreported": 0, "retry_after": None}


async def test_the_answer_tells_what_became_of_each_message(running: Operators) -> None:
    for more, delivered in (({}, 2), ({"device": None}, 2), ({"device": ""}, 1), ({"device": "phone"}, 1)):
        answered = await send(running, {**ONE, **more})
        assert (answered.status, answered.json()) == (200, outcome("ann", "delivered", delivered))
    messages = [
        {"to": "ann", "body": None},
        {"to": "bob", "body": [1]},
        {"to": "ann", "body": 2, "device": "tv"},
    ]
    answered = await send(running, {"from": "@shop", "messages": messages})
    assert answered.status == 200
    assert answered.json() == {
        "messages": [outcome("ann", "delivered", 2), outcome("bob", "offline"), outcome("ann", "offline")]
    }


async def test_an_answer_with_confirmations_waits_for_them(redis_server: EmbeddedRedis) -> None:
    found = 2, 0.0, Confirmed(1, 1)
    with a_hand(redis_server.url) as hand, ListeningNode(redis_server.url, "n1", lambda _: found):
        hand.apply(login("ann", "s1", "phone"), login("ann", "s2"))
        async with operators(redis_server.url) as running:
            answered = await send(running, {**ONE, "confirm": 2.5})
            counts = {"confirmed": 1, "by_app": 1, "unconfirmed": 1}
            assert answered.json() == {**outcome("ann", "delivered", 2), **counts}
            many = {"from": "@shop", "messages": [{"to": "bob", "body": 1, "confirm": 2}]}
            assert (await send(running, many)).json() == {"messages": [outcome("bob", "offline")]}


BAD: list[tuple[Any, int, str]] = [
    *(({**ONE, "confirm": bad}, 400, "bad_confirm") for bad in (0, -1, 30.5, True)),
    *(({**ONE, "confirm": bad}, 400, "bad_confirm") for bad in ("5", "")),
    ({"from": "@shop", "messages": [{"to": "ann", "body": 1, "confirm": 31}]}, 400, "bad_confirm"),
    ({**ONE, "from": "the shop"}, 400, "bad_from"),
    ({"to": "ann", "body": 1}, 400, "bad_from"),
    ({**ONE, "to": "a b"}, 400, "bad_uid"),
    ({**ONE, "to": "\ud800"}, 400, "bad_uid"),
    ({**ONE, "device": "x" * 65}, 400, "bad_device"),
    ({"from": "@shop", "to": "ann"}, 400, "bad_body"),
    ({**ONE, "body": "x" * 16_384}, 400, "bad_body"),
    ({**ONE, "body": 2**64}, 400, "bad_body"),
    (b'{"from":"@shop","to":"ann","body":NaN}', 400, "bad_body"),
    (json.dumps({**ONE, "body": json.loads("[" * 13 + "]" * 13)}).encode(), 400, "bad_body"),
    ({**ONE, "messages": [{"to": "ann", "body": 1}]}, 400, "bad_messages"),
    ({"from": "@shop", "messages": []}, 400, "bad_messages"),
    ({"from": "@shop", "messages": [7]}, 400, "bad_messages"),
    ({"from": "@shop", "messages": [{"to": "ann", "body": 1, "from": "@shop"}]}, 400, "bad_messages"),
    (
        {"from": "@shop", "messages": [{"to": "ann", "body": 1}] * (MAX_MESSAGES + 1)},
        413,
        "too_many_messages",
    ),
    ({**ONE, "bdoy": 1}, 400, "unknown_name"),
    (b"{", 400, "bad_json"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD, ids=[f"{n} {bad[2]}" for n, bad in enumerate(BAD)])
async def test_a_bad_message_is_refused_before_redis_is_asked(body: Any, status: int, code: str) -> None:
    async with operators() as running:
        answered = await send(running, body, content_type="application/json")
        assert (answered.status, answered.code) == (status, code)
        assert running.context.http.actions["message", "refused"] == 1


async def test_messages_beyond_the_rate_of_a_token_are_refused(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PresenceSender, "send_all", lambda _, some, **__: [Outcome("offline")] * len(some))
    tokens, secrets = (
        tmp_path / "tokens",
        {"ann": "secret-of-ann-0123456789", "bob": "secret-of-bob-0123456789"},
    )
    tokens.write_text("".join(f"act {name} {secret}\n" for name, secret in secrets.items()))
    tokens.chmod(0o600)
    many = {"from": "@shop", "messages": [{"to": "ann", "body": 1}] * MAX_MESSAGES}
    async with operators(redis_server.url, admin_tokens=tokens) as running:
        ann, bob = ({"authorization": f"Bearer {secret}"} for secret in secrets.values())
        for _ in range(MESSAGES_PER_S // MAX_MESSAGES):
            assert (await send(running, many, **ann)).status == 200
        refused = await send(running, many, **ann)
        assert (refused.status, refused.code) == (429, "too_many_messages")
        assert refused.headers["retry-after"] == "1"
        assert (await send(running, ONE, **bob)).status == 200, "each token has its own rate"
        assert running.context.http.refusals["messages"] == 1


async def test_each_message_is_a_line_of_the_log_without_its_body(
    running: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    with structlog.testing.capture_logs() as lines:
        messages = [{"to": "ann", "body": "canary"}, {"to": "bob", "device": "tv", "body": "canary"}]
        await send(running, {"from": "@shop", "messages": messages})
        await send(running, {**ONE, "from": ""})
    audit = [line for line in lines if line["event"] == "audit"]
    assert [
        (each["uid"], each["device"], each["outcome"], each.get("status"), each.get("sender"))
        for each in audit
    ] == [
        ("ann", None, "done", "delivered", "@shop"),
        ("bob", "tv", "failed", "offline", "@shop"),
        (None, None, "refused", None, None),
    ]
    assert {each["action"] for each in audit} == {"message"}
    assert [each["bytes"] for each in audit[:2]] == [27, 27], "as a client would send it"
    assert "canary" not in str(lines)


async def test_a_message_that_takes_too_long_is_unknown_and_too_many_at_once_are_busy(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def wait(_: object, messages: list[Message], **__: object) -> list[Outcome]:
        ends.wait(30)
        return [Outcome("delivered", 1)] * len(messages)

    monkeypatch.setattr(PresenceSender, "send_all", wait)
    monkeypatch.setattr(views, "SEND_TIMEOUT_S", 0.2)
    async with operators(redis_server.url) as running, trio.open_nursery() as nursery:
        assert (await send(running, ONE)).json()["status"] == "unknown"
        for _ in range(views.SEND_THREADS - 1):
            nursery.start_soon(send, running, ONE)
        await until(lambda: not running.app.sources.queries._sending.available_tokens)
        response = await send(running, ONE)
        assert (response.status, response.code) == (503, "busy")
        ends.set()


async def test_an_error_means_that_nothing_was_sent(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operators() as running:
        answered = await send(running, ONE)
        assert (answered.status, answered.code) == (503, "redis_away")
        assert running.context.http.actions["message", "failed"] == 1
    sender = PresenceSender(redis_server.url, "@shop")
    monkeypatch.setattr(
        "presence.store.redis_store.Deliveries.deliver", lambda *_: [StoreInterrupted("broke")]
    )
    with sender:
        assert sender.send("ann", 1) == Outcome("unknown")
