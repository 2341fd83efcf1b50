"""``python -m tests.system.channel.patient_server serve …``: `presence` that keeps clients who read nothing.

The buffers of its kernel are small; a connection inherits that of the socket that listened. Else the kernel
takes some 200 KiB for such a client, in bursts, over minutes, and the server notices nothing until then.
"""

import socket
import sys
from functools import partial

from presence.cli.main import main
from presence.server import server
from presence.transports import sockets
from presence.transports.limits import Limits

SEND_BYTES = 8192
UNSENT_TIMEOUT_S = 600.0  # far longer than a case takes, so no slow client is disconnected


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
    vars(server)["Limits"] = partial(Limits, unsent_timeout=UNSENT_TIMEOUT_S)
    sys.exit(main())
