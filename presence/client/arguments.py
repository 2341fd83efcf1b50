"""Checks of what a program passes, where it enters: a wrong argument raises ValueError or TypeError there."""

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

MAX_PORT = 65_535


def whole(name: str, value: int, most: float = math.inf) -> int:
    """Return a whole number from 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be {'1 or more' if most == math.inf else f'from 1 to {most}'}")
    return value


def seconds(name: str, value: float | timedelta) -> float:
    """Return the seconds of a duration, finite and above 0."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 seconds, and finite")
    return value


def host_name(host: str) -> str:
    """Return a name or address to connect to."""
    if not isinstance(host, str):
        raise TypeError(f"host must be a string, not {type(host).__name__}")
    if not host or "\0" in host:
        raise ValueError("host must not be empty, or hold a NUL")
    return host


def user_ids(uids: Iterable[str]) -> list[str]:
    """Return several uids as a list; a single string would be taken for its letters."""
    if isinstance(uids, str | bytes):
        raise TypeError('uids must be several, as in ["bob"], not one string')
    return list(uids)


def unix_ms(until: datetime | timedelta | None, server_time: Callable[[], datetime]) -> int | None:
    """Return the Unix milliseconds of a time, or of the end of a duration from now; None for None."""
    if until is None:
        return None
    if isinstance(until, timedelta):
        if until <= timedelta():
            raise ValueError("until must be a duration above 0")
        until = server_time() + until
    if not isinstance(until, datetime):
        raise TypeError(f"until must be a datetime or timedelta, not {type(until).__name__}")
    if until.tzinfo is None:
        raise ValueError("until must have a time zone, as datetime.now(UTC) has")
    return round(until.timestamp() * 1000)


def utc(unix_ms: int) -> datetime:
    """Return Unix milliseconds as a time."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=unix_ms)
