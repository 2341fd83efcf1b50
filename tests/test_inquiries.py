"""The worker's end of the line: what it is asked is answered, or passed over."""

import msgpack
import structlog
import trio

from presence.inquiries import Inquiries, line_pair, question

PATIENCE_S = 30.0


def fail() -> object:
    raise LookupError("no such figure")


async def test_what_cannot_be_answered_fills_no_log_and_ends_nobody() -> None:
    asking, answering = line_pair()
    with asking, answering, structlog.testing.capture_logs() as logs:
        inquiries = Inquiries(answering, {"fail": fail, "work": lambda: 7})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inquiries.run)
            line = trio.socket.from_stdlib_socket(asking)
            for number in range(20):
                await line.send(question(number, "fail", {}))
            for said in (
                b"",
                b"\xc1",
                b"\x91" * 2_000,
                question(20, "nothing", {}),
                question(21, "work", {"a": 1}),
            ):
                await line.send(said)
            await line.send(question(22, "work", {}))
            with trio.fail_after(PATIENCE_S):
                assert msgpack.unpackb(await line.recv(100)) == [22, 7]
            nursery.cancel_scope.cancel()
    assert inquiries.asked == 26
    assert {line["event"] for line in logs} == {"inquiry failed"}
    assert len(logs) < 10, "one a second"
