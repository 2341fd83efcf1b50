"""What a proxy does to one way of its connections, and the count of what it has done."""

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True)
class Faults:
    """What happens to the bytes of one way. They arrive in order and whole, whatever it is.

    Attributes:
        latency_s: all arrive so much later.
        jitter_s: and up to so much later than that, each piece by chance.
        slice_bytes: they arrive in pieces of 1 to so many bytes, each sent by itself; 0: as they came.
        bytes_per_s: so many at most go through a connection; 0: any number.
        blackhole: none arrives. What is sent is kept and arrives late, once this has ended, as in a network
            that swallows packets and a TCP that repeats them. While one way is such a hole no connection
            comes about.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    slice_bytes: int = 0
    bytes_per_s: float = 0.0
    blackhole: bool = False

    def __post_init__(self) -> None:
        if min(self.latency_s, self.jitter_s, self.slice_bytes, self.bytes_per_s) < 0:
            raise ValueError(f"{self}: nothing of it may be below 0")

    @property
    def delays(self) -> bool:
        """Whether bytes are late by it, other than in a blackhole."""
        return self.latency_s + self.jitter_s + self.bytes_per_s > 0


CLEAR: Final = Faults()


@dataclass
class Injected:
    """What a proxy has truly done so far.

    Attributes:
        connections: passed on to the target.
        bytes: that came, both ways.
        delayed_bytes: of these, late by latency, jitter or a limit of bytes a second.
        held_bytes: of these, kept in a blackhole.
        cuts: between two bytes that had come together, and went on in two pieces.
        resets: connections ended by `Proxy.reset`, or at the end of a blackhole.
        refused: connections ended as soon as they were made.
        replies_dropped: requests that were carried out and whose reply was thrown away.
        unreachable: connections for which there was no target.
    """

    connections: int = 0
    bytes: int = 0
    delayed_bytes: int = 0
    held_bytes: int = 0
    cuts: int = 0
    resets: int = 0
    refused: int = 0
    replies_dropped: int = 0
    unreachable: int = 0

    def since(self, before: "Injected") -> "Injected":
        """Return what was done after `before`."""
        names = [field.name for field in fields(self)]
        return Injected(**{name: getattr(self, name) - getattr(before, name) for name in names})
