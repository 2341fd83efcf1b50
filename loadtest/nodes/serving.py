"""`presence serve` in a process of its own, on a Redis that is given."""

from collections.abc import Sequence

from loadtest.servers import PRESENCE, PresenceServer, Setup, is_stopped, running, wait_for

__all__ = ["Serving", "Setup", "is_stopped", "running", "wait_for"]


class Serving(PresenceServer):
    """A `PresenceServer` on the Redis of an address."""

    def __init__(self, url: str, *flags: str, port: int = 0, program: Sequence[str] = PRESENCE) -> None:
        super().__init__("--redis", url, *flags, port=port, program=program)
