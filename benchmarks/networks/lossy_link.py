"""When bytes arrive over a bad network: pure, time and randomness are arguments.

What TCP makes of a network is modelled, not its packets: bytes arrive in order and complete, and what is lost
arrives later. A piece that is sent while nothing passes, or that is lost, is sent again after 0.2 s and two
latencies, then after twice that time, and so on up to a minute (RFC 6298); what was sent behind it waits. A
connection that cannot be made is tried again after 1, 3, 7 s. So a blackout delays the next packet by up to
twice its length.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

FIRST_RESEND_S: Final = 0.2
MAX_RESEND_S: Final = 60.0
SYN_RESEND_S: Final = 1.0


@dataclass(frozen=True)
class Network:
    """What a phone's network is like.

    Attributes:
        latency_s, jitter_s: of one way: at least, and what chance adds at most.
        bytes_per_s: of each way.
        loss: share of the pieces that have to be sent again.
        blackout_every_s: mean time between two blackouts; 0: none.
        blackout_s: the shortest and the longest.
        new_address_every_s: mean time between two changes of the phone's address, as from Wi-Fi to
            cellular: the phone loses its connection, and the server does not notice; 0: none.
        forgotten_after_s: a connection without a packet for so long is forgotten by a translator of addresses
            (NAT): nothing passes any more, and neither side notices; 0: never.
    """

    name: str
    latency_s: float
    jitter_s: float
    bytes_per_s: float
    loss: float = 0.0
    blackout_every_s: float = 0.0
    blackout_s: tuple[float, float] = (0.0, 0.0)
    new_address_every_s: float = 0.0
    forgotten_after_s: float = 0.0


NETWORKS: Final = (
    Network("office Wi-Fi", 0.003, 0.01, 2e6, loss=0.001),
    Network("4G", 0.03, 0.04, 1e6, loss=0.005, forgotten_after_s=300),
    Network("3G", 0.15, 0.25, 5e4, loss=0.02, forgotten_after_s=120),
    Network("elevator", 0.03, 0.04, 1e6, 0.005, 90, (5, 15)),
    Network("train", 0.04, 0.1, 3e5, 0.02, 90, (3, 45), 300, 120),
    Network("Wi-Fi to cellular", 0.02, 0.03, 1e6, 0.005, new_address_every_s=60),
    Network("strict NAT", 0.03, 0.04, 1e6, 0.005, forgotten_after_s=20),
    Network("edge of coverage", 0.2, 0.8, 1e4, 0.2, 45, (2, 20)),
)


class Way(Enum):
    """A direction, as the phone sees it."""

    UP = "up"
    DOWN = "down"


class LossyLink:
    """The network of one phone, for all its connections.

    Args:
        begun: monotonic seconds at which it begins; no time before that may be asked for.

    Attributes:
        blackouts: begin and end of all that have been drawn; one may still lie ahead.
    """

    def __init__(self, network: Network, begun: float, chance: Random) -> None:
        self.network = network
        self.blackouts: list[tuple[float, float]] = []
        self._chance = chance
        self._drawn_until = begun if network.blackout_every_s else float("inf")
        self._free_at = dict.fromkeys(Way, begun)

    def blackout_end(self, moment: float) -> float | None:
        """Return when the blackout of a moment ends; None: there is none."""
        while self._drawn_until <= moment:
            begin = self._drawn_until + self._chance.expovariate(1 / self.network.blackout_every_s)
            end = begin + self._chance.uniform(*self.network.blackout_s)
            self.blackouts.append((begin, end))
            self._drawn_until = end
        for begin, end in reversed(self.blackouts):  # one after the other: the last that has begun decides
            if begin <= moment:
                return end if moment < end else None
        return None

    def connects_at(self, moment: float) -> float:
        """Return when a connection is made that is asked for at that moment."""
        pause_s = SYN_RESEND_S
        while self._is_lost(moment):
            moment, pause_s = moment + pause_s, 2 * pause_s
        return moment + self._delay_s() + self._delay_s()

    def arrives_at(self, way: Way, moment: float, size: int, after: float) -> float:
        """Return when so many bytes arrive that are sent at that moment.

        Args:
            after: when what was sent before on the connection arrives, or has arrived.
        """
        sent_at = self._free_at[way] = max(moment, self._free_at[way]) + size / self.network.bytes_per_s
        pause_s = FIRST_RESEND_S + 2 * (self.network.latency_s + self.network.jitter_s)
        while self._is_lost(sent_at):
            sent_at, pause_s = sent_at + pause_s, min(2 * pause_s, MAX_RESEND_S)
        return max(sent_at + self._delay_s(), after)

    def next_address_after(self, moment: float) -> float:
        """Return when the phone's address changes next."""
        mean_s = self.network.new_address_every_s
        return moment + self._chance.expovariate(1 / mean_s) if mean_s else float("inf")

    def _delay_s(self) -> float:
        return self.network.latency_s + self._chance.uniform(0.0, self.network.jitter_s)

    def _is_lost(self, moment: float) -> bool:
        return self.blackout_end(moment) is not None or self._chance.random() < self.network.loss
