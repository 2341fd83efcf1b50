"""``python -m benchmarks.java_clients``: thousands of clients in one JVM against one server.

It builds the Java client; the clients of one JVM log in and stay online with T = 30 s. It prints their
threads, the heap of each, and the events of them in the meantime. The exit status is 1 if one was offline.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loadtest.arguments import from_1
from loadtest.outcome import markdown
from loadtest.servers import PresenceServer
from presence.store.embedded import embedded_redis
from presence.store.redis_client import open_client

CLIENT: Final = Path(__file__).parents[1] / "protocol" / "clients" / "java"
FIRST_UID: Final = 1000  # those below warm up
T_S: Final = 30


def event_types(url: str) -> Counter[str]:
    """Return how many events of each type the stream of the clients has."""
    found: Counter[str] = Counter()
    with open_client(url) as connection:
        for key in connection.scan_iter("*:events", count=1000):
            entries: Any = connection.xrange(key)
            for _, fields in entries:
                found[fields[b"type"].decode()] += int(fields[b"uid"][1:]) >= FIRST_UID
    return found


def build() -> None:
    """Build the client and its tests."""
    subprocess.run([CLIENT / "build"], check=True)


def java_command(program: str) -> list[str]:
    """Return the command that runs a program of the tests of the client."""
    path = f"{CLIENT}/target/presence-client.jar:{CLIENT}/target/test"
    return ["java", "-XX:+UseSerialGC", "-cp", path, f"presence.client.{program}"]


def measure(clients: int, seconds: int) -> dict[str, object]:
    build()
    with (
        embedded_redis() as store,
        PresenceServer("--redis", store.url, "--idle-timeout", str(T_S)) as server,
    ):
        host, port = server.address
        numbers = map(str, (port, FIRST_UID, clients, seconds))
        command = [*java_command("Crowd"), host, *numbers]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:
            assert java.stdout is not None
            found: dict[str, object] = json.loads(java.stdout.readline())
            found["events"] = dict(event_types(store.url))
            java.kill()
    return found


def is_quiet(found: Mapping[str, object], clients: int) -> bool:
    """Return whether all clients have stayed online, and the stream of events says the same."""
    return found["lost"] == found["ended"] == 0 and found["events"] == {"online": clients}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=from_1, default=5000)
    parser.add_argument("--seconds", type=from_1, default=600, help="after the last login")
    options = parser.parse_args()
    found = measure(options.clients, options.seconds)
    print(markdown(("what", "found"), [(name, str(value)) for name, value in found.items()]))
    sys.exit(0 if is_quiet(found, options.clients) else 1)


if __name__ == "__main__":
    main()
