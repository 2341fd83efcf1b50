"""A worker's sample against what Redis has written, and against the clock."""

import protocol
from tests.test_samples import DELAYS, Served, served

__all__ = ["served"]  # fixtures

__all__ = ["served"]  # fixtures

__all__ = ["served"]  # fixtures


async def test_transitions_are_those_that_redis_has_written(served: Served) -> None:
    for uid in ("ann", "bob", "eve"):
        stream = await served.log_in(uid)
        if uid == "bob":
            await stream.send_all(protocol.encode(protocol.logout()))
    sample = await served.until(lambda sample: sum(sample["transitions"]["offline"].values()) == 3)
    assert sample["transitions"]["online"] == {"login": 3}
    assert sample["transitions"]["offline"] == {"logout": 1, "idle_timeout": 2}


async def test_silence_is_noticed_within_a_tick_and_counted_so(served: Served) -> None:
    await served.log_in("ann")
    sample = await served.until(lambda sample: sample["core"]["ended"])
    delays = sample["histograms"]["detection_delay"]
    assert sum(delays["counts"]) == 1
    assert delays["sum"] >= 0


async def test_counters_only_rise(served: Served) -> None:
    before = await served.sample()
    await served.log_in("ann")
    after = await served.until(lambda sample: sample["core"]["ended"])
    assert _falls(before["transitions"], after["transitions"]) == []
    for name in DELAYS:
        earlier, later = (each["histograms"][name] for each in (before, after))
        assert all(old <= new for old, new in zip(earlier["counts"], later["counts"], strict=True))
        assert earlier["sum"] <= later["sum"]
    assert after["inquiries"]["asked"] > before["inquiries"]["asked"]


def _falls(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"{type} {reason}"
        for type, reasons in before.items()
        for reason, n in reasons.items()
        if after[type][reason] < n
    ]
