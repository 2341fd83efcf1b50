"""Reads the stream of a server's live page."""

import json
from collections.abc import Callable
from typing import Final

import httpx2
import trio

from presence.common.backoff import backoff_s, jittered
from presence.top.state import TopState

CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_TIMEOUT_S: Final = 20.0  # the server sends a heartbeat every 15 s, and a sample every second
RETRY_FIRST_S: Final = 0.5
RETRY_LIMIT_S: Final = 5.0


async def read_feed(state: TopState, token: Callable[[], str], sampled: Callable[[], None]) -> None:
    """Pass the stream to the state, and connect again whenever it ends, until cancelled.

    Returns only if there was no sample from the first connection; `state.problem` says why.

    Args:
        state: has the URL.
        token: returns the operator's token for a connection, "" for none; may raise OSError.
        sampled: called after each sample.
    """
    failures = 0
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=SILENCE_TIMEOUT_S)
    async with httpx2.AsyncClient(timeout=timeout) as client:
        while True:
            try:
                headers = {"Authorization": f"Bearer {secret}"} if (secret := token()) else {}
                async with client.sse(f"{state.url}/v1/live", headers=headers) as source:
                    problem = _refusal(source.response)
                    if not problem:
                        async for message in source:
                            state.receive(message.event, json.loads(message.data))
                            if message.event == "sample":
                                failures = 0
                                sampled()
                        problem = "the server closed the connection"
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                problem = str(error) or type(error).__name__
            except (ValueError, KeyError, TypeError):
                problem = "it is no presence server of this version"
            state.lose(f"cannot read {state.url}: {problem}")
            if not state.sample:
                return
            await trio.sleep(jittered(backoff_s(failures, RETRY_FIRST_S, RETRY_LIMIT_S)))
            failures += 1


def _refusal(response: httpx2.Response) -> str:
    """Return why the server sends no stream; "" if it does."""
    if response.status_code in {401, 403}:
        return "it requires the token of an operator: --token @FILE"
    return "" if response.is_success else f"it answers {response.status_code} {response.reason_phrase}"
