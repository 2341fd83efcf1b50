"""Reads the stream of a server's live page.

Tests: `tests/cli/test_top.py`.
"""

import json
import math
from collections.abc import Callable
from typing import Final

import httpx2
import trio

from presence.common.backoff import backoff_s, jittered
from presence.top.state import EVENTS_KEPT, TopState
from presence.top.view import screen

CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_TIMEOUT_S: Final = 20.0  # the server sends a heartbeat every 15 s, and a sample every second
MESSAGE_BYTES: Final = (
    16 << 20
)  # a sample of 30,000 nodes; the newest events with all their devices take 2 MB
FIRST_SAMPLE_TIMEOUT_S: Final = 10.0  # from the start, heartbeats or not: until then there is nothing to show
RETRY_FIRST_S: Final = 0.5
RETRY_LIMIT_S: Final = 5.0


async def read_feed(state: TopState, token: Callable[[], str], sampled: Callable[[], None]) -> None:
    """Pass the stream to the state, and connect again whenever it ends, until cancelled.

    Returns only if there is no sample: the first connection had none, or the server sends what cannot be
    shown; `state.problem` says why.

    Args:
        state: has the URL.
        token: returns the operator's token for a connection, "" for none; may raise OSError.
        sampled: called after each sample.
    """
    with trio.move_on_after(FIRST_SAMPLE_TIMEOUT_S) as first:

        def note_sample() -> None:
            first.deadline = math.inf
            sampled()

        await _read_connections(state, token, note_sample)
    if first.cancelled_caught:
        state.lose(f"cannot read {state.url}: it sends no data")


async def _read_connections(state: TopState, token: Callable[[], str], sampled: Callable[[], None]) -> None:
    failures = 0

    def note_sample() -> None:
        nonlocal failures
        failures = 0
        sampled()

    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=SILENCE_TIMEOUT_S)
    async with httpx2.AsyncClient(timeout=timeout) as client:
        while True:
            try:
                headers = {"Authorization": f"Bearer {secret}"} if (secret := token()) else {}
                live = f"{state.url}/v1/live"
                async with client.sse(live, headers=headers, max_event_size=MESSAGE_BYTES) as source:
                    problem = _refusal(source.response) or await _read_stream(source, state, note_sample)
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                problem = str(error) or type(error).__name__
            except ValueError as error:  # the token is no text for a header
                problem = str(error)
            state.lose(f"cannot read {state.url}: {problem}")
            if not state.sample:
                return
            await trio.sleep(jittered(backoff_s(failures, RETRY_FIRST_S, RETRY_LIMIT_S)))
            failures += 1


async def _read_stream(source: httpx2.EventSource, state: TopState, sampled: Callable[[], None]) -> str:
    """Pass all messages to the state; return why there are no more."""
    with trio.CancelScope() as reading:  # unlike `break`, it also ends the library's generators
        async for message in source:
            if reading.cancel_called:
                continue
            if not _receive(state, message.event, message.data):
                reading.cancel()
            elif message.event == "sample":
                sampled()
    return (
        "it is no presence server of this version"
        if reading.cancel_called
        else "the server closed the connection"
    )


def _receive(state: TopState, name: str, data: str) -> bool:
    """Take a message; False, and forget everything, if it cannot be shown, which is tried here first."""
    try:
        state.receive(name, json.loads(data))
        screen(state, 80, 2 * EVENTS_KEPT)  # room for every event
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        state.forget()
        return False
    return True


def _refusal(response: httpx2.Response) -> str:
    """Return why the server sends no stream; "" if it does."""
    if response.status_code in {401, 403}:
        return "it requires the token of an operator: --token @FILE"
    return "" if response.is_success else f"it answers {response.status_code} {response.reason_phrase}"
