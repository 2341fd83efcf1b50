"""The message router: recipients, answers to senders, and order; Redis is replaced by a fake."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from presence import protocol
from presence.common.errors import StoreError, StoreInterrupted, StoreUnavailable
from presence.core.registry import Handle
from presence.messaging.message_bus import (
    REPORT_TIME_S,
    Confirm,
    ConfirmationReport,
    Confirmed,
    Delivery,
    OutgoingMessage,
    ReplyAddress,
)
from presence.messaging.message_queue import MAX_ITEMS_PER_CALL, RETRY_DELAY_S, QueueBounds
from presence.messaging.router import GATHER_S, MESSAGE_TIMEOUT_S, RETRY_MAX_S
from presence.store.keys import Keys
from tests.messaging.desks import CALL_S, HERE, RouterHarness

SOON_S = CALL_S + 0.0001
BOTH_TRIES_S = RETRY_DELAY_S + 2 * CALL_S + 0.001


@asynccontextmanager
async def working(harness: RouterHarness) -> AsyncIterator[RouterHarness]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(harness.router.run)
        await trio.testing.wait_all_tasks_blocked()
        yield harness
        nursery.cancel_scope.cancel()


def frame(body: Any, sender: str = "ann") -> bytes:
    return protocol.encode(protocol.deliver(sender, body, 5))


async def test_a_message_goes_to_every_session_on_any_node(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, _, _ = harness.log_in("ann"), harness.log_in("bob"), harness.log_in("bob", "phone")
        harness.bus.records["bob"] = {HERE: ["", "phone"], "n2": ["tv", "car"], "n3": ["watch"]}
        begun_ms = harness.clock.seen_ms(trio.current_time())
        harness.send(ann, "bob")
        await trio.sleep(SOON_S)
        assert harness.answers("ann") == [(1, 5)]
        assert harness.packets("bob") == [protocol.deliver("ann", "hello", begun_ms)]
        assert harness.bodies("bob") == harness.bodies("bob", "phone") == ["hello"]
        assert [(node, devices) for node, devices, _ in harness.bus.sent] == [
            ("n2", ("tv", "car")),
            ("n3", ("watch",)),
        ]


@pytest.mark.parametrize(
    ("here", "elsewhere", "deaf", "outcome"),
    [
        (["phone"], {"n2": [""]}, set(), 2),  # Redis does not know of the local session yet
        (["phone"], {"n2": ["phone"]}, set(), 1),  # the device has moved to another node
        ([], {"n2": [""]}, {"n2"}, "busy"),
        ([], {}, set(), "recipient_offline"),
    ],
)
async def test_a_sender_gets_the_number_of_deliveries_or_the_reason_for_none(
    autojump_clock: MockClock,
    here: list[str],
    elsewhere: dict[str, list[str]],
    deaf: set[str],
    outcome: int | str,
) -> None:
    async with working(RouterHarness()) as harness:
        ann = harness.log_in("ann")
        for device in here:
            harness.log_in("bob", device)
        harness.bus.records["bob"], harness.bus.deaf = elsewhere, deaf
        harness.send(ann, "bob", id=None)
        await trio.sleep(SOON_S)
        assert harness.answers("ann") == ([(None, outcome)] if isinstance(outcome, int) else [])
        await trio.sleep(BOTH_TRIES_S)
        assert harness.answers("ann") == [(None, outcome)], "without an id, because the message had none"
        assert harness.bus.calls == [["bob"]] * (1 if isinstance(outcome, int) else 2)
        assert harness.bodies("bob", "phone") == ["hello"] * (outcome == 2)


async def test_a_sender_cannot_tell_an_invisible_recipient_from_one_who_is_offline(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")
        harness.bus.invisible = {"bob"}
        harness.send(ann, "bob", id=1)
        harness.send(ann, "eve", id=2)
        await trio.sleep(2 * BOTH_TRIES_S)
        assert sorted(harness.answers("ann")) == [(1, "recipient_offline"), (2, "recipient_offline")]
        assert harness.bodies("bob") == []


async def test_redis_gets_the_local_sessions_with_a_connection_and_their_ages(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob", "phone")
        harness.disconnect(harness.log_in("bob"))
        await trio.sleep(2)
        harness.log_in("bob", "tv")
        harness.send(ann, "bob")
        harness.send(ann, "cy")
        await trio.sleep(SOON_S)
        assert harness.bus.here == {"bob": {"phone": 2000, "tv": 0}}


async def test_a_recipient_in_its_grace_may_return(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, bob = harness.log_in("ann"), harness.log_in("bob")
        harness.bus.records["bob"] = {HERE: [""]}
        harness.disconnect(bob)
        harness.send(ann, "bob")
        await trio.sleep(BOTH_TRIES_S)
        (refusal,) = harness.packets("ann")
        assert refusal.payload["reason"] == "recipient_disconnected"
        assert refusal.payload["retry_after"] == pytest.approx(5.0 - BOTH_TRIES_S, abs=0.1)
        harness.end(bob)
        harness.send(ann, "bob", id=2)
        await trio.sleep(2 * BOTH_TRIES_S)
        assert harness.answers("ann")[-1] == (2, "recipient_offline")


async def test_later_messages_to_the_same_recipient_wait_for_the_retry(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness()) as harness:
        ann = harness.log_in("ann")
        harness.send(ann, "bob", "first", id=1)
        await trio.sleep(SOON_S)
        harness.bus.records["bob"] = {"n2": [""]}
        harness.log_in("cy")
        harness.send(ann, "bob", "second", id=2)
        harness.send(ann, "cy", id=3)
        await trio.sleep(GATHER_S + SOON_S)
        assert harness.bus.sent == []
        assert harness.answers("ann") == [(3, 1)], "other messages do not wait"
        await trio.sleep(BOTH_TRIES_S)
        sent = [protocol.decode(frame[4:]).payload["body"] for _, _, frame in harness.bus.sent]
        assert sent == ["first", "second"]


async def test_each_later_message_has_a_retry_of_its_own(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann = harness.log_in("ann")
        harness.send(ann, "bob", id=1)
        await trio.sleep(RETRY_DELAY_S - 0.01)
        harness.send(ann, "bob", id=2)
        await trio.sleep(0.01 + 2 * SOON_S)
        assert harness.answers("ann") == [(1, "recipient_offline")]
        await trio.sleep(BOTH_TRIES_S)
        assert sorted(harness.answers("ann")) == [(1, "recipient_offline"), (2, "recipient_offline")]


async def test_one_call_carries_the_queued_messages_in_order(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")
        for number in range(5):
            harness.send(ann, "bob", number, id=number)
        await trio.sleep(SOON_S)
        assert harness.bus.calls == [["bob"] * 5]
        written_to = [handle for handle, _ in harness.wire.writes]
        assert written_to == [harness.handle_of("bob"), harness.handle_of("ann")], "one write each"
        assert harness.bodies("bob") == [0, 1, 2, 3, 4]
        assert harness.answers("ann") == [(number, 1) for number in range(5)]


async def test_calls_keep_a_minimum_interval(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")
        for number in range(20):
            harness.send(ann, "bob", number)
            await trio.sleep(GATHER_S / 10)
        await trio.sleep(GATHER_S + SOON_S)
        assert len(harness.bus.calls) == 3
        assert harness.bodies("bob") == list(range(20))


async def test_the_outcome_of_an_interrupted_call_is_unknown_and_it_is_not_repeated(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness()) as harness:
        harness.bus.failures = [StoreInterrupted("broke")]
        harness.send(harness.log_in("ann"), "bob")
        await trio.sleep(1)
        assert harness.answers("ann") == [(1, "server_error")]
        assert harness.bus.calls == [["bob"]]


async def test_other_tasks_run_while_all_queued_messages_are_refused(autojump_clock: MockClock) -> None:
    class Steps(trio.abc.Instrument):
        """Counts the messages refused in each step of a task."""

        def __init__(self) -> None:
            self.refused, self.most = 0, 0

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            refused = harness.router.statistics().refused_busy
            self.most, self.refused = max(self.most, refused - self.refused), refused

    total = 4 * MAX_ITEMS_PER_CALL
    async with working(RouterHarness(QueueBounds(sender_items=total))) as harness:
        ann, steps = harness.log_in("ann"), Steps()

        def flood() -> None:
            harness.bus.during = lambda: None
            for n in range(total - 1):
                harness.send(ann, "bob", id=n)

        harness.bus.during, harness.bus.failures = flood, [StoreUnavailable("gone")]
        harness.send(ann, "bob", id=total)
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(0.1)
        trio.lowlevel.remove_instrument(steps)
        assert steps.refused == total
        assert steps.most <= MAX_ITEMS_PER_CALL


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), StoreError("refused")])
async def test_messages_during_an_outage_are_refused_with_a_retry_time_and_accepted_afterwards(
    autojump_clock: MockClock, failure: StoreUnavailable | StoreError
) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")
        harness.bus.failures = [failure]
        with structlog.testing.capture_logs() as logs:
            harness.send(ann, "bob", id=1)
            await trio.sleep(1)
            harness.send(ann, "bob", id=2)
            await trio.sleep(SOON_S)
            harness.send(ann, "bob", id=3)
            await trio.sleep(GATHER_S + SOON_S)
        assert harness.answers("ann") == [(1, "busy"), (2, 1), (3, 1)]
        assert 0 < harness.packets("ann")[0].payload["retry_after"] <= RETRY_MAX_S
        assert [line["log_level"] for line in logs] == ["warning", "info"]


async def test_an_unreachable_shard_does_not_delay_others(autojump_clock: MockClock) -> None:
    async with working(RouterHarness(shards=2)) as harness:
        keys = Keys(shards=2)
        ann, (here, there) = harness.log_in("ann"), sorted(["bob", "cy"], key=keys.shard)
        assert keys.shard(here) != keys.shard(there)
        harness.log_in(here)
        harness.bus.failures = [StoreUnavailable("away")]
        harness.send(ann, there, id=1)
        await trio.sleep(SOON_S)
        harness.send(ann, here, id=2)
        harness.send(ann, there, id=3)
        await trio.testing.wait_all_tasks_blocked()
        assert harness.answers("ann") == [(1, "busy"), (3, "busy")], "immediately"
        await trio.sleep(GATHER_S + SOON_S)
        assert harness.answers("ann") == [(1, "busy"), (3, "busy"), (2, 1)]


async def test_a_message_that_waited_too_long_is_refused(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")

        async def hang(blocking: Callable[[], Any], linger: Any = None) -> Any:
            await trio.sleep(MESSAGE_TIMEOUT_S + 1)
            return blocking()

        harness.router._redis.call = hang  # type: ignore[method-assign]  # a Redis that hangs, then answers
        harness.send(ann, "bob", id=1)
        await trio.sleep(SOON_S)
        harness.send(ann, "bob", id=2)
        await trio.sleep(MESSAGE_TIMEOUT_S + 1)
        assert harness.answers("ann") == [(1, 1), (2, "busy")]


async def test_messages_beyond_a_limit_are_refused_immediately_and_in_one_write(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness(QueueBounds(items=2))) as harness:
        ann = harness.log_in("ann")
        for number in range(5):
            harness.send(ann, "bob", id=number)
        await trio.testing.wait_all_tasks_blocked()
        assert harness.answers("ann") == [(number, "busy") for number in (2, 3, 4)]
        assert len(harness.wire.writes) == 1


async def test_a_sender_who_has_left_gets_no_answer_and_affects_no_other(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")
        harness.send(ann, "bob")
        harness.end(ann)
        await trio.sleep(SOON_S)
        assert harness.bodies("bob") == ["hello"]
        assert harness.packets("ann") == []


async def test_messages_from_another_node_go_to_the_named_devices(
    autojump_clock: MockClock,
) -> None:
    harness = RouterHarness()
    for device in ("", "phone", "tv"):
        harness.log_in("bob", device)
    harness.disconnect(harness.log_in("dee"))  # within its grace period
    harness.router.deliver(
        [
            Delivery("bob", ("", "phone"), frame(1)),
            Delivery("bob", ("",), frame(2)),
            Delivery("cy", ("",), frame(3)),
            Delivery("dee", ("",), frame(4)),
        ]
    )
    assert [harness.bodies("bob", device) for device in ("", "phone", "tv")] == [[1, 2], [1], []]
    assert len(harness.wire.writes) == 2
    counted = harness.router.statistics()
    assert (counted.delivered_here, counted.gone_meanwhile) == (3, 2)


async def test_every_message_has_one_outcome(autojump_clock: MockClock) -> None:
    async with working(RouterHarness(QueueBounds(items=4))) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")
        harness.send(ann, "bob")
        harness.send(ann, "unknown")
        await trio.sleep(BOTH_TRIES_S)
        harness.bus.failures = [StoreInterrupted("broke"), StoreUnavailable("away")]
        harness.send(ann, "bob")
        await trio.sleep(1)
        for _ in range(5):
            harness.send(ann, "bob")
        await trio.sleep(1)
        harness.send(ann, "bob")
        counted = harness.router.statistics()
        assert (counted.handed, counted.refused_offline, counted.unknown, counted.refused_busy) == (
            1,
            1,
            1,
            5,
        )
        assert counted.waiting == 1
        assert counted.taken == 9


# Errors of this server


async def test_a_call_that_fails_refuses_its_own_messages_only(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")
        faulty = [LookupError("a mistake")]

        def fail() -> None:
            if faulty:
                raise faulty.pop()

        harness.bus.during = fail
        harness.send(ann, "bob", id=1)
        harness.send(ann, "bob", id=2)
        await trio.sleep(0.1)
        harness.send(ann, "bob", id=3)
        await trio.sleep(0.1)
        assert harness.answers("ann") == [(1, "server_error"), (2, "server_error"), (3, 1)]
        assert harness.router.statistics().waiting == 0
    assert harness.faults.counts == {"message": 1}


async def test_a_call_that_cannot_be_made_is_no_fault_and_its_messages_may_be_sent_again(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob")

        def fail() -> None:
            raise StoreUnavailable("can't start new thread")

        harness.bus.during = fail
        harness.send(ann, "bob", id=1)
        await trio.sleep(0.1)
        assert harness.answers("ann") == [(1, "busy")]
    assert harness.faults.counts == {}


async def test_a_connection_that_cannot_be_written_to_ends_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(RouterHarness()) as harness:
        ann, bob, _ = harness.log_in("ann"), harness.log_in("bob"), harness.log_in("bob", "phone")
        send = harness.wire.send

        def fail_for_one(handle: Handle, data: bytes) -> None:
            if handle == harness.handle_of("bob"):
                raise RuntimeError("a mistake")
            send(handle, data)

        monkeypatch.setattr(harness.wire, "send", fail_for_one)
        harness.send(ann, "bob")
        await trio.sleep(SOON_S)
        assert harness.bodies("bob", "phone") == ["hello"]
        assert harness.answers("ann") == [(1, 2)]
        assert harness.ended == [bob]


# Confirmations

TOKEN = "0123456789abcdef" * 2


def number_of(harness: RouterHarness, uid: str, device: str = "") -> int:
    """Return the number by which a device is to confirm the last message."""
    number: int = harness.packets(uid, device)[-1].payload["confirm"]
    return number


async def test_an_answer_says_which_sessions_have_confirmed(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, phone = harness.log_in("ann"), harness.log_in("bob", "phone", confirms=True)
        harness.log_in("bob", "pc")
        harness.wire.acknowledged[harness.handle_of("bob", "pc")] = 0
        harness.bus.records["bob"] = {"n2": ["tv", "car"]}
        harness.send(ann, "bob", confirm_s=3)
        await trio.sleep(SOON_S)
        harness.router.confirmed_by_client(phone, [number_of(harness, "bob", "phone")])
        (message,) = harness.bus.messages
        assert message.confirm == Confirm(3, number_of(harness, "bob", "pc"), HERE)
        assert message.reply_to is not None
        report = ConfirmationReport(message.reply_to.token, 2, Confirmed(1, 1))
        harness.router.confirmed_by_nodes([report])
        await trio.sleep(2.9)
        assert harness.packets("ann") == []
        assert harness.router.statistics().awaited == 1
        await trio.sleep(0.2)
        (answer,) = harness.packets("ann")
        assert answer == protocol.ok(1, delivered=4, confirmed=2, by_app=2, unconfirmed=2)
        assert harness.router.statistics().awaited == 0


async def test_a_report_that_comes_before_the_answer_of_redis_counts(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann = harness.log_in("ann")
        harness.bus.records["bob"] = {"n2": [""]}

        def report_early(message: OutgoingMessage) -> None:
            assert message.reply_to is not None
            report = ConfirmationReport(message.reply_to.token, 1, Confirmed(1, 1))
            harness.router.confirmed_by_nodes([report])

        harness.bus.on_message = report_early
        harness.send(ann, "bob", confirm_s=3)
        await trio.sleep(SOON_S)
        assert harness.packets("ann") == [protocol.ok(1, delivered=1, confirmed=1, by_app=1, unconfirmed=0)]


async def test_a_node_that_never_reports_leaves_its_sessions_unconfirmed(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann = harness.log_in("ann")
        harness.bus.records["bob"] = {"n2": [""]}
        harness.send(ann, "bob", confirm_s=3)
        await trio.sleep(3 + REPORT_TIME_S + SOON_S + 0.001)
        assert harness.packets("ann") == [protocol.ok(1, delivered=1, confirmed=0, by_app=0, unconfirmed=1)]


async def test_errors_of_a_message_to_be_confirmed_come_as_ever(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann = harness.log_in("ann")
        harness.send(ann, "bob", confirm_s=30)
        await trio.sleep(BOTH_TRIES_S)
        assert harness.answers("ann") == [(1, "recipient_offline")]


async def test_later_messages_and_their_answers_do_not_wait_for_confirmations(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob", confirms=True)
        harness.send(ann, "bob", "first", id=1, confirm_s=30)
        harness.send(ann, "bob", "second", id=2)
        await trio.sleep(SOON_S)
        assert harness.bodies("bob") == ["first", "second"]
        assert harness.answers("ann") == [(2, 1)]


async def test_messages_that_wait_for_confirmations_count_for_their_sender_and_take_no_place_of_others(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness(QueueBounds(items=3, sender_items=2))) as harness:
        ann, amy = harness.log_in("ann"), harness.log_in("amy")
        bob = harness.log_in("bob", confirms=True)
        for id in (1, 2):
            harness.send(ann, "bob", id=id, confirm_s=30)
        await trio.sleep(SOON_S)
        harness.send(ann, "bob", id=3)
        for id in (1, 2):
            harness.send(amy, "bob", id=id)
        await trio.sleep(GATHER_S + SOON_S)
        assert harness.answers("ann") == [(3, "busy")]
        assert harness.answers("amy") == [(1, 1), (2, 1)]
        delivered = [each for each in harness.packets("bob") if "confirm" in each.payload]
        harness.router.confirmed_by_client(bob, [each.payload["confirm"] for each in delivered])
        await trio.sleep(SOON_S)
        assert harness.answers("ann")[1:] == [(1, 1), (2, 1)]
        harness.send(ann, "bob", id=4)
        await trio.sleep(GATHER_S + SOON_S)
        assert harness.answers("ann")[3:] == [(4, 1)]


async def test_a_sender_that_is_gone_gets_no_answer(autojump_clock: MockClock) -> None:
    async with working(RouterHarness()) as harness:
        ann, _ = harness.log_in("ann"), harness.log_in("bob", confirms=True)
        harness.send(ann, "bob", confirm_s=1)
        await trio.sleep(SOON_S)
        harness.end(ann)
        await trio.sleep(2)
        assert harness.packets("ann") == []
        assert (harness.router.statistics().awaited, harness.faults.counts) == (0, {})


@pytest.mark.parametrize("node", ["", "n2"])
async def test_confirmations_of_a_message_from_elsewhere_are_reported(
    autojump_clock: MockClock, node: str
) -> None:
    async with working(RouterHarness()) as harness:
        bob = harness.log_in("bob", confirms=True)
        address, confirm = ReplyAddress(TOKEN, 7), Confirm(3, 11, node)
        harness.router.deliver([Delivery("bob", ("", "gone"), frame(1), address, confirm)])
        immediately = [] if node else [(2, 1, None, "")]

        def reported() -> list[tuple[int, int, Confirmed | None, str]]:
            return [(each.devices, each.delivered, each.confirmed, each.to_node) for each in harness.reports]

        assert reported() == immediately, "a backend learns at once that it was delivered"
        await trio.sleep(1)
        harness.router.confirmed_by_client(bob, [11])
        assert reported() == [*immediately, (2, 1, Confirmed(1, 1), node)]


async def test_a_message_from_elsewhere_that_none_got_is_reported_immediately(
    autojump_clock: MockClock,
) -> None:
    async with working(RouterHarness()) as harness:
        address = ReplyAddress(TOKEN, 7)
        harness.router.deliver([Delivery("bob", ("",), frame(1), address, Confirm(3, 11, "n2"))])
        assert [(each.devices, each.confirmed) for each in harness.reports] == [(1, Confirmed(0, 0))]
