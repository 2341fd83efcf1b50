"""What travels between nodes when a user writes to another, and whoever carries it; no redis in here."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from presence.common.errors import StoreError, StoreUnavailable


class OutgoingMessage(NamedTuple):
    """A message on its way to a user."""

    to: str
    frame: bytes  # the `deliver` packet as the recipient's connections get it, with its length


class RouteResult(NamedTuple):
    """Whom a letter was handed to on other nodes.

    Attributes:
        handed: devices; of a cluster those whose node may hear of it, which no server knows for sure.
        elsewhere: all devices that the record names on other nodes, whether these hear or not; without
            those of nodes that are given up.
    """

    handed: int
    elsewhere: tuple[str, ...] = ()


class Delivery(NamedTuple):
    """A letter from another node, for some devices of a user of this one."""

    uid: str
    devices: tuple[str, ...]
    frame: bytes


Answer: TypeAlias = RouteResult | StoreUnavailable | StoreError


class MessageBus(Protocol):
    """Redis as the courier sees it: plain calls that may block, made from one thread at a time."""

    def deliver(
        self, node: str, messages: Sequence[OutgoingMessage], here: Mapping[str, Mapping[str, int]]
    ) -> list[Answer]:
        """Hand letters to the nodes that have their recipients, except `node` itself; each at most once.

        `here`: of recipients, the devices that have a connection at `node`, and how many ms ago these logged
        in. One whose login is later than that on record is where it is, and nowhere else.

        Letters of one call arrive in order, and after those of earlier calls. A failure among the answers
        stands for a letter that was not handed to anybody; a `StoreInterrupted`, for one of which nobody
        knows. What failed must not be tried again by whoever wants nothing delivered twice.
        """

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""
