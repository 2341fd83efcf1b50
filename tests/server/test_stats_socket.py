"""A worker answers over its stats socket, whatever the questions."""

import msgpack
import structlog
import trio

from presence.server.stats_socket import (
    StatsResponder,
    request,
    stats_socket_pair,
)

WAIT_S = 30.0


def fail() -> object:
    raise LookupError("no such figure")


async def test_failing_stats_requests_are_rate_limited_in_the_log_and_end_no_task() -> None:
    asking, answering = stats_socket_pair()
    with asking, answering, structlog.testing.capture_logs() as logs:
        responder = StatsResponder(answering, {"fail": fail, "work": lambda: 7})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(responder.run)
            line = trio.socket.from_stdlib_socket(asking)
            for number in range(20):
                await line.send(request(number, "fail", {}))
            unknown, wrong = request(20, "nothing", {}), request(21, "work", {"a": 1})
            for request_bytes in (b"", b"\xc1", b"\x91" * 2_000, unknown, wrong, request(22, "work", {})):
                await line.send(request_bytes)
            with trio.fail_after(WAIT_S):
                assert msgpack.unpackb(await line.recv(100)) == [22, 7]
            nursery.cancel_scope.cancel()
    assert responder.asked == 26
    assert {line["event"] for line in logs} == {"stats request failed"}
    assert len(logs) < 10, "one line a second"
