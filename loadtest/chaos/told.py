"""What the streams say, in the order in which Redis took it, and what Redis forgot in between."""

from typing import NamedTuple

from loadtest.events import Event


class Kept(NamedTuple):
    """The state of this moment is kept under a number."""

    number: int
    stood: float


class Forgot(NamedTuple):
    """Redis went back to the state of a number; None: it has nothing."""

    number: int | None
    stood: float


Told = Event | Kept | Forgot
