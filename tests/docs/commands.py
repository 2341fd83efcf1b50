"""Stand-ins for the installed commands of the pages: a command that runs forever is ended once it works.

Run as a program with the name of a command and its arguments; the commands of a stage call `main` here. It
has few imports, because it starts with every command of every page.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

PATIENCE_S = 25.0
FAILED = 1
# Commands that run forever, by their first words, and how the line begins that shows that they work;
# "": any output, because they print nothing before they work.
ENDLESS = {
    ("serve",): "ready ",
    ("timers", "run"): "ready ",
    ("followups", "run"): "presence: followups: running",
    ("rooms", "run"): "presence: rooms: running",
    ("webhooks", "run"): "presence: sending",
    ("tail",): "",
}
STREAMS = ("/v1/events", "/v1/live")
SUBSCRIBING = ("SUBSCRIBE", "PSUBSCRIBE", "MONITOR")


def install(folder: Path, redis_url: str) -> None:
    """Install the commands in a folder, which is to be first in PATH."""
    for name in ("presence", "redis-cli", "curl"):
        path = folder / name
        words = f"{sys.executable} -I -S {Path(__file__)} {name} {redis_url.removeprefix('unix://')}"
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)


def main(name: str, redis_socket: str, words: list[str]) -> int:
    """Run a command; return its exit status."""
    if name == "redis-cli":
        command = [_elsewhere(name), "-e", "-s", redis_socket, *words]
        is_endless = words[0].upper() in SUBSCRIBING or "BLOCK" in words
        return run_for_a_while(command, "") if is_endless else subprocess.call(command)
    if name == "curl":
        command = [_elsewhere(name), "-sS", "--fail-with-body", *words]
        is_endless = any(stream in word for word in words for stream in STREAMS)
        return run_for_a_while(command, "") if is_endless else subprocess.call(command)
    return presence(words)


def presence(words: list[str]) -> int:
    """Run a command of `presence`; return its exit status."""
    command = [sys.executable, "-m", "presence", *words]
    if words[:1] == ["serve"]:
        operators = ("--admin", "127.0.0.1:0") if "--admin" in words else ("--no-admin",)
        command += ["--port", "0", "--tls-port", "0", *operators]
    if words[:1] == ["client"]:
        commands_typed = "/who\n/quit\n"
        return subprocess.run(
            command, input=commands_typed, text=True, check=False, timeout=PATIENCE_S
        ).returncode
    if words[:1] == ["doctor"]:
        return max(
            0, subprocess.call(command) - FAILED
        )  # problems of this machine are no mistake of the page
    for beginning, sign in ENDLESS.items():
        if tuple(words[: len(beginning)]) == beginning and "--help" not in words:
            return run_for_a_while(command, sign)
    return subprocess.call(command)


def run_for_a_while(command: list[str], sign: str) -> int:
    """Run a command until it works, then ask it to end; return its exit status.

    Args:
        command: the command, whose output is read line by line.
        sign: how the line begins; "": any line of standard output.
    """
    errors = subprocess.STDOUT if sign else None
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    patience = threading.Timer(PATIENCE_S, program.kill)
    patience.start()
    works = False
    for line in program.stdout or ():
        print(line, end="", flush=True)
        if line.startswith(sign) and not works:
            works = True
            program.send_signal(signal.SIGTERM)
    status = program.wait()
    patience.cancel()
    if not works:
        return status or FAILED  # it ended by itself, which it should not
    return 0 if status == -signal.SIGTERM and not sign else status  # how redis-cli and curl end


def _elsewhere(name: str) -> str:
    """Return the installed program of that name, which is later in PATH."""
    ours = Path(sys.argv[0]).name
    for folder in os.environ["PATH"].split(os.pathsep)[1:]:
        if os.access(path := os.path.join(folder, name), os.X_OK):
            return path
    sys.exit(f"{ours}: {name} is not on PATH")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
