"""Ports for servers that a test starts, or starts again at the same address."""

import random
import socket
from contextlib import suppress
from typing import Final

PORTS: Final = range(
    8_000, 12_000
)  # below the ephemeral range, so no connection takes one before a server does


def free_port() -> int:
    """Return a port that nothing listens on.

    It does not depend on the seed of `random`, which is the same in all processes of a test run.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)
        with suppress(OSError), socket.create_server(("", port)):
            return port
