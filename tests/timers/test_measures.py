from hypothesis import given
from hypothesis import strategies as st

from presence.timers.measures import COARSE_S, FINE_S, LatenessHistogram


@given(st.lists(st.floats(0, 9.9), min_size=1))
def test_percentiles_are_rounded_up_and_no_more_than_a_bucket(seconds: list[float]) -> None:
    histogram = LatenessHistogram()
    for start in range(0, len(seconds), 3):
        histogram.note(seconds[start : start + 3])
    figures = histogram.statistics()
    for share, told in ((0.5, figures.p50_s), (0.99, figures.p99_s)):
        exact = sorted(seconds)[max(0, -int(-share * len(seconds) // 1) - 1)]
        width_s = FINE_S if exact < 1000 * FINE_S else COARSE_S
        assert exact - 1e-9 <= told <= exact + width_s + 1e-9
    assert figures.count == len(seconds)
    assert figures.max_s == max(seconds)
    assert abs(figures.mean_s - sum(seconds) / len(seconds)) < 1e-9


def test_what_is_beyond_the_buckets_counts_as_the_maximum() -> None:
    histogram = LatenessHistogram()
    histogram.note([0.001, 60.0, 3600.0])
    figures = histogram.statistics()
    assert (figures.p50_s, figures.p99_s, figures.max_s) == (3600.0, 3600.0, 3600.0)


def test_nothing_counted_is_zeros() -> None:
    figures = LatenessHistogram().statistics()
    assert (figures.count, figures.mean_s, figures.p99_s, figures.max_s) == (0, 0.0, 0.0, 0.0)
