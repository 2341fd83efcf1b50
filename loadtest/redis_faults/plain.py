"""What is done to a Redis itself."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from loadtest.nodes.data import Data
from loadtest.nodes.serving import Serving
from loadtest.nodes.story import Due
from loadtest.nodes.trial import Fault
from loadtest.nodes.verdict import LOGGED_OUT, RETURNED, SILENT, told
from loadtest.nodes.weighing import Forgets
from protocol import Code

FLUSH_EVERY_S: Final = 0.01  # two or three of a batch's calls

# The stream begins anew with those who live, and tells the whole period of those who have left since. Who
# comes while it begins may be taken for one who was there.
_HERE = told("online", Code.LOGIN, Code.RETURNED)
DUE_WHEN_EMPTY: Due = {
    "steady": [RETURNED],
    "silent": [_HERE, SILENT],
    "leaving": [_HERE, LOGGED_OUT],
    "moving": [_HERE],
    "coming": [_HERE],
    "visiting": [_HERE, LOGGED_OUT],
    "brief": [_HERE, SILENT],
}


@contextlib.contextmanager
def restarted_empty() -> Iterator[Fault]:
    """Make a Redis that is killed, and started again without any data."""
    with Data() as data:
        held: list[int] = []

        def strike(seconds: float) -> None:
            held.append(data.client.dbsize())
            data.kill()
            time.sleep(seconds)
            data.start()
            held.append(data.client.dbsize())

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            before, after = held
            return f"{before} keys before, {after} after" if after < before else ""

        yield Fault(data, data.url, strike, proof, DUE_WHEN_EMPTY, Forgets.ALL)


@contextlib.contextmanager
def scripts_flushed() -> Iterator[Fault]:
    """Make a Redis that forgets all scripts again and again."""
    with Data() as data:
        flushes = 0

        def strike(seconds: float) -> None:
            nonlocal flushes
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                data.client.script_flush()
                flushes += 1
                time.sleep(FLUSH_EVERY_S)

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            refused = errors(data.client, "NOSCRIPT")
            return f"SCRIPT FLUSH {flushes:,} times; NOSCRIPT answered {refused:,} times" if refused else ""

        yield Fault(data, data.url, strike, proof)


@contextlib.contextmanager
def out_of_memory() -> Iterator[Fault]:
    """Make a Redis that takes no writes, for it has less memory than it uses."""
    with Data() as data:

        def strike(seconds: float) -> None:
            data.client.config_set("maxmemory", 1)
            time.sleep(seconds)
            data.client.config_set("maxmemory", 0)

        def proof(_servers: Sequence[Serving], _seconds: float) -> str:
            refused = errors(data.client, "OOM")
            return f"OOM answered {refused:,} times" if refused else ""

        yield Fault(data, data.url, strike, proof)


def errors(client: Any, code: str) -> int:
    """Return how often a server has answered an error of that code."""
    found = client.info("errorstats").get(f"errorstat_{code}", {})
    return int(found.get("count", 0))
