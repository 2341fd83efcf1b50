"""What ``presence client`` says: pushes and states as lines for a person."""

import time
from collections.abc import Mapping
from typing import Any

from presence.client import Connected, Delivered, Disconnected, Goodbye, Push, UserState, WatchEnded


def push_lines(push: Push) -> list[str]:
    """Return a push as lines; what others chose in them may hold anything but a line's end."""
    if isinstance(push, Connected):
        again = " again" if push.again else ""
        return [
            f"online{again}: session {push.session}, a beat every {push.keepalive:g} s, "
            f"idle time-out {push.idle_timeout:g} s"
        ]
    if isinstance(push, Disconnected):
        message = f": {push.message}" if push.message else ""
        return [f"lost the connection ({push.reason}{message}); back in {push.retry_in:.1f} s"]
    if isinstance(push, Goodbye):
        return [f"goodbye from the server: {push.reason} ({push.code}) {push.message}".rstrip()]
    if isinstance(push, Delivered):
        return [f"{push.sender}: {line}" for line in _plain(push.body).split("\n")]
    if isinstance(push, WatchEnded):
        return [
            f"watched no more: {' '.join(push.uids)}: {push.reason} ({push.code}) {push.message}".rstrip()
        ]
    return [f"{state_line(push.uid, push.state)} ({push.reason})"]


def state_line(uid: str, state: UserState) -> str:
    """Return a user's state as one line: since when, or last seen when, and what he says of himself."""
    line = f"{uid} is {state.status}"
    if state.status in {"online", "away"} and state.since_ms is not None:
        line += f" since {_time(state.since_ms)}"
    elif state.last_seen_ms is not None:
        line += f", last seen {_time(state.last_seen_ms)}"
    elif state.status == "offline":
        line += ", never seen or long ago"
    return f"{line}, {_meta(state.meta)}" if state.meta else line


def _meta(meta: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {_plain(value)}" for key, value in meta.items()).replace("\n", " ")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _time(unix_ms: int) -> str:
    """Return a moment by the local clock, with the date unless it is today."""
    try:
        moment = time.localtime(unix_ms / 1000)
        today = moment[:3] == time.localtime()[:3]
        return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", moment)
    except (ValueError, OverflowError, OSError):  # nobody's time, but somebody's data
        return f"{unix_ms} ms"
