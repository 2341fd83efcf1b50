"""A client of the presence server: sends keepalives, detects a dead server, and reconnects by itself.

On trio::

    async with connect("127.0.0.1", 7400, uid="ann", device="phone") as client:
        states = await client.watch(["bob"])
        async for push in client:
            if isinstance(push, PresenceChanged):
                print(push.uid, "is", push.state.status)

For scripts, `connect_blocking` does the same with a background thread that keeps the user online. Both log
out when the block ends, and leave no task, thread or socket. `machine` holds the protocol of both without
I/O, for programs with another event loop. See `docs/apps.md`.
"""

from typing import TYPE_CHECKING, Any

from presence.client.blocking import BlockingClient, connect_blocking
from presence.client.errors import (
    Busy,
    ConnectionLost,
    Ended,
    Kicked,
    LimitReached,
    LoginRefused,
    NotConnected,
    NoToken,
    PresenceError,
    RecipientDisconnected,
    RecipientOffline,
    Replaced,
    RequestError,
    RequestFailed,
    RequestTimeout,
    ServerFailed,
    SessionLimit,
    Uncertain,
    Unreachable,
    Unsupported,
)
from presence.client.pushes import (
    Connected,
    Delivered,
    Disconnected,
    Goodbye,
    PresenceChanged,
    Push,
    UserState,
    WatchEnded,
)
from presence.client.tokens import BlockingTokenSource, State, Statistics, TokenSource
from presence.protocol import EncodeError

if TYPE_CHECKING:
    from presence.client.trio_client import Client, connect

__all__ = [
    "BlockingClient",
    "BlockingTokenSource",
    "Busy",
    "Client",
    "Connected",
    "ConnectionLost",
    "Delivered",
    "Disconnected",
    "EncodeError",
    "Ended",
    "Goodbye",
    "Kicked",
    "LimitReached",
    "LoginRefused",
    "NoToken",
    "NotConnected",
    "PresenceChanged",
    "PresenceError",
    "Push",
    "RecipientDisconnected",
    "RecipientOffline",
    "Replaced",
    "RequestError",
    "RequestFailed",
    "RequestTimeout",
    "ServerFailed",
    "SessionLimit",
    "State",
    "Statistics",
    "TokenSource",
    "Uncertain",
    "Unreachable",
    "Unsupported",
    "UserState",
    "WatchEnded",
    "connect",
    "connect_blocking",
]


def __getattr__(name: str) -> Any:
    """Load trio on first use: scripts do not need it, and it must not be loaded under a patched `socket`."""
    if name not in {"Client", "connect"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from presence.client import trio_client  # noqa: PLC0415 - see above

    return getattr(trio_client, name)
