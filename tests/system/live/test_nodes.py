"""Several nodes on one Redis: killed, stopped, cut off, restarted, and a Redis that forgets; all of it short.

`python -m loadtest.nodes` plays the same with the default times.
"""

from loadtest.nodes.kill import kill
from loadtest.nodes.loss import losses
from loadtest.nodes.outage import outages
from loadtest.nodes.outcome import Outcome, table
from loadtest.nodes.rolling import workers
from loadtest.nodes.serving import Setup
from loadtest.nodes.stall import stalls

SETUP = Setup(idle_timeout=3, lease=2, tick=0.5, shards=2)  # a node is dead after 5 s


def assert_kept(*outcomes: Outcome) -> None:
    """All promises were kept, and none of it for want of a fault."""
    print(table(outcomes))
    assert [failure for each in outcomes for failure in each.failures] == []


def test_users_of_a_killed_worker_go_offline_once_unless_they_come_back() -> None:
    assert_kept(kill(SETUP, users=100, workers=3, away_s=1.0))


def test_nobody_who_beats_is_ended_by_a_stop_unless_a_peer_takes_the_node_for_dead() -> None:
    assert_kept(*stalls(Setup(idle_timeout=2, lease=2, tick=0.5), users=100, seconds=(2.5, 5.5)))


def test_an_outage_ends_nobody_unless_one_node_alone_is_cut_off() -> None:
    assert_kept(*outages(SETUP, users=200, seconds=7.0))


def test_a_redis_that_forgot_equals_the_live_sessions_soon() -> None:
    assert_kept(*losses(SETUP, users=200, settle_s=1.0))


def test_a_rolling_restart_tells_nobody() -> None:
    assert_kept(workers(Setup(idle_timeout=3, lease=4, tick=0.5), 300))
