"""Checks of what a program passes, where it enters: a wrong argument raises ValueError or TypeError there."""

import math
import sys
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
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} must be above 0 seconds, and finite")
    return value


def host_name(host: str) -> str:
    if not isinstance(host, str):
        raise TypeError(f"host must be a string, not {type(host).__name__}")
    if not host or "\0" in host:
        raise ValueError("host must not be empty, or hold a NUL")
    return host


def names(name: str, values: Iterable[str]) -> list[str]:
    """Return uids or rooms as a list; a single string would be taken for its letters."""
    if isinstance(values, str | bytes):
        raise TypeError(f"{name} must be a list, as in [{values!r}], not one string")
    return list(values)


def optional_names(name: str, values: Iterable[str] | None) -> list[str] | None:
    return None if values is None else names(name, values)


def visibility_pass(text: str) -> str:
    """Return a pass; the protocol would take None for a request without one."""
    if not isinstance(text, str):
        raise TypeError(f"a pass must be a string, not {type(text).__name__}")
    return text


def unix_ms(
    until: datetime | timedelta | None, status: str | None, server_time: Callable[[], datetime]
) -> int | None:
    """Return the Unix milliseconds of a status's end, a time or a duration from now; None for None."""
    if until is None:
        return None
    if status is None:
        raise ValueError("until is the end of a status, which must be given")
    if isinstance(until, timedelta):
        if until <= timedelta():
            raise ValueError("until must be a duration above 0")
        try:
            until = server_time() + until
        except OverflowError:
            raise ValueError("until must be before the year 10000") from None
    if not isinstance(until, datetime):
        raise TypeError(f"until must be a datetime or timedelta, not {type(until).__name__}")
    if until.tzinfo is None:
        raise ValueError("until must have a time zone, as datetime.now(UTC) has")
    return round(until.timestamp() * 1000)


def utc(unix_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=unix_ms)
