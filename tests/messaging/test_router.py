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
from presence.messaging.letters import Delivery
from presence.messaging.queue import MAX_ITEMS_PER_CALL, RETRY_DELAY_S, QueueBounds
from presence.messaging.router import GATHER_S, MESSAGE_TIMEOUT_S, RETRY_MAX_S
from presence.store.keys import Keys
from tests.messaging.desks import CALL_S, HERE, Office

SOON_S = CALL_S + 0.0001
BOTH_TRIES_S = RETRY_DELAY_S + 2 * CALL_S + 0.001


@asynccontextmanager
async def working(office: Office) -> AsyncIterator[Office]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.router.run)
        await trio.testing.wait_all_tasks_blocked()
        yield office
        nursery.cancel_scope.cancel()


def frame(body: Any, sender: str = "ann") -> bytes:
    return protocol.encode(protocol.deliver(sender, body, 5))


async def test_a_message_goes_to_every_session_wherever_it_is(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, _, _ = office.log_in("ann"), office.log_in("bob"), office.log_in("bob", "phone")
        office.bus.records["bob"] = {HERE: ["", "phone"], "n2": ["tv", "car"], "n3": ["watch"]}
        begun_ms = office.clock.seen_ms(trio.current_time())
        office.say(ann, "bob")
        await trio.sleep(SOON_S)
        assert office.answers("ann") == [(1, 5)]
        assert office.packets("bob") == [protocol.deliver("ann", "hello", begun_ms)]
        assert office.bodies("bob") == office.bodies("bob", "phone") == ["hello"]
        assert [(node, devices) for node, devices, _ in office.bus.sent] == [
            ("n2", ("tv", "car")),
            ("n3", ("watch",)),
        ]


@pytest.mark.parametrize(
    ("here", "elsewhere", "deaf", "outcome"),
    [
        (["phone"], {"n2": [""]}, set(), 2),  # Redis does not know of the session here yet
        (["phone"], {"n2": ["phone"]}, set(), 1),  # the device has gone elsewhere
        ([], {"n2": [""]}, {"n2"}, "busy"),
        ([], {}, set(), "recipient_offline"),
    ],
)
async def test_a_sender_is_told_how_many_got_it_or_why_nobody(
    autojump_clock: MockClock,
    here: list[str],
    elsewhere: dict[str, list[str]],
    deaf: set[str],
    outcome: int | str,
) -> None:
    async with working(Office()) as office:
        ann = office.log_in("ann")
        for device in here:
            office.log_in("bob", device)
        office.bus.records["bob"], office.bus.deaf = elsewhere, deaf
        office.say(ann, "bob", id=None)
        await trio.sleep(SOON_S)
        assert office.answers("ann") == ([(None, outcome)] if isinstance(outcome, int) else [])
        await trio.sleep(BOTH_TRIES_S)
        assert office.answers("ann") == [(None, outcome)], "without an id, as it was sent"
        assert office.bus.calls == [["bob"]] * (1 if isinstance(outcome, int) else 2)
        assert office.bodies("bob", "phone") == ["hello"] * (outcome == 2)


async def test_redis_is_told_who_has_a_connection_here_and_since_when(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob", "phone")
        office.part(office.log_in("bob"))
        await trio.sleep(2)
        office.log_in("bob", "tv")
        office.say(ann, "bob")
        office.say(ann, "cy")
        await trio.sleep(SOON_S)
        assert office.bus.here == {"bob": {"phone": 2000, "tv": 0}}


async def test_a_recipient_in_its_grace_may_return(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, bob = office.log_in("ann"), office.log_in("bob")
        office.bus.records["bob"] = {HERE: [""]}
        office.part(bob)
        office.say(ann, "bob")
        await trio.sleep(BOTH_TRIES_S)
        (refusal,) = office.packets("ann")
        assert refusal.payload["reason"] == "recipient_disconnected"
        assert refusal.payload["retry_after"] == pytest.approx(5.0 - BOTH_TRIES_S, abs=0.1)
        office.end(bob)
        office.say(ann, "bob", id=2)
        await trio.sleep(2 * BOTH_TRIES_S)
        assert office.answers("ann")[-1] == (2, "recipient_offline")


async def test_what_follows_to_the_same_recipient_waits_behind_a_second_look(
    autojump_clock: MockClock,
) -> None:
    async with working(Office()) as office:
        ann = office.log_in("ann")
        office.say(ann, "bob", "first", id=1)
        await trio.sleep(SOON_S)
        office.bus.records["bob"] = {"n2": [""]}
        office.log_in("cy")
        office.say(ann, "bob", "second", id=2)
        office.say(ann, "cy", id=3)
        await trio.sleep(GATHER_S + SOON_S)
        assert office.bus.sent == []
        assert office.answers("ann") == [(3, 1)], "others do not wait"
        await trio.sleep(BOTH_TRIES_S)
        sent = [protocol.decode(frame[4:]).payload["body"] for _, _, frame in office.bus.sent]
        assert sent == ["first", "second"]


async def test_each_of_those_that_follow_has_a_second_look_of_its_own(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann = office.log_in("ann")
        office.say(ann, "bob", id=1)
        await trio.sleep(RETRY_DELAY_S - 0.01)
        office.say(ann, "bob", id=2)
        await trio.sleep(0.01 + 2 * SOON_S)
        assert office.answers("ann") == [(1, "recipient_offline")]
        await trio.sleep(BOTH_TRIES_S)
        assert office.answers("ann") == [(1, "recipient_offline"), (2, "recipient_offline")]


async def test_one_call_carries_what_has_gathered_in_order(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob")
        for number in range(5):
            office.say(ann, "bob", number, id=number)
        await trio.sleep(SOON_S)
        assert office.bus.calls == [["bob"] * 5]
        assert [handle for handle, _ in office.wire.writes] == [("bob", ""), ("ann", "")], "one write each"
        assert office.bodies("bob") == [0, 1, 2, 3, 4]
        assert office.answers("ann") == [(number, 1) for number in range(5)]


async def test_calls_keep_a_distance(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob")
        for number in range(20):
            office.say(ann, "bob", number)
            await trio.sleep(GATHER_S / 10)
        await trio.sleep(GATHER_S + SOON_S)
        assert len(office.bus.calls) == 3
        assert office.bodies("bob") == list(range(20))


async def test_what_broke_off_in_the_middle_is_told_to_be_unknown_and_never_sent_again(
    autojump_clock: MockClock,
) -> None:
    async with working(Office()) as office:
        office.bus.failures = [StoreInterrupted("broke")]
        office.say(office.log_in("ann"), "bob")
        await trio.sleep(1)
        assert office.answers("ann") == [(1, "server_error")]
        assert office.bus.calls == [["bob"]]


async def test_others_have_turns_while_all_that_waits_is_refused(autojump_clock: MockClock) -> None:
    class Steps(trio.abc.Instrument):
        """Counts the messages refused in each step of a task."""

        def __init__(self) -> None:
            self.refused, self.most = 0, 0

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            refused = office.router.statistics().refused_busy
            self.most, self.refused = max(self.most, refused - self.refused), refused

    total = 4 * MAX_ITEMS_PER_CALL
    async with working(Office(QueueBounds(sender_items=total))) as office:
        ann, steps = office.log_in("ann"), Steps()

        def flood() -> None:
            office.bus.during = lambda: None
            for n in range(total - 1):
                office.say(ann, "bob", id=n)

        office.bus.during, office.bus.failures = flood, [StoreUnavailable("gone")]
        office.say(ann, "bob", id=total)
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(0.1)
        trio.lowlevel.remove_instrument(steps)
        assert steps.refused == total
        assert steps.most <= MAX_ITEMS_PER_CALL


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), StoreError("refused")])
async def test_while_redis_fails_messages_are_refused_with_a_time_to_return_and_then_go_on(
    autojump_clock: MockClock, failure: StoreUnavailable | StoreError
) -> None:
    async with working(Office()) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob")
        office.bus.failures = [failure]
        with structlog.testing.capture_logs() as logs:
            office.say(ann, "bob", id=1)
            await trio.sleep(1)
            office.say(ann, "bob", id=2)
            await trio.sleep(SOON_S)
            office.say(ann, "bob", id=3)
            await trio.sleep(GATHER_S + SOON_S)
        assert office.answers("ann") == [(1, "busy"), (2, 1), (3, 1)]
        assert 0 < office.packets("ann")[0].payload["retry_after"] <= RETRY_MAX_S
        assert [line["log_level"] for line in logs] == ["warning", "info"]


async def test_a_shard_that_is_away_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with working(Office(shards=2)) as office:
        keys = Keys(shards=2)
        ann, (here, there) = office.log_in("ann"), sorted(["bob", "cy"], key=keys.shard)
        assert keys.shard(here) != keys.shard(there)
        office.log_in(here)
        office.bus.failures = [StoreUnavailable("away")]
        office.say(ann, there, id=1)
        await trio.sleep(SOON_S)
        office.say(ann, here, id=2)
        office.say(ann, there, id=3)
        await trio.testing.wait_all_tasks_blocked()
        assert office.answers("ann") == [(1, "busy"), (3, "busy")], "at once"
        await trio.sleep(GATHER_S + SOON_S)
        assert office.answers("ann") == [(1, "busy"), (3, "busy"), (2, 1)]


async def test_what_has_waited_for_too_long_is_refused(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob")

        async def hang(blocking: Callable[[], Any]) -> Any:
            await trio.sleep(MESSAGE_TIMEOUT_S + 1)
            return blocking()

        office.router._thread.call = hang  # type: ignore[method-assign]  # a Redis that hangs, and comes back
        office.say(ann, "bob", id=1)
        await trio.sleep(SOON_S)
        office.say(ann, "bob", id=2)
        await trio.sleep(MESSAGE_TIMEOUT_S + 1)
        assert office.answers("ann") == [(1, 1), (2, "busy")]


async def test_beyond_a_bound_messages_are_refused_at_once_and_in_one_write(
    autojump_clock: MockClock,
) -> None:
    async with working(Office(QueueBounds(items=2))) as office:
        ann = office.log_in("ann")
        for number in range(5):
            office.say(ann, "bob", id=number)
        await trio.testing.wait_all_tasks_blocked()
        assert office.answers("ann") == [(number, "busy") for number in (2, 3, 4)]
        assert len(office.wire.writes) == 1


async def test_a_sender_who_has_gone_gets_no_answer_and_harms_nobody(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob")
        office.say(ann, "bob")
        office.end(ann)
        await trio.sleep(SOON_S)
        assert office.bodies("bob") == ["hello"]
        assert office.packets("ann") == []


async def test_what_another_node_sends_is_handed_to_the_devices_that_it_names(
    autojump_clock: MockClock,
) -> None:
    office = Office()
    for device in ("", "phone", "tv"):
        office.log_in("bob", device)
    office.part(office.log_in("dee"))  # in its grace
    office.router.deliver(
        [
            Delivery("bob", ("", "phone"), frame(1)),
            Delivery("bob", ("",), frame(2)),
            Delivery("cy", ("",), frame(3)),
            Delivery("dee", ("",), frame(4)),
        ]
    )
    assert [office.bodies("bob", device) for device in ("", "phone", "tv")] == [[1, 2], [1], []]
    assert len(office.wire.writes) == 2
    counted = office.router.statistics()
    assert (counted.delivered_here, counted.gone_meanwhile) == (3, 2)


async def test_every_message_has_one_outcome(autojump_clock: MockClock) -> None:
    async with working(Office(QueueBounds(items=4))) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob")
        office.say(ann, "bob")
        office.say(ann, "nobody")
        await trio.sleep(BOTH_TRIES_S)
        office.bus.failures = [StoreInterrupted("broke"), StoreUnavailable("away")]
        office.say(ann, "bob")
        await trio.sleep(1)
        for _ in range(5):
            office.say(ann, "bob")
        await trio.sleep(1)
        office.say(ann, "bob")
        counted = office.router.statistics()
        assert (counted.handed, counted.refused_offline, counted.unknown, counted.refused_busy) == (
            1,
            1,
            1,
            5,
        )
        assert counted.waiting == 1
        assert counted.taken == 9


# Mistakes of this server


async def test_a_call_that_fails_costs_the_messages_of_that_call_only(autojump_clock: MockClock) -> None:
    async with working(Office()) as office:
        ann, _ = office.log_in("ann"), office.log_in("bob")
        faulty = [LookupError("a mistake")]

        def fail() -> None:
            if faulty:
                raise faulty.pop()

        office.bus.during = fail
        office.say(ann, "bob", id=1)
        office.say(ann, "bob", id=2)
        await trio.sleep(0.1)
        office.say(ann, "bob", id=3)
        await trio.sleep(0.1)
        assert office.answers("ann") == [(1, "server_error"), (2, "server_error"), (3, 1)]
        assert office.router.statistics().waiting == 0
    assert office.faults.counts == {"message": 1}


async def test_a_connection_that_cannot_be_written_to_ends_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(Office()) as office:
        ann, bob, _ = office.log_in("ann"), office.log_in("bob"), office.log_in("bob", "phone")
        send = office.wire.send

        def fail_for_one(handle: Any, data: bytes) -> None:
            if handle == ("bob", ""):
                raise RuntimeError("a mistake")
            send(handle, data)

        monkeypatch.setattr(office.wire, "send", fail_for_one)
        office.say(ann, "bob")
        await trio.sleep(SOON_S)
        assert office.bodies("bob", "phone") == ["hello"]
        assert office.answers("ann") == [(1, 2)]
        assert office.ended == [bob]
