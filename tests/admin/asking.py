"""The application driven by ASGI on trio, with workers that answer like real ones."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import trio

from presence.admin.app import App
from presence.admin.handlers import Context
from presence.config.settings import Settings
from presence.server.stats_socket import StatsResponder, stats_socket_pair
from tests.admin.scrapes import sample

HOST = "127.0.0.1:7480"
JSON = {"content-type": "application/json"}
ANSWER_S = 30.0  # a generous limit for a slow machine; no test waits that long
NOWHERE = "redis://127.0.0.1:1"


@dataclass
class Answered:
    """A response; of a stream, what has arrived so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]


def scope_of(method: str, target: str, headers: Mapping[str, str]) -> dict[str, Any]:
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"spec_version": "2.1", "version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path, errors="replace"),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in {"host": HOST, **headers}.items()],
        "client": ("127.0.0.1", 5555),
        "server": ("127.0.0.1", 7480),
    }


async def ask(
    app: App, target: str, method: str = "GET", body: bytes | Mapping[str, Any] = b"", **headers: str
) -> Answered:
    """Send a request whose response ends by itself."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if not isinstance(body, bytes):
        body, given = json.dumps(body).encode(), {**JSON, **given}
    return await ask_scope(app, scope_of(method, target, given), body)


async def ask_scope(app: App, scope: dict[str, Any], body: bytes = b"") -> Answered:
    """Send a request whose response ends by itself, with a scope of the caller's."""
    answered = Answered()
    requests = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        note(answered, message)

    with trio.fail_after(ANSWER_S):
        await app.asgi(scope, receive, send)
    return answered


def note(answered: Answered, message: Mapping[str, Any]) -> None:
    if message["type"] == "http.response.start":
        answered.status = message["status"]
        answered.headers = {k.decode(): v.decode() for k, v in message["headers"]}
    elif message["type"] == "http.response.body":
        answered.body += message.get("body", b"")


class Viewer:
    """A client of a stream. It reads a piece only when the test takes one."""

    def __init__(self) -> None:
        self.head = Answered()
        self._pieces, self._taken = trio.open_memory_channel[bytes](0)
        self._gone = trio.Event()
        self._rest = b""
        self.ended = trio.Event()

    async def look(self, app: App, target: str, **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        first = True

        async def receive() -> dict[str, Any]:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                note(self.head, message)
            elif message.get("body"):
                if self.head.status == 200:
                    await self._pieces.send(message["body"])
                else:
                    note(self.head, message)

        await app.asgi(scope_of("GET", target, given), receive, send)
        self.ended.set()
        await self._pieces.aclose()

    async def message(self, event: str | None = None) -> dict[str, str]:
        """Return the next message, of this kind if one is named; skip heartbeats."""
        with trio.fail_after(ANSWER_S):
            while True:
                while b"\n\n" not in self._rest:
                    self._rest += await self._taken.receive()
                text, _, self._rest = self._rest.partition(b"\n\n")
                fields = dict(line.split(": ", 1) for line in text.decode().split("\n") if ": " in line)
                if "event" in fields and event in {None, fields["event"]}:
                    return fields

    async def begun(self) -> None:
        """Wait until the stream is live: its position was sent."""
        with trio.fail_after(ANSWER_S):
            self._rest += await self._taken.receive()

    def leave(self) -> None:
        """Disconnect; remaining viewers end with the application."""
        self._gone.set()


class Operators:
    """The application, its workers, and its viewers.

    Attributes:
        samples: by worker, its sample; None: it does not answer.
        asked: number of questions to workers so far, by verb.
    """

    def __init__(self, app: App, context: Context, nursery: trio.Nursery) -> None:
        self.app = app
        self.context = context
        self.samples: list[dict[str, Any] | None] = []
        self.asked = {"sample": 0, "explain": 0}
        self._nursery = nursery

    async def ask(self, target: str, method: str = "GET", body: Any = b"", **headers: str) -> Answered:
        return await ask(self.app, target, method, body, **headers)

    async def ask_scope(self, scope: dict[str, Any]) -> Answered:
        return await ask_scope(self.app, scope)

    def look(self, target: str, **headers: str) -> Viewer:
        viewer = Viewer()
        self._nursery.start_soon(partial(viewer.look, self.app, target, **headers))
        return viewer

    async def looking(self, target: str) -> Viewer:
        """Return a viewer of a live stream."""
        viewer = self.look(target)
        await viewer.begun()
        return viewer

    def answers(self, place: int) -> dict[str, Callable[..., Any]]:
        def answer_sample() -> dict[str, Any]:
            self.asked["sample"] += 1
            sample_of_worker = self.samples[place]
            if sample_of_worker is None:
                raise RuntimeError("does not answer")
            return sample_of_worker

        def explain(uid: str) -> dict[str, Any]:
            self.asked["explain"] += 1
            return {"node": f"node-{place + 1}", "at_ms": 1, "sessions": [], "ended": []}

        return {"sample": answer_sample, "explain": explain}


@asynccontextmanager
async def operators(
    redis_url: str = NOWHERE, *, workers: int = 1, host: str = "127.0.0.1", **settings: Any
) -> AsyncIterator[Operators]:
    """Run the application for the length of the block."""
    pairs = [stats_socket_pair() for _ in range(workers)]
    lines: tuple[socket.socket, ...] = tuple(asking for asking, _ in pairs)
    context = Context(Settings(**settings), redis_url, lines, host, f"http://{HOST}/")
    app = App(context)
    try:
        async with trio.open_nursery() as nursery:
            running = Operators(app, context, nursery)
            running.samples = [
                sample(worker=n, sessions=n, pid=n, admission={}, process={}, outbox={})
                for n in range(1, workers + 1)
            ]
            for place, (_, answering) in enumerate(pairs):
                nursery.start_soon(StatsResponder(answering, running.answers(place)).run)
            nursery.start_soon(app.run)
            yield running
            nursery.cancel_scope.cancel()
    finally:
        for pair in pairs:
            for each in pair:
                each.close()
