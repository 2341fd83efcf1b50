"""What is logged and counted of failed rounds, and how often."""

from collections.abc import Sequence

import pytest
import structlog

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.outage import MAX_LOGGED_REFUSALS
from presence.outbox.outage_log import Failures, Outages, first_of

AWAY, REFUSED = StoreUnavailable("away"), StoreError("NOPERM")
UNREACHABLE, BACK = "Redis unreachable", "Redis reachable again"
Round = tuple[Failures, Sequence[float], int]  # failures, since when shards are unavailable, recovered ones


def logged(outages: Outages, rounds: Sequence[Round]) -> list[str]:
    """Record rounds at 10, 11, … seconds; return the events that were logged."""
    with structlog.testing.capture_logs() as lines:
        for now, (failures, since, recovered) in enumerate(rounds, 10):
            outages.record_round(failures, since, recovered, now=float(now), pending=3)
    return [line["event"] for line in lines]


@pytest.mark.parametrize(
    ("rounds", "events"),
    [
        ([([], [], 0)], []),
        (
            [([AWAY], [9.0], 0), ([AWAY], [9.0], 0), ([], [], 1)],
            [UNREACHABLE, BACK],
        ),
        # Another shard joins an outage, and one leaves it: it is still the same.
        (
            [([AWAY], [9.0], 0), ([AWAY, AWAY], [9.0, 11.0], 0), ([AWAY], [11.0], 1), ([], [], 1)],
            [UNREACHABLE, BACK],
        ),
        # A refusal is an error of its own, and not an unreachable Redis.
        ([([REFUSED], [9.0], 0), ([REFUSED], [9.0], 0)], ["Redis refused"]),
        (
            [([REFUSED], [9.0], 0), ([], [], 1), ([REFUSED], [11.0], 0)],
            ["Redis refused", BACK, "Redis refused"],
        ),
    ],
)
def test_an_outage_is_logged_once_and_in_it_each_refusal(rounds: list[Round], events: list[str]) -> None:
    assert logged(Outages(), rounds) == events


def test_the_first_unavailable_shard_dates_the_outage() -> None:
    outages = Outages()
    logged(outages, [([AWAY, AWAY], [9.0, 8.0], 0)])
    assert outages.since == 8.0
    logged(outages, [([], [], 2)])
    assert outages.since is None


def test_rounds_and_refusals_are_counted() -> None:
    outages = Outages()
    logged(outages, [([AWAY, REFUSED], [9.0], 0), ([], [9.0], 0), ([AWAY], [9.0], 0)])
    assert (outages.retries, outages.errors, outages.last_error) == (2, 1, "away")


def test_the_memory_of_refusals_is_bounded() -> None:
    refusals = [StoreError(f"no {number}") for number in range(MAX_LOGGED_REFUSALS + 1)]
    rounds: list[Round] = [([each], [9.0], 0) for each in (*refusals, refusals[0])]
    assert logged(Outages(), rounds).count("Redis refused") == MAX_LOGGED_REFUSALS + 2


def test_a_refusal_is_reported_before_an_unreachable_redis() -> None:
    assert first_of([AWAY, REFUSED]) is REFUSED
    assert first_of([AWAY]) is AWAY
