"""The lag of pushes of the benchmark `rooms`: its judge, and what its clients do and note."""

from typing import Any

import pytest

from benchmarks.rooms.costs import LOBBY, uid
from benchmarks.rooms.push_lags import count_deliveries, member_deliveries
from benchmarks.rooms.visitors import WATCH_ID, CountSeen, Seen, Step, VisitorLoop
from presence.protocol import Kind

ANN, BOB = uid(0), uid(9)  # of the same ten: one that watches, and one that does not
GAME = "game-00000"


def step(at: float, user: str = BOB, *, is_member: bool = True, cause: str = "move") -> Step:
    return Step(user, GAME, is_member, at, cause)


def seen(at: float, user: str = BOB, *, is_member: bool = True, watcher: str = ANN) -> Seen:
    return Seen(watcher, user, GAME, is_member, at)


def test_a_lag_is_from_the_change_to_the_push_of_each_watcher_by_cause() -> None:
    steps = [step(1.0), step(4.0, is_member=False, cause="logout")]
    pushes = [seen(1.25), seen(1.5, watcher="eve"), seen(4.5, is_member=False)]
    found = member_deliveries(steps, pushes, {GAME: 2})
    assert found.lags_s == {"move": [0.25, 0.5], "logout": [0.5]}
    assert (found.expected, found.missing, found.unmatched) == (4, 1, 0)


def test_a_push_shows_the_last_such_change_before_it() -> None:
    steps = [step(5.0), step(1.0), step(3.0, is_member=False)]
    found = member_deliveries(steps, [seen(1.5), seen(3.25, is_member=False), seen(5.5)], {GAME: 1})
    assert found.lags_s["move"] == [0.5, 0.25, 0.5]
    assert found.missing == 0


def test_a_push_that_no_change_explains_is_noted() -> None:
    found = member_deliveries([step(2.0)], [seen(1.0), seen(3.0, is_member=False)], {GAME: 1})
    assert (found.unmatched, found.missing, found.every_s) == (2, 1, [])


@pytest.mark.parametrize("counts", [(102, 104), (98, 96)])
def test_a_count_shows_the_changes_that_were_sent_first(counts: tuple[int, int]) -> None:
    steps = [step(at) for at in (1.0, 1.25, 1.5, 3.0)]
    pushes = [
        CountSeen("eve", counts[1], 4.0),
        CountSeen(ANN, counts[0], 2.0),
        CountSeen(ANN, counts[1], 3.5),
    ]
    found = count_deliveries(100, steps, pushes, 2)
    assert sorted(found.every_s) == [0.5, 0.75, 1.0, 1.0, 2.0, 2.5, 2.75, 3.0]
    assert (found.expected, found.missing, found.unmatched) == (8, 0, 0)


def test_counts_that_are_not_shown_are_missing_and_others_unmatched() -> None:
    found = count_deliveries(100, [step(1.0), step(2.0)], [CountSeen(ANN, 101, 3.0)], 1)
    assert (found.missing, found.every_s) == (1, [2.0])
    assert count_deliveries(100, [step(1.0)], [CountSeen(ANN, 103, 3.0)], 1).unmatched == 2


def test_deliveries_add_up() -> None:
    one = member_deliveries([step(1.0)], [seen(1.5)], {GAME: 2})
    both = one + count_deliveries(100, [step(1.0, cause="lobby")], [CountSeen(ANN, 101, 2.0)], 1)
    assert both.lags_s == {"move": [0.5], "lobby": [1.0]}
    assert (both.expected, both.missing) == (3, 1)


def logged_in(clients: int) -> VisitorLoop:
    """Return clients that have no connection."""
    loop = VisitorLoop(("127.0.0.1", 1), range(clients), clients, [None], seed=1)
    for client in loop.clients:
        client.is_logged_in = client.is_present = True
    return loop


@pytest.fixture
def loop() -> VisitorLoop:
    return logged_in(10)


def rows(*given: list[Any]) -> dict[str, Any]:
    return {"rooms": given}


def test_a_client_keeps_the_members_that_it_is_shown_and_notes_the_changes(loop: VisitorLoop) -> None:
    client = loop.clients[0]
    client.on_packet(Kind.OK, WATCH_ID, rows([GAME, 2, [ANN, BOB]], [LOBBY, 5]), 1.0)
    assert not loop.log.seen
    client.on_packet(Kind.ROOMS, None, rows([GAME, 2, ["eve"], [BOB]], [LOBBY, 6]), 2.0)
    client.on_packet(Kind.ROOMS, None, rows([GAME, 2, [ANN, BOB]]), 3.0)
    assert [(each.uid, each.is_member, each.at) for each in loop.log.seen if each.at == 2.0] == [
        ("eve", True, 2.0),
        (BOB, False, 2.0),
    ]
    assert {(each.uid, each.is_member) for each in loop.log.seen if each.at == 3.0} == {
        ("eve", False),
        (BOB, True),
    }
    assert loop.log.counts == [CountSeen(ANN, 6, 2.0)]
    assert client.views == {GAME: {ANN, BOB}, LOBBY: 6}
    assert not loop.broken


def test_rows_that_contradict_themselves_and_refusals_are_noted(loop: VisitorLoop) -> None:
    loop.clients[0].on_packet(Kind.ROOMS, None, rows([GAME, 3, [ANN]]), 1.0)
    loop.clients[0].on_packet(Kind.ERROR, None, {"reason": "busy"}, 1.0)
    assert loop.broken.total() == 2


def test_views_are_compared_with_the_truth(loop: VisitorLoop) -> None:
    truth = loop.present_members()
    assert (len(truth[GAME]), len(truth[LOBBY])) == (10, 5)
    for client in loop.clients:
        client.views = {room: len(truth[room]) if room == LOBBY else truth[room] for room in client.watched}
    assert not loop.wrong_views(truth)
    assert len(loop.wrong_views(truth | {LOBBY: {ANN}})) == 1
    loop.clients[9].log_out()
    assert len(loop.wrong_views(loop.present_members())) == 5


@pytest.mark.parametrize("lobby_grows", [True, False])
def test_the_lobby_only_grows_or_only_shrinks(lobby_grows: bool) -> None:
    loop = logged_in(100)
    loop.start_changes(1000.0, lobby_grows=lobby_grows)
    loop.run(0.3)
    lobby = [each.is_member for each in loop.log.steps if each.room == LOBBY]
    assert lobby
    assert {*lobby} == {lobby_grows}
    assert {each.cause for each in loop.log.steps} == {"move", "lobby", "logout"}
    assert not [each for each in loop.log.steps if each.cause == "logout" and int(each.uid[-1]) < 5]
