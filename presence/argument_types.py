"""What the words on the command line have to be, for the parsers of all commands."""

import argparse
import math
from collections.abc import Callable
from typing import Any, Final

# What a reader needs to find the data; a server takes every setting.
READER_SETTINGS: Final = ("redis", "prefix")

AddSettings = Callable[[Any, tuple[str, ...]], None]
"""Adds flags for settings to a parser."""


def seconds(text: str) -> float:
    """Return a time, 0 included.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as 5")
    return found


def some_seconds(text: str) -> float:
    """Return a time above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not (found := seconds(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no time")
    return found


def whole_number(most: int) -> Callable[[str], int]:
    """Return what takes a whole number from 1 to `most`, and refuses everything else."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return int(text)

    return parse
