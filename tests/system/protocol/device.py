"""A client in another language as a program: a device that takes commands and prints what it sees."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.support.waiting import WAIT_TIMEOUT_S, wait_for

Line = dict[str, Any]


class Device:
    """A device on the command line: commands in, events and answers out; `lines` has its output so far.

    Args:
        command: the program; it gets `host port uid`, and `more` arguments.
        environment: variables besides those of this process.
    """

    def __init__(
        self, command: Sequence[str], address: tuple[str, int], uid: str, *more: str, **environment: str
    ) -> None:
        host, port = address
        self.process = subprocess.Popen(
            [*command, host, str(port), uid, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.lines: list[Line] = []
        self._taken = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()

    def ask(self, verb: str, *arguments: object) -> Any:
        """Run a command; return its answer or its error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self._wait(lambda line: line.get("verb") == verb, take=False)
        self.lines.remove(line)
        return line["answer"] if "answer" in line else line["error"]

    def sees(self, *uids: str) -> None:
        """Wait until these users are online for others too: a login is answered before Redis has it."""

        def are_online() -> bool:
            states = self.ask("query", uids)
            assert set(states) == set(uids), states
            return all(each["status"] == "online" for each in states.values())

        wait_for(are_online)

    def told(self, event: str, *, within_s: float = WAIT_TIMEOUT_S, **parts: object) -> Line:
        """Wait for the next matching event; `parts`: what it or its state must contain."""

        def fits(line: Line) -> bool:
            state = line.get("state") or {}
            return line.get("event") == event and all(
                line.get(name, state.get(name)) == value for name, value in parts.items()
            )

        return self._wait(fits, take=True, within_s=within_s)

    def _wait(self, fits: Callable[[Line], bool], *, take: bool, within_s: float = WAIT_TIMEOUT_S) -> Line:
        give_up = time.monotonic() + within_s
        with self._news:
            while True:
                for index in range(self._taken, len(self.lines)):
                    if fits(self.lines[index]):
                        if take:
                            self._taken = index + 1
                        return self.lines[index]
                assert self._news.wait(give_up - time.monotonic()), self.lines

    def close(self) -> int:
        """Log out; return the exit status."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait(WAIT_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it as a crash would."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError), self.process:
            pass
        self._reader.join(WAIT_TIMEOUT_S)


class ClientProgram(NamedTuple):
    """How to run a device with the client of one language.

    Attributes:
        command: the program, without arguments.
        authority: the variable that names the file of a certificate authority to trust.
    """

    command: tuple[str, ...]
    authority: str

    def device(self, address: tuple[str, int], uid: str, *more: str, **environment: str) -> Device:
        """Start a device of a user."""
        return Device(self.command, address, uid, *more, **environment)


def in_typescript(client: Path) -> ClientProgram:
    """Return the program of a client that `node_package.built_client` has built."""
    return ClientProgram(("node", str(client / "dist" / "examples" / "device.js")), "NODE_EXTRA_CA_CERTS")
