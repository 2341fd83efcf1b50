"""Workers asked over their sockets: together, once for all callers, with a time limit."""

import socket
from collections.abc import Iterator

import msgpack
import pytest
import trio

from presence.admin import workers as module
from presence.admin.responses import ApiError
from presence.admin.workers import Workers
from presence.server.stats_socket import REQUEST_BYTES, stats_socket_pair
from tests.admin.asking import operators

PATIENCE_S = 20.0
Ends = list[tuple[socket.socket, socket.socket]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    pairs = [stats_socket_pair(), stats_socket_pair()]
    yield pairs
    for each in (*pairs[0], *pairs[1]):
        each.close()


@pytest.fixture
def workers(ends: Ends, nursery: trio.Nursery) -> Workers:
    workers = Workers([asking for asking, _ in ends], 1)
    nursery.start_soon(workers.run)
    return workers


async def answer(end: socket.socket, sample: object) -> None:
    """Answer one request."""
    line = trio.socket.from_stdlib_socket(end)
    number, _, _ = msgpack.unpackb(await line.recv(REQUEST_BYTES))
    await line.send(msgpack.packb([number, sample]))


async def test_all_workers_are_asked_and_a_silent_one_delays_the_rest_briefly(
    ends: Ends, workers: Workers, nursery: trio.Nursery
) -> None:
    nursery.start_soon(answer, ends[0][1], {"sessions": 3})
    started = trio.current_time()
    answers = await workers.samples()
    assert trio.current_time() - started < module.ANSWER_TIMEOUT_S + 1
    assert [(each.number, each.sample) for each in answers] == [(1, {"sessions": 3}), (2, None)]
    assert (workers.requests, workers.unanswered, list(workers.answered_at)) == (2, 1, [1])


async def test_excess_explain_requests_are_busy(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPLAIN_QUEUE_TIMEOUT_S", 0.1)
    codes: list[str] = []

    async def ask() -> None:
        try:
            await workers.explain("ann")
        except ApiError as error:
            codes.append(error.code)

    async with trio.open_nursery() as asking:
        for _ in range(module.MAX_CONCURRENT_EXPLAINS + 3):
            asking.start_soon(ask)
    assert codes == ["busy"] * 3
    assert workers.requests == 2 * module.MAX_CONCURRENT_EXPLAINS


async def test_concurrent_callers_get_the_same_answer(
    ends: Ends, workers: Workers, nursery: trio.Nursery
) -> None:
    found = []

    async def ask() -> None:
        found.append(await workers.samples())

    async with trio.open_nursery() as asking:
        for _ in range(10):
            asking.start_soon(ask)
        for _, end in ends:
            nursery.start_soon(answer, end, {"sessions": 1})
    assert workers.requests == 2
    assert all(each is found[0] for each in found)
    assert await workers.samples(max_age_s=60) is found[0]


async def test_a_late_answer_is_dropped_but_shows_that_the_worker_is_alive(
    ends: Ends, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.05)
    assert [each.sample for each in await workers.samples()] == [None, None]
    await answer(ends[0][1], {"late": True})
    with trio.fail_after(10):
        while 1 not in workers.answered_at:  # noqa: ASYNC110 - there is no notification of it
            await trio.sleep(0.01)
    assert [each.sample for each in await workers.samples()] == [None, None]


async def test_answers_to_a_predecessor_are_ignored(
    ends: Ends, workers: Workers, nursery: trio.Nursery
) -> None:
    ends[0][1].send(msgpack.packb([1, {"old": True}]))
    ends[0][1].send(b"\xc1 nonsense")
    nursery.start_soon(answer, ends[0][1], {"new": True})
    nursery.start_soon(answer, ends[1][1], {"new": True})
    assert [each.sample for each in await workers.samples()] == [{"new": True}] * 2


async def test_a_full_socket_is_no_failure(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.001)
    for _ in range(600):
        assert [each.sample for each in await workers.samples()] == [None, None]
    assert workers.unanswered == workers.requests == 1200


async def test_readiness_reports_whether_clients_can_be_served_and_why_not() -> None:
    async with operators(workers=2) as running:
        for second, status, word in (
            ("ready", 200, "ready"),
            ("redis_away", 200, "degraded"),
            ("fenced", 503, "not_ready"),
            ("starting", 503, "not_ready"),
            ("draining", 503, "not_ready"),
        ):
            assert running.samples[1] is not None
            running.samples[1] = {**running.samples[1], "readiness": second}
            # The page's sampler may have asked a moment before.
            wanted = {"status": word, "workers": {"1": "ready", "2": second}}
            with trio.fail_after(PATIENCE_S):
                while (answered := await running.ask("/readyz")).json() != wanted:  # noqa: ASYNC110 - see above
                    await trio.sleep(0.05)
            assert answered.status == status
