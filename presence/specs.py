"""What one setting is, and how its value is read from a flag, a variable or the file."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

VARIABLE_PREFIX = "PRESENCE_"


class Spec(NamedTuple):
    """One field of `Settings` as flags, variables and the file see it."""

    name: str
    kind: type
    default: object
    help: str
    unit: str
    bounds: tuple[float, float] | None
    choices: tuple[str, ...]
    form: Callable[[str], None] | None
    group: str
    expert: bool

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return VARIABLE_PREFIX + self.name.upper()

    def parse(self, raw: object) -> object:
        """Return the value that `raw` means: text from a flag or variable, or a typed value from the file.

        Raises:
            ValueError: what the value must be.
        """
        if raw == "":
            raise ValueError("must not be empty")
        if self.kind is bool:
            return _boolean(raw)
        if self.kind in {int, float}:
            return self._number(raw)
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError("must be text")
        if self.choices and raw not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        if self.form is not None:
            self.form(raw)
        return Path(raw) if self.kind is Path else raw

    def _number(self, raw: object) -> float:
        low, high = self.bounds or (float("-inf"), float("inf"))
        noun = "whole number" if self.kind is int else "number"
        wanted = f"must be a {noun} from {low:,} to {high:,} {self.unit}".rstrip()
        typed = isinstance(raw, int | self.kind) and not isinstance(raw, bool)
        try:
            value: float = self.kind(raw) if typed or isinstance(raw, str) else float("nan")
        except (ValueError, OverflowError):
            raise ValueError(wanted) from None
        if not low <= value <= high:  # NaN is in no range
            raise ValueError(wanted)
        return value


def _boolean(raw: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    value = words.get(raw.lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - one error type for every bad value
    return value
