"""What the client and its link share: the machine, answers, error texts.

Tests: `tests/client/test_handles.py`, `tests/client/test_blocking_handle.py`.
"""

import os
from collections.abc import Mapping
from typing import Any

from presence import protocol
from presence.client.machine import ClientMachine
from presence.client.tokens import Payload, TokenSource

READ_BYTES = 65_536


def new_machine(
    login: Mapping[str, Any],
    token: str | TokenSource | None,
    *,
    server: str,
    wait: bool,
    ask_every: int,
    watch_devices: bool,
) -> ClientMachine:
    """Return the machine for the arguments of `presence.client.connect`; call its `begin` when it starts.

    `login`: fields of the login.
    """
    own = token if isinstance(token, str) else None
    return ClientMachine(
        protocol.login(**login, token=own, v=protocol.VERSION),
        0.0,
        server=server,
        persistent=not wait,
        fetches=own is None and token is not None,
        ask_every=ask_every,
        watch_devices=watch_devices,
    )


def delivered_count(payload: Payload) -> int:
    """Return the number of sessions that a message was delivered to."""
    count: int = payload.get("delivered", 0)
    return count


def error_text(error: BaseException) -> str:
    """Return the text of a connection error; trio wraps the system's error, once per address."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError):
        error = cause
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        return os.strerror(error.errno)  # ssl and the resolver have numbers of their own
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
