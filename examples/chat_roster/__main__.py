"""``python -m examples.chat_roster``: who is online, and messages, in the browser.

The application, here FastAPI, stands between browsers and the presence server, and holds one client for
each browser tab: a tab is a device of its user. (Without an application between them:
`examples/web_roster`.) When the WebSocket ends the client logs out, and the user is offline immediately
unless another tab is open.

A real application knows from its own sign-in who the user is, and gives the client a token for that user.
"""

import argparse
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import FileResponse

from examples.local_server import local_server
from presence.client import (
    Client,
    Delivered,
    Disconnected,
    Dropped,
    EncodeError,
    PresenceChanged,
    PresenceError,
    RecipientDisconnected,
    RecipientOffline,
    RequestError,
    UserState,
    WatchEnded,
    connect,
)

PAGE = Path(__file__).with_name("page.html")


def make_app(host: str, port: int) -> FastAPI:
    """Return the application for a presence server."""
    app = FastAPI()

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(PAGE)

    @app.websocket("/ws/{uid}")
    async def gateway(socket: WebSocket, uid: str) -> None:
        await socket.accept()
        device = f"tab-{secrets.token_hex(4)}"
        try:
            async with (
                connect(host, port, uid=uid, device=device, device_class="web") as client,
                anyio.create_task_group() as tasks,
            ):

                async def run(pass_on: Callable[[Client, WebSocket], Awaitable[None]]) -> None:
                    with suppress(WebSocketDisconnect):
                        await pass_on(client, socket)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(run, _to_browser)
                tasks.start_soon(run, _from_browser)
        except* (PresenceError, EncodeError) as errors:  # a login that was refused, or what ended the client
            with suppress(WebSocketDisconnect):  # the page may be closed, too
                await socket.send_json({"error": "; ".join(map(str, errors.exceptions))})
                await socket.close()

    return app


async def _from_browser(client: Client, socket: WebSocket) -> None:
    """Do what the page asks for, until it is closed."""
    while True:
        try:
            request: dict[str, Any] = await socket.receive_json()
        except (ValueError, KeyError):  # no JSON, or no text
            await socket.send_json({"error": "a request is JSON"})
            continue
        try:
            await _do(client, request)
        except (RecipientOffline, RecipientDisconnected):
            await socket.send_json({"undelivered": request["to"], "text": request["text"]})
        except (RequestError, EncodeError) as error:  # one request failed, the session goes on
            await socket.send_json({"error": str(error)})


async def _do(client: Client, request: dict[str, Any]) -> None:
    match request:
        case {"watch": [*uids]} if all(isinstance(uid, str) for uid in uids):
            client.watch_nowait(uids)
        case {"status": str(status)}:
            await client.update(status=status)
        case {"to": str(to), "text": str(text)}:
            await client.send_message(to, text)
        case _:
            raise EncodeError("no such request")


async def _to_browser(client: Client, socket: WebSocket) -> None:
    """Pass on what the presence server sends."""
    async for push in client:
        match push:
            case PresenceChanged(uid=uid, state=state):
                await _show_user(socket, uid, state)
            case Dropped(kind=kind, count=count):  # the browser is too slow
                await socket.send_json({"error": f"{count} lost, of the kind {kind}"})
                for uid, state in [*client.watched.items()]:
                    await _show_user(socket, uid, state)
            case Disconnected(reason=reason):  # it comes back by itself, and what was missed follows
                await socket.send_json({"error": f"the connection is lost: {reason}"})
            case WatchEnded(uids=uids, reason=reason):
                await socket.send_json({"error": f"{', '.join(uids)} cannot be watched: {reason}"})
            case Delivered(sender=sender, body=str(text)):  # other clients may send any value
                await socket.send_json({"from": sender, "text": text})


async def _show_user(socket: WebSocket, uid: str, state: UserState) -> None:
    await socket.send_json({"uid": uid, "status": state.status, "last_seen_ms": state.last_seen_ms})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8000, help="of the web page")
    given = parser.parse_args()
    with local_server() as server:
        print(f"open http://127.0.0.1:{given.port}/ in two tabs, as ann and as bob", flush=True)
        uvicorn.run(make_app(server.host, server.port), port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
