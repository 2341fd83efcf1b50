"""Recently ended sessions, for operators: kept within bounds, and every change is passed on."""

from presence.core.changes import Change, Op
from presence.core.profiles import PLAIN, Profile
from presence.server.recent_ends import KEEP_ENDS_S, MAX_ENDS_KEPT, RecentEnds
from tests.server.test_question_answers import explain
from tests.support.worlds import T, World

WALL_MS = 1_700_000_000_000
NOW = 1000.0


def change(op: Op, uid: str, session: str, at: float = NOW) -> Change:
    return Change(op, uid, "phone", session, 201 if op is Op.END else 1, at, WALL_MS + 5, WALL_MS, 30_000)


def test_ends_are_passed_on_and_kept_without_client_data() -> None:
    world = World()
    recent_ends = RecentEnds(world)
    end = change(Op.END, "ada", "s1")._replace(profile=Profile("away", meta="x" * 250))
    recent_ends.append(end)
    assert world.changes == [end]
    assert [each.profile for each in recent_ends.of_user("ada", NOW)] == [PLAIN]
    assert explain(world, ended=recent_ends.of_user)["ended"] == [
        {
            "device": "phone",
            "session": "s1",
            "code": 201,
            "reason": "idle_timeout",
            "at_ms": WALL_MS + 5,
            "last_packet_ms": WALL_MS,
            "idle_timeout_s": T,
            "deadline_ms": WALL_MS + 30_000,
        }
    ]


def test_ends_are_kept_in_bounded_number_and_time_with_the_latest_first() -> None:
    world = World()
    recent_ends = RecentEnds(world)
    for n in range(MAX_ENDS_KEPT + 5):
        recent_ends.append(change(Op.END, f"user-{n}", f"s{n}"))
    recent_ends.append(change(Op.END, "user-7", "later"))
    recent_ends.append(change(Op.LOGIN, "user-7", "again"))
    assert [each.session for each in recent_ends.of_user("user-7", NOW + KEEP_ENDS_S)] == ["later", "s7"]
    assert not recent_ends.of_user("user-5", NOW)
    assert recent_ends.of_user("user-6", NOW)
    assert len(recent_ends._ends) == MAX_ENDS_KEPT
    recent_ends.append(change(Op.END, "bob", "s2", NOW + KEEP_ENDS_S + 1))
    assert [each.uid for each in recent_ends._ends] == ["bob"]
