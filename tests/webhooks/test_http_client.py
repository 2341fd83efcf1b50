"""What a request looks like, and what its answer means."""

import errno
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine

import httpx2
import pytest
import trio

from presence.subscriber.events import Entry, Gap
from presence.webhooks import SIGNATURE_HEADER, verify
from presence.webhooks.http_client import Failure, WebhookClient
from tests.support.webhook_receiver import Event, WebhookReceiver

SECRET = b"a secret of the test"
URL = "https://receiver.test/events"
ITEM = Entry(3, "7-0", {"type": "offline", "uid": "ann", "code": "201", "at_ms": "5"})
Handler = Callable[[httpx2.Request], Coroutine[None, None, httpx2.Response]]


async def post(handler: Handler, *items: Entry | Gap) -> Failure | None:
    client = WebhookClient(URL, [SECRET], 10.0, transport=httpx2.MockTransport(handler), wall=lambda: 1000.5)
    try:
        return await client.post(items or [ITEM])
    finally:
        await client.close()


def answering(status: int, headers: dict[str, str] | None = None) -> Handler:
    async def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers=headers)

    return answer


async def test_a_request_carries_the_events_as_json_and_their_signature() -> None:
    found: list[httpx2.Request] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        found.append(request)
        return httpx2.Response(204)

    assert await post(answer, ITEM, Gap(3, "8-0", "trimmed", dropped=2)) is None
    (request,) = found
    assert (request.method, str(request.url)) == ("POST", URL)
    assert request.headers["Content-Type"] == "application/json"
    verify(request.headers[SIGNATURE_HEADER], request.content, SECRET, now_s=1000)
    assert json.loads(request.content) == {
        "events": [
            {"id": "7-0", "shard": 3, "type": "offline", "uid": "ann", "code": 201, "at_ms": 5},
            {"id": "8-0", "shard": 3, "type": "gap", "reason": "trimmed", "dropped": 2},
        ]
    }


@pytest.mark.parametrize("status", [300, 307, 400, 401, 404, 500, 501, 505, 599])
async def test_any_answer_but_2xx_is_a_failure_and_redirects_are_not_followed(status: int) -> None:
    failure = await post(answering(status, {"Location": URL}))
    assert failure == Failure(f"answered {status}")


@pytest.mark.parametrize(
    ("headers", "pause_s"), [({}, 0), ({"Retry-After": "7"}, 7), ({"Retry-After": "9" * 99}, 300)]
)
@pytest.mark.parametrize("status", [429, 502, 503, 504, *range(520, 528), 530])
async def test_a_receiver_that_asks_for_a_later_retry_or_gave_its_proxy_no_answer_is_away(
    status: int, headers: dict[str, str], pause_s: float
) -> None:
    assert await post(answering(status, headers)) == Failure(f"answered {status}", True, pause_s)


async def test_a_receiver_that_cannot_be_reached_is_away() -> None:
    async def refuse(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("Connection refused")

    failure = await post(refuse)
    assert failure is not None
    assert failure.is_away


LACKS = [
    (RuntimeError("can't start new thread"), "a higher limit of processes and threads"),
    (MemoryError(), "more memory is needed"),
    (OSError(errno.EMFILE, "Too many open files"), "a higher limit of open files"),
]


@pytest.mark.parametrize(("error", "remedy"), LACKS, ids=["thread", "memory", "descriptor"])
async def test_what_this_process_lacks_is_no_fault_of_the_events(error: Exception, remedy: str) -> None:
    async def fail(_request: httpx2.Request) -> httpx2.Response:
        raise error

    failure = await post(fail)
    assert failure is not None
    assert failure.is_away
    assert remedy in failure.error


async def test_each_of_many_shards_has_a_connection() -> None:
    shards = 110
    together = threading.Barrier(shards, timeout=20.0)

    def answer(_events: list[Event]) -> int:
        together.wait()  # no request is answered before all have come
        return 200

    target = WebhookReceiver(SECRET, answer)
    with target.running():
        client = WebhookClient(target.url, [SECRET], 15.0)
        failures: list[Failure | None] = []

        async def send() -> None:
            failures.append(await client.post([ITEM]))

        async with trio.open_nursery() as nursery:
            for _ in range(shards):
                nursery.start_soon(send)
        await client.close()
    assert failures == [None] * shards


async def test_a_receiver_that_does_not_even_refuse_a_connection_is_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def drop(request: httpx2.Request) -> httpx2.Response:
        await trio.sleep(request.extensions["timeout"]["connect"])
        raise httpx2.ConnectTimeout("")

    failure = await post(drop)
    assert failure is not None
    assert failure.is_away


async def test_a_lost_connection_is_a_failure() -> None:
    async def lose(_request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("Connection reset by peer")

    failure = await post(lose)
    assert failure == Failure("the connection failed: Connection reset by peer")


async def test_an_answer_that_trickles_in_is_given_up_in_time(autojump_clock: trio.testing.MockClock) -> None:
    class Trickle(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                await trio.sleep(1)
                yield b" "

    async def hang(_request: httpx2.Request) -> httpx2.Response:
        await trio.sleep_forever()
        raise AssertionError

    async def trickle(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Trickle())

    begun = trio.current_time()
    assert await post(hang) == Failure("no answer within 10 s")
    assert trio.current_time() - begun == pytest.approx(10)
    assert await post(trickle) is None  # its status is all that counts
