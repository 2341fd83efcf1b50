"""Each error reply through the real store and the relay: what is tried again, and what is not."""

from collections.abc import Callable

import redis
import structlog
import trio

from presence.comparison import Memory
from presence.outbox import Outbox
from presence.relay import Relay, Verdicts
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from tests.store.driving import login, story
from tests.store.refusing import RefusingFront
from tests.store.test_failures import CASES, front

__all__ = ["front"]  # fixtures


async def test_the_relay_tries_again_after_each_code_and_counts_and_reports_what_does_not_pass(
    front: RefusingFront, nursery: trio.Nursery
) -> None:
    outbox = Outbox(lambda _uid: 0, 1, max_items=1000)
    store = RedisStore(front.url, Shape(Keys(), maxlen=1000, seen_retention_ms=10**13))
    nothing = Memory(lambda: (), lambda _name: None)
    verdicts = Verdicts(lambda _: None, lambda _: None, lambda: "another")
    relay = Relay(outbox, store, node="a", live=lambda _: (), verdicts=verdicts, memory=nothing)
    await relay.start()
    nursery.start_soon(relay.run)
    counted, logged = {}, {}
    for code, case in CASES.items():
        before = relay.statistics()
        with structlog.testing.capture_logs() as lines:
            front.refusal = case.reply
            outbox.append(login(f"u-{code}", "s1"))
            await until(lambda before=before: relay.statistics().retries >= before.retries + 2)  # type: ignore[misc]
            front.refusal = ""
            await until(lambda: relay.statistics().connected and not outbox.held)
        after = relay.statistics()
        counted[code] = after.errors - before.errors == after.retries - before.retries
        logged[code] = [line["log_level"] for line in lines]
        assert case.reply.partition(" ")[2] in after.last_error
    nursery.cancel_scope.cancel()
    store.close()
    assert counted == {code: not case.passing for code, case in CASES.items()}
    assert logged == {code: ["warning" if case.passing else "error", "info"] for code, case in CASES.items()}
    client = redis.Redis.from_url(front.url, protocol=2)
    assert story(client) == [("online", f"u-{code}", "login") for code in CASES]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - real time, and the relay tells nobody
            await trio.sleep(0.01)
