"""One worker of a consumer group, as a process: ``python -m tests.subscriber.worker URL NAME FILE``.

It writes the id of each handled event to its own file, and raises on a poisoned one.
"""

import os
import sys

from presence.subscriber import Online, subscribe_sync

CLAIM_IDLE_S = 3.0  # far longer than a live worker pauses on a busy machine


class PoisonedError(Exception):
    """No handler accepts this event."""


def handle(event: object, done: int) -> None:
    if isinstance(event, Online):
        if event.uid == "poison":
            raise PoisonedError(event.uid)
        os.write(done, f"{event.shard} {event.id}\n".encode())


def main(url: str, name: str, path: str) -> None:
    done = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        try:
            with subscribe_sync(url, group="g", consumer=name, claim_idle=CLAIM_IDLE_S) as events:
                for event in events:
                    handle(event, done)
        except PoisonedError:
            continue


if __name__ == "__main__":
    main(*sys.argv[1:])
