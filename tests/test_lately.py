"""What a node remembers of sessions that ended: no more than so many, and no longer than so long."""

from presence.changes import PLAIN, Change, Op, Profile
from presence.explaining import ENDS_MAX, KEPT_S, LatelyEnded

NOW = 1000.0


class Passed:
    """A sink."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def append(self, change: Change) -> None:
        self.changes.append(change)


def change(op: Op, uid: str, session: str, at: float = NOW) -> Change:
    return Change(op, uid, "", session, 201 if op is Op.END else 1, at, 5, 4, 30_000)


def test_an_end_is_forgotten_after_its_time() -> None:
    lately = LatelyEnded(Passed())
    lately.append(change(Op.END, "ann", "s1"))
    assert lately.of("ann", NOW + KEPT_S)
    assert not lately.of("ann", NOW + KEPT_S + 1)
    assert not lately._ends, "nor is it kept"
    lately.append(change(Op.END, "ann", "s1"))
    lately.append(change(Op.END, "bob", "s2", NOW + KEPT_S + 1))
    assert [each.uid for each in lately._ends] == ["bob"]


def test_what_a_client_said_of_itself_is_not_kept() -> None:
    sink = Passed()
    lately = LatelyEnded(sink)
    end = change(Op.END, "ann", "s1")._replace(profile=Profile(away=True, meta="x" * 250))
    lately.append(end)
    assert sink.changes == [end]
    assert [each.profile for each in lately.of("ann", NOW)] == [PLAIN]


def test_of_many_the_last_are_remembered() -> None:
    lately = LatelyEnded(Passed())
    for n in range(ENDS_MAX + 5):
        lately.append(change(Op.END, f"user-{n}", f"s{n}"))
    lately.append(change(Op.END, "user-7", "later"))
    lately.append(change(Op.LOGIN, "user-7", "again"))
    assert [each.session for each in lately.of("user-7", NOW)] == ["later", "s7"]
    assert not lately.of("user-5", NOW)
    assert lately.of("user-6", NOW)
    assert len(lately._ends) == ENDS_MAX
