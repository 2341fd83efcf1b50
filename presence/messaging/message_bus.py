"""Messages between nodes, and the bus that carries them; independent of Redis.

Tests: `tests/messaging/test_router.py`, `tests/store/test_deliveries.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from presence.common.errors import StoreError, StoreUnavailable

NUMBER_BITS: Final = 53  # of a message in its `deliver` packet: every language has such integers
REPORT_TIME_S: Final = 0.5  # for the reports of other nodes, which wait as long as the sender wants


class ReplyAddress(NamedTuple):
    """Where nodes report what became of a message whose sender is no node."""

    token: str  # random; names the Redis key for the reports, and nothing else
    number: int  # of the message, among those with this token


class Confirm(NamedTuple):
    """What a sender wants to know that waits until sessions have confirmed its message."""

    within_s: float  # it waits for so long
    number: int  # of the message in its `deliver` packet
    node: str = ""  # the node that gets the reports; "": they are kept in Redis, where a backend looks


class Confirmed(NamedTuple):
    """Sessions that certainly have a message."""

    sessions: int
    by_app: int  # of these, those whose client has said so; of the others the kernel has


class OutgoingMessage(NamedTuple):
    """A message on its way to a user."""

    to: str
    frame: bytes  # the `deliver` packet for the recipient's connections, with its length
    reply_to: ReplyAddress | None = None
    device: str | None = None  # with `reply_to` only: to this device, not to all
    confirm: Confirm | None = None  # with `reply_to` only


class RouteResult(NamedTuple):
    """Where a message was sent on other nodes."""

    # number of devices; in a cluster those whose node may receive it, which no server knows for sure
    handed: int
    # all devices that the record has on other nodes, whether these receive it or not; without those of fenced
    # nodes
    elsewhere: tuple[str, ...] = ()
    is_hidden: bool = False  # the recipient is invisible: to the sender, offline


class Delivery(NamedTuple):
    """A message from another node, for some devices of a user of this node."""

    uid: str
    devices: tuple[str, ...]
    frame: bytes
    reply_to: ReplyAddress | None = None
    confirm: Confirm | None = None


class DeliveryReport(NamedTuple):
    """What became of a message at one node."""

    uid: str
    reply_to: ReplyAddress
    devices: int  # for which the node got it
    delivered: int  # of these, sessions to whose connections it was handed
    grace_s: float  # how long a session of one of them may still return; 0 if none may
    confirmed: Confirmed | None = None  # None: not known yet, or not wanted
    to_node: str = ""  # the node that gets it; "": it is kept in Redis


class ConfirmationReport(NamedTuple):
    """A report of another node on a message of a client of this one."""

    token: str  # of the message's `ReplyAddress`
    devices: int  # for which that node got it
    confirmed: Confirmed


RouteAnswer: TypeAlias = RouteResult | StoreUnavailable | StoreError


class MessageBus(Protocol):
    """Redis as the router uses it: blocking calls, one at a time."""

    def deliver(
        self, node: str, messages: Sequence[OutgoingMessage], here: Mapping[str, Mapping[str, int]]
    ) -> list[RouteAnswer]:
        """Send messages to the nodes that have their recipients, except to `node` itself; each at most once.

        `here`: by recipient, the devices that have a connection at `node`, and how many ms ago they logged
        in. A device whose login here is later than the one on record is here, and nowhere else.

        Messages of one call to one user arrive in order, and after those of earlier calls. A failure among
        the answers means that the message was sent to no node; a `StoreInterrupted`, that this is not known.
        To deliver nothing twice, the caller must not repeat a failed message.
        """
