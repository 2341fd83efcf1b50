"""Absences by the entries of a stream, and what would have spared them."""

from collections import Counter
from collections.abc import Iterable

import pytest

from presence.ops import advise
from presence.ops.advise import Absences, Tally, share_below
from presence.protocol import Code

NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 10**9  # all entries are long past


def offline(
    uid: str, at_s: float, code: Code = Code.IDLE_TIMEOUT, silent_s: float = 30.5
) -> dict[bytes, bytes]:
    at_ms = NOW_MS + round(1000 * at_s)
    return {
        b"type": b"offline",
        b"uid": uid.encode(),
        b"code": b"%d" % code,
        b"at_ms": b"%d" % at_ms,
        b"last_seen_ms": b"%d" % (at_ms - round(1000 * silent_s)),
    }


def online(uid: str, at_s: float) -> dict[bytes, bytes]:
    return {b"type": b"online", b"uid": uid.encode(), b"at_ms": b"%d" % (NOW_MS + round(1000 * at_s))}


def tallied(entries: Iterable[dict[bytes, bytes]], until_ms: int = LATER_MS) -> Tally:
    tally = Tally(until_ms)
    tally.begin_shard()
    for fields in entries:
        tally.add(fields)
    return tally


def only(tally: Tally) -> Absences:
    (absences,) = tally.groups.values()
    return absences


@pytest.mark.parametrize(
    ("back_s", "expected"),
    [(0.0, (1, 1, 1)), (5.0, (1, 1, 1)), (5.1, (0, 1, 1)), (59.9, (0, 0, 1)), (60.1, (0, 0, 0))],
)
def test_a_return_counts_where_it_was_soon_enough(back_s: float, expected: tuple[int, ...]) -> None:
    found = only(tallied([offline("ann", 0), online("ann", back_s)]))
    assert (found.offline, tuple(map(found.returned, advise.WITHIN_S))) == (1, expected)
    assert found.away_ds.total() == expected[-1]


def test_a_user_who_is_back_before_the_decision_was_not_away() -> None:
    found = only(tallied([offline("ann", 1), online("ann", 0.5)]))
    assert found.away_ds == Counter([0])


def test_only_the_same_user_returns() -> None:
    found = only(tallied([offline("ann", 0), online("bob", 1)]))
    assert (found.offline, found.returned(60)) == (1, 0)


def test_users_of_another_shard_do_not_return() -> None:
    tally = tallied([offline("ann", 0)])
    tally.begin_shard()
    tally.add(online("ann", 1))
    assert only(tally).returned(60) == 0


def test_two_absences_of_a_user_count_twice() -> None:
    found = only(tallied([offline("ann", 0), online("ann", 1), offline("ann", 50), online("ann", 53)]))
    assert (found.offline, found.returned(5)) == (2, 2)


@pytest.mark.parametrize(
    ("silent_s", "idle_timeout_s"),
    [(5.4, 5), (9.9, 9), (10.9, 10), (30.0, 30), (31.0, 30), (45.9, 45), (120.5, 120), (1350.9, 1350)],
)
def test_the_silence_tells_the_idle_time_out(silent_s: float, idle_timeout_s: int) -> None:
    assert only(tallied([offline("ann", 0, silent_s=silent_s)])).idle_timeout_s == idle_timeout_s


def test_reasons_and_idle_time_outs_are_apart() -> None:
    codes = [(Code.IDLE_TIMEOUT, 30.5), (Code.IDLE_TIMEOUT, 120.5), (Code.CLOSED, 17), (Code.CLOSED, 5)]
    tally = tallied(offline(f"u{n}", n, code, silent_s) for n, (code, silent_s) in enumerate(codes))
    counts = {key: each.offline for key, each in tally.groups.items()}
    assert counts == {(201, 30): 1, (201, 120): 1, (200, None): 2}


def test_idle_time_outs_beyond_the_bound_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advise, "MAX_GROUPS", 2)
    tally = tallied(offline(f"u{n}", n, silent_s=100 * n) for n in (1, 2, 3, 4))
    assert {key: each.offline for key, each in tally.groups.items()} == {
        (201, 100): 1,
        (201, 200): 1,
        (201, None): 2,
    }


def test_users_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advise, "MAX_AWAITED", 2)
    tally = tallied([*(offline(f"u{n}", 0) for n in range(3)), *(online(f"u{n}", 1) for n in range(3))])
    assert (tally.forgotten, only(tally).returned(5)) == (1, 2)


def test_who_may_still_return_is_left_out() -> None:
    tally = tallied([offline("ann", 0), offline("bob", 10)], until_ms=NOW_MS + 60_000)
    assert (tally.undecided, only(tally).offline) == (1, 1)


def test_a_gap_ends_all_absences_unknown() -> None:
    tally = tallied([offline("ann", 0), {b"type": b"gap"}, online("ann", 1)])
    assert (tally.gaps, only(tally).returned(60)) == (1, 0)


@pytest.mark.parametrize("damage", [b"code", b"at_ms", b"uid"])
def test_an_entry_that_lacks_a_field_is_skipped(damage: bytes) -> None:
    fields = offline("ann", 0)
    del fields[damage]
    tally = tallied([fields])
    assert (tally.unreadable, tally.groups) == (1, {})


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.9, 9), (0.91, 100), (1.0, 100)])
def test_a_share_is_below_a_value(share: float, expected: int) -> None:
    assert share_below(Counter([1, 1, 1, 1, 2, 9, 9, 9, 9, 100]), share) == expected
