"""Clients with the library in Python, as a program for `tests.system.chaos.libraries`: ``BACKEND HOST PORT``.

The first line of its input is a list of clients. When all have their watches, and at each further line, it
prints what each sees, as a line of JSON. At the end of the input they log out.

A login that got no answer in time may be executed later, and replace the client's own next one. Such a client
has ended, and is no longer printed.
"""

import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio import to_thread

from presence.client import (
    Client,
    Connected,
    Disconnected,
    Dropped,
    PresenceChanged,
    Push,
    Replaced,
    RoomChanged,
    WatchEnded,
    connect,
)

View = dict[str, Any]


async def follow(client: Client, uid: str, views: dict[str, View]) -> None:
    """Keep a view by the pushes of a client; raises what ends the client."""
    was_unanswered = False
    try:
        async for push in client:
            was_unanswered |= isinstance(push, Disconnected) and push.reason == "login_timeout"
            apply(push, views[uid])
    except Replaced:
        if not was_unanswered:
            raise
        del views[uid]


def apply(push: Push, view: View) -> None:
    match push:
        case Connected():
            view["session"] = push.session
        case Disconnected():
            view["session"] = None
        case PresenceChanged():
            view["users"][push.uid] = push.state.status, push.state.id
        case RoomChanged():
            view["rooms"][push.room] = push.state and push.state.count
        case WatchEnded() | Dropped():
            raise RuntimeError(f"unexpected: {push}")


async def main(host: str, port: int) -> None:
    views: dict[str, View] = {}
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for each in json.loads(sys.stdin.readline()):
            client = await stack.enter_async_context(
                connect(
                    host,
                    port,
                    uid=each["uid"],
                    quiet=each["quiet"],
                    status=each["status"],
                    rooms=each["rooms"],
                    wait=False,
                )
            )
            await client.wait_online()
            users, rooms = await client.watch(each["users"]), await client.watch_rooms(each["watched_rooms"])
            views[each["uid"]] = {
                "session": None,
                "users": {uid: (state.status, state.id) for uid, state in users.items()},
                "rooms": {room: state.count for room, state in rooms.items()},
            }
            tasks.start_soon(follow, client, each["uid"], views)
        while True:
            print(json.dumps(views), flush=True)
            if not await to_thread.run_sync(sys.stdin.readline):
                return


if __name__ == "__main__":
    backend, host, port = sys.argv[1:]
    anyio.run(main, host, int(port), backend=backend)
