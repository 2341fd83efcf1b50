"""Who comes and goes all the time has longer and longer for it, and as long as everybody once it is quiet."""

import pytest

from presence.flapping import MINUTE_S, Flapping

GRACE, MOST, RETURNS = 5.0, 60.0, 6


def flapping(**others: int) -> Flapping:
    return Flapping(GRACE, RETURNS, MOST, **others)


def graces(table: Flapping, times: int, *, every_s: float, begin: float = 0.0) -> list[float]:
    """Lose the connection again and again, and come back half of the time later; return each grace."""
    found = []
    for number in range(times):
        at = begin + number * every_s
        found.append(table.lost("ada", at))
        table.returned("ada", at + every_s / 2)
    return found


@pytest.mark.parametrize(
    ("times", "every_s", "expected"),
    [(13, 3.0, [GRACE] * 7 + [10.0, 20.0, 40.0, MOST, MOST, MOST]), (60, 10.0, [GRACE] * 60)],
)
def test_the_seventh_return_within_a_minute_doubles_the_next_grace_and_each_later_one_again(
    times: int, every_s: float, expected: list[float]
) -> None:
    assert graces(flapping(), times, every_s=every_s) == expected


def test_each_quiet_minute_takes_a_doubling_back() -> None:
    table = flapping()
    graces(table, 10, every_s=3.0)  # 20 s, and the next would be 40, but for the last return
    last_return = 9 * 3.0 + 1.5
    assert table.lost("ada", last_return + 1) == MOST
    table.returned("ada", last_return + 2)
    quiet_from = last_return + 2
    assert table.lost("ada", quiet_from + MINUTE_S - 1) == MOST
    assert table.lost("ada", quiet_from + MINUTE_S) == 40.0
    assert table.lost("ada", quiet_from + 2 * MINUTE_S) == 20.0
    assert table.lost("ada", quiet_from + 60 * MINUTE_S) == GRACE


def test_a_login_of_whom_no_loss_is_known_is_no_return() -> None:
    table = flapping()
    for at in range(50):
        table.returned("ada", float(at))
    assert table.lost("ada", 50.0) == GRACE
    table.returned("ada", 51.0)
    for at in range(52, 100):
        table.returned("ada", float(at))
    assert table.lost("ada", 100.0) == GRACE


def test_an_end_tells_a_lengthened_grace_and_no_other() -> None:
    table = flapping()
    table.lost("ada", 0.0)
    assert table.lengthened_ms("ada") == 0
    table = flapping()
    graces(table, 7, every_s=3.0)
    assert table.lengthened_ms("ada") == 0, "it is here"
    assert table.lost("ada", 21.0) == 10.0
    assert table.lengthened_ms("ada") == 10_000
    assert table.lengthened_ms("bob") == 0
    assert table.lost(("ada", "phone"), 21.0) == GRACE, "another"
    assert table.statistics().lengthened == 1


@pytest.mark.parametrize(
    "off", [Flapping(GRACE, 0, MOST), Flapping(0.0, RETURNS, MOST), Flapping(GRACE, RETURNS, GRACE - 1)]
)
def test_where_it_is_off_every_grace_is_the_same_and_nothing_is_kept(off: Flapping) -> None:
    usual = off.lost("bob", 0.0)
    assert set(graces(off, 30, every_s=1.0)) == {usual}
    assert off.statistics().known == 0


def test_the_table_is_bounded_and_forgets_whose_last_loss_is_the_longest_ago() -> None:
    table = flapping(size=3)
    graces(table, 13, every_s=3.0)
    for at, key in enumerate(["bob", "eve"]):
        table.lost(key, 40.0 + at)
    assert table.lost("ada", 42.0) > GRACE
    table.lost("joe", 43.0)
    assert table.statistics().known == 3
    assert table.statistics().forgotten == 1
    assert table.lost("ada", 44.0) > GRACE, "bob had to go"
    for at, key in enumerate(["bob", "eve", "joe"]):
        table.lost(key, 45.0 + at)
    assert table.lost("ada", 48.0) == GRACE
