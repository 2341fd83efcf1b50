"""The FastAPI application on the page for subscribers, on asyncio."""

import json
from typing import Any

import anyio
import httpx2
import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.docs.pages import blocks, pages
from tests.subscriber.streams import Streams

PAGE = "docs/subscribers.md"
DEADLINE_S, POLL_S = 10.0, 0.01


def test_the_roster_follows_users_who_come_and_go(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESENCE_REDIS", redis_server.url)
    (text,) = [each.text for each in blocks(PAGE, pages()[PAGE]) if each.text.startswith("# roster.py")]
    names: dict[str, Any] = {}
    exec(text, names)
    record = {"since_ms": 1, "id": "0-1", "sessions": {"": {"session": "s", "node": "n", "login_ms": 1}}}

    async def use(streams: Streams) -> None:
        app = names["app"]
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app), base_url="http://roster.test"
            ) as browser,
        ):

            async def shows(*uids: str) -> None:
                with anyio.fail_after(DEADLINE_S):
                    while (await browser.get("/roster")).json() != [*uids]:  # noqa: ASYNC110 - by HTTP
                        await anyio.sleep(POLL_S)

            await shows("eve")  # of the snapshot
            streams.write("ann", "bob")
            await shows("ann", "bob", "eve")
            streams.write("ann", kind="offline")
            await shows("bob", "eve")

    with open_client(redis_server.url) as client:
        streams = Streams(client)
        client.hset(streams.keys.online(0), "eve", json.dumps(record))
        anyio.run(use, streams, backend="asyncio")
