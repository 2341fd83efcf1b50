"""An event that no handler accepts is retried, then becomes a dead letter; others are not delayed."""

from collections.abc import Iterable

import pytest

from presence.store.redis_client import Redis
from presence.subscriber import BlockingSubscription, Event, subscribe_sync
from tests.subscriber.streams import Streams, take, uids
from tests.subscriber.test_group import next_within


class Poisoned(Exception):
    """The error of the handler."""


def consumer(url: str, name: str = "c1", claim_idle: float = 60.0) -> BlockingSubscription[Event]:
    return subscribe_sync(url, group="g", consumer=name, max_deliveries=3, claim_idle=claim_idle)


def handle(event: Event) -> str:
    (uid,) = uids([event])
    if uid == "poison":
        raise Poisoned("password=hunter2 does not accept poison")
    return uid


def handle_all(events: Iterable[Event], handled: list[str]) -> None:
    for event in events:
        handled.append(handle(event))  # noqa: PERF401 - what was handled before an error counts


def handle_forever(events: BlockingSubscription[Event]) -> None:
    while True:
        handle(next_within(events))


@pytest.fixture
def poisoned(client: Redis) -> Streams:
    streams = Streams(client)
    streams.create_group()
    streams.write("a", "poison", "b", "c")
    return streams


def run(url: str, handled: list[str]) -> None:
    """A worker that ends with every error, as if a supervisor restarted it."""
    with consumer(url) as events:
        while (event := events.poll()) is not None:
            handled.append(handle(event))


def test_reentering_the_loop_gets_past_a_poisoned_event_without_a_reported_error(
    url: str, poisoned: Streams
) -> None:
    handled: list[str] = []
    with consumer(url) as events:
        for _ in range(3):
            with pytest.raises(Poisoned):
                handle_all(events, handled)
        handled += uids(take(events, 2))
    assert handled == ["a", "b", "c"]
    (letter,) = poisoned.dead()
    assert letter["error"] == "its consumer died, or left the loop without a word"


def test_a_restarted_worker_makes_a_poisoned_event_a_dead_letter_with_its_error(
    url: str, poisoned: Streams
) -> None:
    handled: list[str] = []
    for _ in range(3):
        with pytest.raises(Poisoned):
            run(url, handled)
    run(url, handled)
    assert handled == ["a", "b", "c"]
    assert poisoned.pending() == 0
    (letter,) = poisoned.dead()
    assert letter["uid"] == "poison"
    assert letter["type"] == "online"
    assert letter["original_id"] == "2-0"
    assert (letter["group"], letter["consumer"], letter["deliveries"]) == ("g", "c1", "3")
    assert letter["error"] == "Poisoned: password=*** does not accept poison"


def test_prefetched_neighbours_do_not_count_as_failed(url: str, poisoned: Streams) -> None:
    poisoned.write(*(f"u{n}" for n in range(50)))
    for _ in range(3):
        with pytest.raises(Poisoned):
            run(url, [])
    with consumer(url) as events:
        rest = take(events, 52)
    assert max(event.deliveries for event in rest) <= 2
    assert len(poisoned.dead()) == 1


def test_a_handler_may_fail_an_event_and_continue(url: str, poisoned: Streams) -> None:
    handled: list[str] = []
    failures = 0
    with consumer(url, claim_idle=0.1) as events:
        while not poisoned.dead():
            if (event := events.poll()) is not None:
                try:
                    handled.append(handle(event))
                except Poisoned as error:
                    failures += 1
                    events.nak(event, 0.01, error)
    assert (handled, failures) == (["a", "b", "c"], 3)
    assert poisoned.dead()[0]["error"].startswith("Poisoned")


def test_a_poisoned_event_moves_between_consumers_and_becomes_a_dead_letter(
    url: str, poisoned: Streams
) -> None:
    for name in ("c1", "c2", "c3"):
        events = consumer(url, name, claim_idle=0.1)
        with pytest.raises(Poisoned):
            handle_forever(events)
        events.close()
    with consumer(url, "c4", claim_idle=0.1) as events:
        while poisoned.pending():
            events.poll()
    (letter,) = poisoned.dead()
    assert (letter["consumer"], letter["deliveries"]) == ("c3", "3")


def test_an_event_that_finally_succeeds_leaves_nothing_behind(url: str, poisoned: Streams) -> None:
    with pytest.raises(Poisoned):
        run(url, [])
    assert poisoned.client.hlen(poisoned.keys.errors(0, "g")) == 1
    with consumer(url) as events:
        for event in take(events, 3):
            events.ack(event)
    assert poisoned.client.hlen(poisoned.keys.errors(0, "g")) == 0
    assert poisoned.dead() == []
