"""What becomes of a client's requests, whatever happens meanwhile; the test controls the time."""

import time

import pytest

from presence import protocol
from presence.client import (
    Busy,
    ConnectionLost,
    Kicked,
    LimitReached,
    NotConnected,
    RecipientDisconnected,
    RecipientOffline,
    RequestError,
    RequestFailed,
    RequestTimeout,
    ServerFailed,
    State,
    Uncertain,
    Unsupported,
)
from presence.client.pending import SPARE_TIMES
from presence.protocol import Code, Packet
from tests.client.machine_driver import Driven


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.UNSUPPORTED, Unsupported),
        (Code.RECIPIENT_OFFLINE, RecipientOffline),
        (Code.RECIPIENT_DISCONNECTED, RecipientDisconnected),
        (Code.AUTH_FAILED, RequestFailed),
        (Code.RATE_LIMITED, Busy),
        (Code.BUSY, Busy),
        (Code.SERVER_ERROR, ServerFailed),
        (Code.TOO_LARGE, LimitReached),
    ],
)
def test_an_error_reply_is_typed(online: Driven, code: Code, error: type[RequestError]) -> None:
    id = online.ask(protocol.message("bob", "hi"))
    online.receive(protocol.error(id, code, "no"))
    assert type(online.answers[id]) is error


def test_a_failure_of_the_server_is_perhaps_carried_out_and_no_refusal(online: Driven) -> None:
    id = online.ask(protocol.message("bob", "hi"))
    online.receive(protocol.error(id, Code.SERVER_ERROR, "no", 2.0))
    failed = online.answers[id]
    assert isinstance(failed, ServerFailed)
    assert isinstance(failed, Uncertain)
    assert not isinstance(failed, RequestFailed)
    assert (failed.code, failed.reason, failed.message, failed.retry_after) == (
        403,
        "server_error",
        "no",
        2.0,
    )


def test_answers_match_their_requests_in_any_order(online: Driven) -> None:
    first, second = online.ask(protocol.message("bob", 1)), online.ask(protocol.message("bob", 2))
    online.receive(protocol.ok(second, delivered=2), protocol.ok(first, delivered=1))
    assert online.answers == {first: {"delivered": 1}, second: {"delivered": 2}}


def test_a_request_in_flight_when_the_client_is_ended_is_perhaps_carried_out(online: Driven) -> None:
    first, second = (online.ask(protocol.message("bob", n), retries=True) for n in (1, 2))
    online.receive(protocol.goodbye(Code.KICKED))
    assert isinstance(online.answers[first], ConnectionLost)
    assert isinstance(online.answers[second], Kicked), "it was not sent"


def test_a_request_times_out_during_a_logout_too(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]), 1.0)
    online.machine.log_out(None, online.now)
    online.note([])
    online.run(1.0)
    assert isinstance(online.answers[id], RequestTimeout)


def test_an_abandoned_watch_refused_as_too_large_is_no_reason_to_stay_away(online: Driven) -> None:
    id = online.ask(protocol.watch(["bob"]))
    online.machine.abandon_request(id)
    online.note([])
    online.receive(protocol.error(id, Code.TOO_LARGE, "too many"))
    online.lose()
    assert online.machine.state is State.WAITING


def cost_s(driven: Driven, count: int) -> float:
    """Return the processor time of one of so many requests in flight together, the least of three."""
    costs = []
    for _ in range(3):
        began = time.process_time()
        ids = [driven.machine.request(protocol.query(["bob"]), 10.0, driven.now) for _ in range(count)]
        for id in ids:
            assert driven.machine.deadline > driven.now
            driven.machine.received(protocol.encode(protocol.ok(id)), driven.now)
        costs.append(time.process_time() - began)
    return min(costs) / count


def test_the_cost_of_a_request_does_not_grow_with_those_in_flight(online: Driven) -> None:
    assert cost_s(online, 4000) < 3 * cost_s(online, 250)


def test_the_times_of_answered_requests_are_bounded(online: Driven) -> None:
    online.ask(protocol.query(["bob"]))  # never answered: the first in the order of times
    for _ in range(5000):
        online.receive(protocol.ok(online.ask(protocol.query(["bob"]), 20.0)))
    assert online.machine._connection is not None
    assert len(online.machine._connection._requests._times) <= 2 + SPARE_TIMES + 1


@pytest.mark.parametrize("packet", [protocol.query(["bob"], detail=True), protocol.watch(["bob"])])
def test_a_request_refused_as_too_large_is_no_reason_to_stay_away(online: Driven, packet: Packet) -> None:
    online.receive(protocol.error(online.ask(packet), Code.TOO_LARGE, "ask for fewer users"))
    online.lose()
    assert online.machine.state is State.WAITING


def test_a_request_without_an_answer_times_out_and_a_late_answer_is_dropped(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]), timeout_s=2.0)
    online.run(2.0)
    assert isinstance(online.answers[id], RequestTimeout)
    assert isinstance(online.answers[id], Uncertain)
    online.receive(protocol.ok(id, presence={}))
    assert online.machine.state is State.ONLINE


def test_a_lost_connection_fails_pending_requests(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]))
    online.lose()
    assert isinstance(online.answers[id], ConnectionLost)
    assert isinstance(online.answers[id], Uncertain)


def test_an_id_is_never_reused_by_a_later_connection(online: Driven) -> None:
    before = online.ask(protocol.query(["bob"]))
    online.lose()
    online.run(1.0)
    online.log_in()
    assert online.ask(protocol.query(["bob"])) > before


def test_a_request_while_offline_is_an_error(online: Driven) -> None:
    online.lose()
    with pytest.raises(NotConnected):
        online.ask(protocol.query(["bob"]))


def test_a_request_that_is_too_large_is_refused_locally(online: Driven) -> None:
    before = len(online.sent)
    with pytest.raises(protocol.EncodeError, match="over the limit"):
        online.ask(protocol.message("bob", "x" * 17_000))
    online.note([])
    assert len(online.sent) == before
