"""What kinds of clients the crowd has, and what a run must have seen of each: shared with locust's process.

The kinds overlap: of so many devices one is of the kind, by the number in its uid.
"""

from typing import Final

ROSTER_EVERY: Final = 2  # watches the roster of its user, which the backend keeps
BATCH_EVERY: Final = 3  # takes rows
QUIET_EVERY: Final = 5  # is in the background
WEBSOCKET_EVERY: Final = 11

WATCHED, ROOMS_WATCHED, ROSTER_WATCHED = "watch", "watch of rooms", "watch of the roster"
ROOMS_CHANGED: Final = "rooms changed"
WEBSOCKET_LOGIN: Final = "login over WebSocket"
STATE_PUSH, BATCH_PUSH = "push of a state", "push in a batch"
ROOM_PUSH, ROSTER_PUSH = "push of a room", "push of a roster"
QUIET_PUSH, WEBSOCKET_PUSH = "push to a quiet client", "push over WebSocket"
ROWS: Final = (
    *(WATCHED, ROOMS_WATCHED, ROSTER_WATCHED, ROOMS_CHANGED, WEBSOCKET_LOGIN),
    *(STATE_PUSH, BATCH_PUSH, ROOM_PUSH, ROSTER_PUSH, QUIET_PUSH, WEBSOCKET_PUSH),
)
"""Rows of the crowd's report: each must have been seen, without failures."""
