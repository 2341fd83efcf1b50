"""A mistake of the server's own that one connection meets: it ends that one, and the log stays clean."""

import re

from loadtest.hostile import faulty
from loadtest.hostile.stage import drop, ends_with, login, staged
from loadtest.nodes.outcome import Outcome
from protocol import Code

LOGS = ("--log-format", "console", "--log-level", "debug")  # each line stands as it was written
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
PORTION = 100  # of the connections that are open at once


def mistakes(count: int) -> Outcome:
    """Logins that meet an exception which nobody expects; its words hold what no log may show."""
    told = 0
    with staged(*LOGS, program=("-m", "loadtest.hostile.faulty")) as stage:
        for first in range(0, count, PORTION):
            clients = [stage.connect() for _ in range(min(PORTION, count - first))]
            for number, client in enumerate(clients, first):
                client.sendall(login(f"victim-{number}", idle_timeout=faulty.WISH_S))
            told += sum([ends_with(client, Code.SERVER_ERROR) for client in clients])
            for client in clients:
                drop(client)
        broken = stage.others_hurt()
        stage.serving.stop()
    lines = [str(line["event"]) for line in stage.serving.lines]
    said = [line for line in lines if "a mistake" in line]
    secrets = sum(faulty.SECRET in line for line in lines)
    controls = sum(CONTROLS.search(line) is not None for line in lines)
    if told != count:
        broken.append(f"{count - told} clients were not told server_error")
    if not said:
        broken.append("the log says nothing of it")
    if secrets or controls:
        broken.append(f"{secrets} secrets and {controls} control characters in the log")
    measured = (
        f"{told:,} told server_error, others lost 0; in {len(lines)} lines of its log secrets {secrets}, "
        f"control characters {controls}"
    )
    return Outcome("mistakes", f"{told:,} handlers that raise" if told else "", measured, broken)
