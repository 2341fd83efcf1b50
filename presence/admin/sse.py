"""Streams of server-sent events: responses that continue until the viewer disconnects.

`presence.admin.http` closes viewers that read nothing. Memory per viewer is bounded here: a `ViewerMailbox`
holds only the newest snapshot and a few events. Viewers never wait for each other.

Tests: `tests/admin/test_events.py`, `tests/system/admin/test_live.py`.
"""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Protocol

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from presence.admin.http_metrics import HttpMetrics
from presence.admin.responses import ApiError

MAX_VIEWERS: Final = 256
HEARTBEAT_INTERVAL_S: Final = 15.0  # proxies close connections that are idle for a minute or so
MAX_EVENTS_SHOWN: Final = 50  # the newest, in one message
EVENTS_INTERVAL_S: Final = 0.25  # between two messages: more often is unreadable
HEARTBEAT: Final = b":\n\n"
_RETRY_S: Final = 10


def message(event: str, data: bytes, identity: str | None = None) -> bytes:
    """Return a message of an event stream; `data` must be one line."""
    head = f"id: {identity}\n" if identity is not None else ""
    return b"%sevent: %s\ndata: %s\n\n" % (head.encode(), event.encode(), data)


class EventStream(Response):
    """A streaming response; its viewer is counted as `view`.

    An `ApiError` before the first chunk becomes the response.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], view: str, metrics: HttpMetrics) -> None:
        self.background = None
        self.status_code = 200
        self._chunks = chunks
        self._view = view
        self._metrics = metrics
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        self.media_type = "text/event-stream"
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(self._metrics.viewers.values()) >= MAX_VIEWERS:
            await self._chunks.aclose()
            text = f"{MAX_VIEWERS} viewers are connected already"
            raise ApiError(503, "too_many_viewers", text, reason="viewers", retry_after=_RETRY_S)
        self._metrics.viewers[self._view] += 1
        try:
            async with aclosing(self._chunks) as chunks:
                await self._send_all(chunks, scope, receive, send)
        finally:
            self._metrics.viewers[self._view] -= 1

    async def _send_all(
        self, chunks: AsyncGenerator[bytes, None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        first = await anext(chunks)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            nursery.cancel_scope.cancel()


async def _until_gone(receive: Receive, answering: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    answering.cancel()


class EncodedEvent(Protocol):
    """An event that is encoded only when shown: most events of a storm are not."""

    @property
    def data(self) -> bytes:
        """The event as JSON."""


class ViewerMailbox:
    """The pending data of a viewer of the live page: the newest snapshot, and the newest events."""

    def __init__(self, metrics: HttpMetrics) -> None:
        self._metrics = metrics
        self._snapshot: bytes | None = None
        self._events: deque[EncodedEvent] = deque()
        self._skipped = 0
        self._arrived = trio.Event()

    def put_snapshot(self, snapshot: bytes) -> None:
        """Store a snapshot, replacing an unsent one."""
        self._snapshot = snapshot
        self._arrived.set()

    def put_event(self, event: EncodedEvent) -> None:
        """Store an event, dropping the oldest if there is no room."""
        if len(self._events) >= MAX_EVENTS_SHOWN:
            self._events.popleft()
            self._skipped += 1
            self._metrics.missed += 1
        self._events.append(event)
        self._arrived.set()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Give pending data, and heartbeats in quiet periods."""
        sent_at = events_at = trio.current_time()
        while True:
            now = trio.current_time()
            if self._snapshot is not None:
                chunk, self._snapshot = self._snapshot, None
            elif self._events and now >= events_at:
                chunk, events_at = self._take_events(), now + EVENTS_INTERVAL_S
            elif now >= sent_at + HEARTBEAT_INTERVAL_S:
                chunk = HEARTBEAT
            else:
                until = sent_at + HEARTBEAT_INTERVAL_S
                self._arrived = trio.Event()
                with trio.move_on_at(min(until, events_at) if self._events else until):
                    await self._arrived.wait()
                continue
            sent_at = now
            yield chunk

    def _take_events(self) -> bytes:
        events, self._events = self._events, deque()
        skipped, self._skipped = self._skipped, 0
        shown = b",".join(event.data for event in events)
        return message("transitions", b'{"events":[%s],"skipped":%d}' % (shown, skipped))
