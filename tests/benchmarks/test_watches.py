"""The graph of the benchmark `watches`, and its judge of views and pushes."""

from array import array
from dataclasses import replace

import pytest

from benchmarks.watches.crowd import STATUS_NUMBERS, CrowdLog, CrowdStatus, Views, entry_id_number
from benchmarks.watches.friends import rows
from benchmarks.watches.graph import FriendGraph, distinct_friends, random_graph
from benchmarks.watches.truth import TrueState, UserChange, compare_views, judge_deliveries
from loadtest.outcome import BrokenPromises
from presence.protocol import Code

GRAPH = FriendGraph(0, array("I", [0, 2, 3, 4]), array("I", [1, 2, 0, 0]))  # 0 is the friend of 1 and of 2
ONLINE, OFFLINE = STATUS_NUMBERS["online"], STATUS_NUMBERS["offline"]
TRUTH = {0: TrueState("online", 10), 1: TrueState("online", 11), 2: TrueState("offline", 12)}
LEFT = UserChange(0, int(Code.LOGOUT), 20)


def views(**changes: object) -> Views:
    right = Views(
        GRAPH,
        array("q", [11, 12, 10, 10]),
        bytearray([ONLINE, OFFLINE, ONLINE, ONLINE]),
        bytearray([ONLINE, ONLINE, OFFLINE]),
        bytearray([1, 1, 1]),
        ["a", "a", "b"],
    )
    return replace(right, **changes)  # type: ignore[arg-type]


def log(*pushes: tuple[int, int, int, float], actions: tuple[tuple[int, int, float], ...] = ()) -> CrowdLog:
    """Return what was seen, as watcher, user, id, time, and done, as user, code, time."""
    found = CrowdLog()
    for watcher, user, id, at in pushes:
        found.push_watchers.append(watcher)
        found.push_users.append(user)
        found.push_ids.append(id)
        found.push_at.append(at)
    for user, code, at in actions:
        found.action_users.append(user)
        found.action_codes.append(code)
        found.action_ids.append(0)
        found.action_at.append(at)
    return found


def test_friends_are_mutual_distinct_and_others() -> None:
    graph = random_graph(200, 12)
    for user in range(200):
        friends = [*graph.friends_of(user)]
        assert friends == sorted({*friends} - {user})
        assert all(user in graph.friends_of(friend) for friend in friends)


def test_the_mean_number_of_friends_is_about_the_wanted_one() -> None:
    assert len(random_graph(3000, 30).friends) / 3000 == pytest.approx(30, rel=0.05)


def test_one_seed_gives_one_graph() -> None:
    assert random_graph(100, 5, 3) == random_graph(100, 5, 3)
    assert random_graph(100, 5, 3) != random_graph(100, 5, 4)


def test_a_part_of_a_graph_has_the_same_friends() -> None:
    graph = random_graph(50, 8)
    part = graph.part(20, 35)
    assert [[*part.friends_of(user)] for user in range(20, 35)] == [
        [*graph.friends_of(user)] for user in range(20, 35)
    ]
    friend = part.friends_of(21)[-1]
    assert part.friends[part.edge(21, friend)] == friend


def test_an_edge_to_a_stranger_is_an_error() -> None:
    with pytest.raises(KeyError):
        GRAPH.edge(1, 2)


def test_a_friend_of_several_counts_once_for_their_group() -> None:
    assert distinct_friends(GRAPH, [0, 0, 1]) == {0: 3, 1: 1}


def test_right_views_are_compared_and_nothing_is_noted() -> None:
    found = BrokenPromises()
    assert compare_views([views()], TRUTH, found) == 4
    assert not found.counts


@pytest.mark.parametrize(
    "wrong",
    [{"ids": array("q", [11, 12, 9, 10])}, {"statuses": bytearray([ONLINE, ONLINE, ONLINE, ONLINE])}],
)
def test_a_view_with_another_id_or_status_is_noted(wrong: dict[str, object]) -> None:
    found = BrokenPromises()
    compare_views([views(**wrong)], TRUTH, found)
    assert found.counts.total() == 1


def test_views_of_a_client_that_does_not_watch_are_not_compared() -> None:
    found = BrokenPromises()
    old = views(is_watching=bytearray([0, 1, 1]), ids=array("q", [0, 0, 10, 10]))
    assert compare_views([old], TRUTH, found) == 2
    assert not found.counts


def test_a_state_without_an_id_is_compared_by_its_status() -> None:
    found = BrokenPromises()
    compare_views([views()], TRUTH | {2: TrueState("offline", 0)}, found)
    assert not found.counts


def test_each_delivery_has_the_time_from_what_the_client_did() -> None:
    one = log((1, 0, 20, 5.5), (2, 0, 20, 6.0), actions=((0, int(Code.LOGOUT), 5.0),))
    found = judge_deliveries(GRAPH, [LEFT], [one], [1, 1, 1])
    assert found.latencies_s == {"logout": [0.5, 1.0]}
    assert (found.pushes, found.expected, found.missing, found.unmatched) == (2, 2, 0, 0)


def test_a_push_that_a_steady_watcher_has_not_got_is_missing() -> None:
    one = log((1, 0, 20, 5.5), actions=((0, int(Code.LOGOUT), 5.0),))
    assert judge_deliveries(GRAPH, [LEFT], [one], [1, 1, 1]).missing == 1


def test_nothing_is_expected_of_a_watcher_that_came_meanwhile() -> None:
    one = log((1, 0, 20, 5.5), actions=((0, int(Code.LOGOUT), 5.0),))
    found = judge_deliveries(GRAPH, [LEFT], [one], [1, 1, 0])
    assert (found.expected, found.missing) == (1, 0)


@pytest.mark.parametrize(("changes", "actions"), [([LEFT], ()), ([], ((0, int(Code.LOGOUT), 5.0),))])
def test_an_event_and_what_a_client_did_belong_together(
    changes: list[UserChange], actions: tuple[tuple[int, int, float], ...]
) -> None:
    assert judge_deliveries(GRAPH, changes, [log(actions=actions)], [0, 0, 0]).unmatched == 1


def test_the_end_of_a_silent_session_has_no_latency() -> None:
    expired = UserChange(0, int(Code.IDLE_TIMEOUT), 20)
    one = log((1, 0, 20, 5.5), actions=((0, int(Code.IDLE_TIMEOUT), 5.0),))
    assert judge_deliveries(GRAPH, [expired], [one], [1, 0, 0]).latencies_s == {}


def test_rows_give_user_status_and_id() -> None:
    given = ["user-000001", ["user-000002"], ["user-000003", "online", None, 7, 1, 0, 3]]
    assert [*rows(given)] == [
        (1, "offline", 0),
        (2, "offline", 0),
        (3, "online", entry_id_number("7-1")),
    ]


def test_everyone_has_a_friend() -> None:
    graph = random_graph(300, 1.2)
    assert all(graph.friends_of(user) for user in range(300))


def test_a_crowd_that_is_not_done_is_reported_by_counts_only() -> None:
    shown = repr(CrowdStatus(watching=7, watch_s=[0.123] * 5000))
    assert "watching=7" in shown
    assert len(shown) < 500
