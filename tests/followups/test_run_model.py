"""The script against a small model: users come and go at random, time passes, schedulers alternate."""

from collections import Counter
from contextlib import closing
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from presence.config.followup_rules import Rule
from presence.followups import script_calls
from presence.store.redis_client import Redis
from tests.followups.shards import Shard

AFTER_MS, STEP_MS, EVENTS_A_RUN = 60_000, 40_000, 3
USERS = ("ann", "bob", "cy")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("moves"), st.sampled_from(USERS)),
        st.tuples(st.sampled_from(["run", "time"]), st.none()),
    ),
    max_size=25,
)


class Model:
    """What is to be delivered: a follow-up waits from the read of an offline event to that of the return."""

    def __init__(self) -> None:
        self.unread: list[tuple[str, str]] = []  # users, and the ids of their offline events; "" for online
        self.waiting: dict[str, tuple[str, int]] = {}  # by user: the event, and the time that is left
        self.delivered: Counter[str] = Counter()

    def run(self, online: set[str]) -> None:
        read, self.unread = self.unread[:EVENTS_A_RUN], self.unread[EVENTS_A_RUN:]
        due = (
            []
            if len(read) == EVENTS_A_RUN
            else [u for u, (_, left_ms) in self.waiting.items() if left_ms <= 0]
        )
        for uid, event in read:
            self.waiting.pop(uid, None)
            if event:
                self.waiting[uid] = (event, AFTER_MS)
        for uid in due:
            if uid in self.waiting and self.waiting[uid][1] <= 0:
                assert uid not in online
                self.delivered[self.waiting.pop(uid)[0]] += 1

    def pass_time(self) -> None:
        self.waiting = {uid: (event, left_ms - STEP_MS) for uid, (event, left_ms) in self.waiting.items()}


@settings(
    max_examples=2 * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(STEPS)
def test_the_script_delivers_what_the_model_does(
    client: Redis, url: str, steps: list[tuple[str, Any]]
) -> None:
    client.flushall()
    shard, model, online = Shard(client, url, [Rule("mail", AFTER_MS / 1000)]), Model(), set(USERS)
    size, script_calls.MAX_EVENTS_PER_RUN = script_calls.MAX_EVENTS_PER_RUN, EVENTS_A_RUN  # type: ignore[misc] # restored below
    try:
        with closing(shard.scheduler()) as one, closing(shard.scheduler()) as other:
            one.run_once()
            for number, (step, uid) in enumerate(steps):
                if step == "moves":
                    event = "" if uid not in online else shard.go_offline(uid)
                    if not event:
                        shard.come_online(uid)
                    online ^= {uid}
                    model.unread.append((uid, event))
                elif step == "time":
                    shard.pass_time(STEP_MS)
                    model.pass_time()
                else:
                    scheduler = (one, other)[number % 2]
                    shard.release_runner()
                    scheduler._due.clear()
                    scheduler.run_once()
                    assert scheduler.failure is None
                    model.run(online)
                    assert (
                        Counter(followup["offline_id"] for followup in shard.delivered()) == model.delivered
                    )
    finally:
        script_calls.MAX_EVENTS_PER_RUN = size  # type: ignore[misc] # see above
    waiting: Any = client.hlen("presence:{0}:followup:work")
    assert waiting == len(model.waiting) == client.zcard("presence:{0}:followup:due")
