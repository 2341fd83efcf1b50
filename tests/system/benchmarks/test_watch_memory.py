"""The bench of what watches cost a worker, small: all rows are measured."""

import pytest

from benchmarks.watch_memory import CROWD, STATES, measure, plans, table


@pytest.mark.nightly
def test_every_row_is_measured() -> None:
    found = [measure(plan) for plan in plans(3_000)]
    assert [each.plan.state for each in found[: len(STATES)]] == list(STATES)
    assert {each.plan.watchers for each in found} == {1, 3, 15, CROWD}
    assert all(each.watch_us > 0 and each.end_us > 0 and each.change_us > 0 for each in found)
    assert [each.further_bytes is None for each in found] == [each.plan.watchers == 1 for each in found]
    print(table(found))
