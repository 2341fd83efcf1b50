"""A client of the presence server: sends keepalives, detects a dead server, and reconnects by itself.

On asyncio or trio::

    async with connect("127.0.0.1", 7400, uid="ann", device="phone") as client:
        states = await client.watch(["bob"])
        async for push in client:
            if isinstance(push, PresenceChanged):
                print(push.uid, "is", push.state.status)

or without a block: ``client = await connect(…)``, and ``await client.aclose()`` at the end. For scripts,
`connect_blocking` does the same with a background thread that keeps the user online. Both log out at the end,
and leave no task, thread or socket. `machine` holds the protocol without I/O, for programs with another event
loop. See `docs/apps.md`.
"""

from presence.client.assembly import connect
from presence.client.async_client import Client
from presence.client.blocking import BlockingClient, connect_blocking
from presence.client.errors import (
    Banned,
    Busy,
    ConnectionLost,
    Ended,
    Kicked,
    LimitReached,
    LoginRefused,
    NotAllowed,
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
from presence.client.lifecycle import State, Statistics
from presence.client.options import ClientOptions
from presence.client.pushes import (
    Connected,
    Delivered,
    DeviceState,
    Disconnected,
    Dropped,
    Goodbye,
    PresenceChanged,
    Push,
    PushKind,
    Receipt,
    RoomChanged,
    RoomState,
    UserState,
    WatchEnded,
)
from presence.client.tokens import BlockingTokenSource, TokenSource
from presence.protocol import EncodeError

__all__ = [
    "Banned",
    "BlockingClient",
    "BlockingTokenSource",
    "Busy",
    "Client",
    "ClientOptions",
    "Connected",
    "ConnectionLost",
    "Delivered",
    "DeviceState",
    "Disconnected",
    "Dropped",
    "EncodeError",
    "Ended",
    "Goodbye",
    "Kicked",
    "LimitReached",
    "LoginRefused",
    "NoToken",
    "NotAllowed",
    "NotConnected",
    "PresenceChanged",
    "PresenceError",
    "Push",
    "PushKind",
    "Receipt",
    "RecipientDisconnected",
    "RecipientOffline",
    "Replaced",
    "RequestError",
    "RequestFailed",
    "RequestTimeout",
    "RoomChanged",
    "RoomState",
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
