"""Questions to nodes on a Redis Cluster."""

from contextlib import ExitStack

from presence.store.questions import NodeAnswers
from tests.store.test_questions import asked
from tests.support.nodes_that_answer import answer, listening
from tests.support.redis_cluster import Cluster


def test_in_a_cluster_each_node_hears_and_answers_wherever_it_is(redis_cluster: Cluster) -> None:
    uids = [f"user-{n}" for n in range(12)]  # of several servers
    names = [f"n{n}" for n in range(4)]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(listening(redis_cluster.url, name, answer(name), shards=16))
        for uid in uids:
            heard = asked(redis_cluster.url, uid, *names, shards=16)
            assert (set(heard.answers), set(heard.not_listening)) == (set(names), set())


def test_in_a_cluster_nobody_knows_who_is_deaf(redis_cluster: Cluster) -> None:
    assert asked(redis_cluster.url, "ann", "gone", wait_s=0.2, shards=16) == NodeAnswers()
