"""Pauses after failures, and what the log is told of an outage."""

import pytest
from structlog.testing import CapturingLogger

from presence.backoff import backoff_s, jittered
from presence.outages import Outage
from presence.store.batches import StoreError, StoreUnavailable


@pytest.mark.parametrize(("failures", "pause_s"), [(0, 0.5), (1, 1.0), (3, 4.0), (10, 30.0), (5000, 30.0)])
def test_pauses_double_up_to_a_bound(failures: int, pause_s: float) -> None:
    assert backoff_s(failures, 0.5, 30.0) == pause_s


def test_jitter_takes_at_most_half_away() -> None:
    drawn = [jittered(1.0) for _ in range(1000)]
    assert 0.5 <= min(drawn) < max(drawn) <= 1.0


def test_an_outage_is_told_once_and_in_it_each_refusal() -> None:
    log = CapturingLogger()
    outage = Outage(log, away="away", refused="refused", back="back", first_s=0.1, limit_s=0.4)
    pauses = [outage.failed("read", StoreUnavailable("no route")) for _ in range(4)]
    for text in ("no rights", "no rights", "no memory"):
        outage.failed("write", StoreError(text))
    outage.worked("read")
    outage.worked("write")
    outage.worked("write")
    assert [call.args[0] for call in log.calls] == ["away", "refused", "refused", "back"]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, (0.1, 0.2, 0.4, 0.4), strict=True))
