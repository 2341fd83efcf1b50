"""Hold the fake Redis against a real one: ``python -m tests.simulation.differential --calls 20000``."""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Final

import redis

from presence.embedded import find_binary
from tests.simulation.command_plays import CommandPlay
from tests.simulation.fake.commands import COMMANDS, Command
from tests.simulation.script_plays import CHANNELS, ScriptPlay
from tests.simulation.twins import Different, Twins
from tests.store.servers import Server

CALLS_A_PLAY: Final = 60
PLAYS: Final[dict[str, Callable[[Random, Twins], ScriptPlay | CommandPlay]]] = {
    "scripts": ScriptPlay,
    "commands": CommandPlay,
}


def compare(
    client: "redis.Redis", kind: str, seed: int, calls: int, commands: Mapping[bytes, Command] = COMMANDS
) -> int:
    """Make random calls on the fake and on the real Redis; return how many.

    Args:
        client: of a real server, whose keys are all deleted.
        kind: of `PLAYS`.
        seed: of the first play; further plays count on from it.
        calls: at least so many.
        commands: of the fake Redis.

    Raises:
        Different: they did not do the same; the message begins with the play's seed.
    """
    twins = Twins(client, CHANNELS, commands)
    made = 0
    try:
        while made < calls:
            twins.start()
            play = PLAYS[kind](Random(f"{kind} {seed}"), twins)
            for step in range(CALLS_A_PLAY):
                try:
                    play.step()
                    made += 1
                except Different as error:
                    raise Different(f"{kind}, seed {seed}, call {step}: {error}") from error
            try:
                twins.finish()
            except Different as error:
                raise Different(f"{kind}, seed {seed}, at the end: {error}") from error
            seed += 1
    finally:
        twins.close()
    return made


def main() -> None:
    """Compare on a server of its own, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=list(PLAYS), default="scripts")
    options = parser.parse_args()
    binary = find_binary()
    assert binary, "the embedded server is not installed"
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(binary, Path(folder))
        began = time.monotonic()
        try:
            made = compare(server.client, options.kind, options.seed, options.calls)
        finally:
            server.close()
    print(f"{options.kind}: {made} calls, different 0, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
