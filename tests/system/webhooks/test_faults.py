"""A short run of the scenario; `.ci/nightly` has a long one."""

from tests.system.webhooks.__main__ import run


def test_nothing_is_lost_or_out_of_order_while_runner_and_receiver_are_killed() -> None:
    verdict = run(events=3000, shards=4, batch=10)
    assert verdict.broken == []
    assert verdict.written == 3000
