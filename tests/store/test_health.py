"""The health of Redis that operators see."""

from typing import Any

import pytest

from presence.store.health import RedisHealth, read_health


class Primary:
    """A primary that reports what the test wants."""

    def __init__(self, **info: Any) -> None:
        self._info = info

    def ping(self) -> None:
        """Answer."""

    def info(self) -> dict[str, Any]:
        return {"redis_version": "7.2.4", **self._info}


class Primaries:
    """What reads from all primaries, one of them or a cluster's."""

    def __init__(self, *each: Primary) -> None:
        self._each = each

    def primaries(self) -> tuple[Primary, ...]:
        return self._each


def health(*primaries: Primary) -> RedisHealth:
    reads_all: Any = Primaries(*primaries)
    return read_health(reads_all, 16)


@pytest.mark.parametrize(
    ("memories", "shown"),
    [
        ([(95, 100), (10, 100), (500, 1000)], (95, 100)),
        ([(95, 100), (900, 0)], (95, 100)),  # without a limit none is full
        ([(10, 0), (20, 0)], (20, None)),
    ],
)
def test_memory_is_that_of_the_fullest_primary(
    memories: list[tuple[int, int]], shown: tuple[int, int | None]
) -> None:
    found = health(*(Primary(used_memory=used, maxmemory=limit) for used, limit in memories))
    assert (found.used_memory_bytes, found.maxmemory_bytes) == shown


def test_what_no_primary_reports_is_unknown() -> None:
    found = health(Primary(), Primary())
    assert (found.servers, found.used_memory_bytes, found.maxmemory_bytes) == (2, None, None)
