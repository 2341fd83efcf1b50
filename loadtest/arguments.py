"""The numbers that commands take, checked where they enter: each is a `type` of argparse."""

import math
from argparse import ArgumentTypeError


def above_0(text: str) -> float:
    """Return a finite number above 0, such as a time that something lasts."""
    return _checked(float(text), text, "a number above 0", is_right=float(text) > 0)


def at_least_0(text: str) -> float:
    """Return a finite number of 0 or more, such as a time that may be left out."""
    return _checked(float(text), text, "a number of 0 or more", is_right=float(text) >= 0)


def from_1(text: str) -> int:
    """Return a whole number of 1 or more."""
    return int(_checked(int(text), text, "a whole number of 1 or more", is_right=int(text) >= 1))


def from_0(text: str) -> int:
    """Return a whole number of 0 or more."""
    return int(_checked(int(text), text, "a whole number of 0 or more", is_right=int(text) >= 0))


def share(text: str) -> float:
    """Return a number from 0 to below 1."""
    return _checked(float(text), text, "a number from 0 to below 1", is_right=0 <= float(text) < 1)


def _checked(value: float, text: str, wanted: str, *, is_right: bool) -> float:
    if not (is_right and math.isfinite(value)):
        raise ArgumentTypeError(f"{text} is not {wanted}")
    return value
