"""What the operators' process is told when it starts."""

from dataclasses import dataclass

from presence.ports import Address
from presence.settings import Settings


@dataclass(frozen=True, slots=True)
class Start:
    """The message; it comes from whoever started the process, over a line of their own.

    Attributes:
        settings: checked settings.
        redis_url: where Redis is.
        listeners: descriptors of sockets that listen.
        lines: descriptors of the asking ends, see `presence.inquiries`, one a worker.
        address: where the listeners listen.
        url: the same, for people.
    """

    settings: Settings
    redis_url: str
    listeners: tuple[int, ...]
    lines: tuple[int, ...]
    address: Address
    url: str
