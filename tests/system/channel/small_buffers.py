"""``python -m tests.system.channel.small_buffers serve …``: `presence` with small buffers of the kernel.

A connection inherits the buffer of the socket that listened. Else the kernel takes some 200 KiB for a client
that reads nothing, in bursts, over minutes, and the server itself notices nothing until then.
"""

import socket
import sys

from presence.cli.main import main
from presence.transports import sockets

SEND_BYTES = 8192


def shrink_buffers() -> None:
    """Shrink the kernel's send buffers of this process's connections."""
    make = sockets.open_listeners

    def small(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
        listeners = make(host, port, shared=shared)
        for listener in listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        return listeners

    sockets.open_listeners = small


if __name__ == "__main__":
    shrink_buffers()
    sys.exit(main())
