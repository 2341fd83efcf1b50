r"""A client of the presence server: it beats, notices a dead server, and comes back by itself.

On trio:

>>> import trio
>>> from presence.client import PresenceChanged, RecipientOffline, connect
>>> async def main():
...     async with connect("127.0.0.1", 7400, uid="ann", device="phone") as client:
...         states = await client.watch(["bob"])
...         print("bob is", states["bob"].status)
...         try:
...             print("sessions reached:", await client.send_message("bob", "hello"))
...         except RecipientOffline:
...             print("mail him instead")
...         async with connect("127.0.0.1", 7400, uid="bob"):
...             async for push in client:
...                 if isinstance(push, PresenceChanged):
...                     print(push.uid, "is", push.state.status)
...                     break
>>> trio.run(main)
bob is offline
mail him instead
bob is online

In a script, with a thread in the background that keeps the user online:

>>> from presence.client import connect_blocking
>>> with connect_blocking("127.0.0.1", 7400, uid="eve") as client:
...     print(client.receive(timeout=5).idle_timeout)
...     print(client.query(["eve"])["eve"].status in ("online", "offline"))  # it may not have got round yet
30
True

Both log out when the block ends, and leave nothing behind. `machine` is the protocol of both, without
I/O, for those who bring an event loop of their own.
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
from presence.client.types import BlockingTokenSource, State, Statistics, TokenSource
from protocol import EncodeError

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
    """Load trio when it is asked for: scripts do without, and it must not meet a patched `socket`."""
    if name not in {"Client", "connect"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from presence.client import trio_client  # noqa: PLC0415 - see above

    return getattr(trio_client, name)


def __dir__() -> list[str]:
    """Return what is for programs: the modules behind it are not."""
    return sorted(__all__)
