"""Frames that claim 4 GiB, all at once: what does each cost the server in memory?

The connections are open before: half of them of guests, half of sessions. Then every one of them sends its
four bytes, and nobody reads until the last has. What the peak of the server's memory rises by meanwhile is
the bombs', and it is divided by their number.
"""

from loadtest.hostile.stage import Stage, drop, ends_with, in_words, login
from loadtest.hostile.strangers import BOMB, BOMB_BYTES_MAX
from loadtest.nodes.outcome import Outcome
from protocol import Code

WARM_UP = 500  # bombs that find what a server allocates once
LOGIN_TIMEOUT_S = 120.0  # a guest whose time is up could not be bombed with
LOGIN_ANSWER_BYTES = 4096


def bombs(stage: Stage, count: int) -> Outcome:
    """Let so many bombs wait side by side."""
    _bomb(stage, min(count, WARM_UP))
    begun = stage.rss_bytes()
    refused, grown = _bomb(stage, count)
    with_connection = (stage.peak_bytes() - begun) / count
    each = grown / count
    broken = [*(hurt := stage.others_hurt())]
    if refused < count:
        broken.append(f"{count - refused} bombs were not refused as too large")
    if each > BOMB_BYTES_MAX:
        broken.append(f"{each:.0f} bytes of memory for each bomb, {BOMB_BYTES_MAX} allowed")
    measured = (
        f"refused on four bytes {refused:,}; {max(0.0, each):.0f} bytes of memory a bomb "
        f"({with_connection:.0f} with its connection, half of which are logged in); {in_words(hurt)}"
    )
    return Outcome(
        "bombs", f"{count:,} frames that claim 4 GiB, at once" if refused else "", measured, broken
    )


def _bomb(stage: Stage, count: int) -> tuple[int, int]:
    """Return how many were refused as too large, and the bytes that the server's peak grew by meanwhile."""
    clients = [stage.connect() for _ in range(count)]
    for number, client in enumerate(clients[::2]):
        client.sendall(login(f"bomber-{number}"))
    for client in clients[::2]:
        client.recv(LOGIN_ANSWER_BYTES)
    before = stage.rss_bytes()
    stage.forget_peak()
    for client in clients:
        client.sendall(BOMB)
    refused = sum([ends_with(client, Code.TOO_LARGE) for client in clients])
    grown = stage.peak_bytes() - before
    for client in clients:
        drop(client)
    return refused, grown
