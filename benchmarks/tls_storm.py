"""``python -m benchmarks.tls_storm``: all clients of a TLS server lose their connections and come back.

They are logged in, the certificate is renewed and reloaded, then all connections are reset at the same
moment. Two storms, one on each of two fresh servers: the clients have forgotten their TLS sessions, and they
resume them. Prints the seconds until the last login was granted, the server's CPU per client, and how many
connections were resumed. The load is a process in Python that makes the other half of each handshake, so the
seconds are those of server and load together.

Tests: `tests/system/benchmarks/test_tls_storm.py`.
"""

import argparse
import signal
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trustme

from loadtest import usage
from loadtest.arguments import from_1
from loadtest.outcome import markdown, print_progress
from loadtest.processes import exit_on_sigterm
from loadtest.servers import PresenceServer, wait_for
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.loadtest.server_address import raise_file_limit

HOST: Final = "localhost"
KEYS: Final = {"rsa": trustme.KeyType.RSA, "p256": trustme.KeyType.ECDSA}
PER_SECOND: Final = 500.0  # of the first logins
STORM_LIMIT_S: Final = 120.0
AFTER_S: Final = 2.0  # what still goes to Redis counts
RELOAD_LIMIT_S: Final = 10.0
FLAGS: Final = ("--tls-only", "--login-timeout", "60", "--idle-timeout", "300", "--disconnect-grace", "120")
HEAD: Final = "clients | granted | resumed | attempts | s to the last | ms of CPU of the server a client"


@dataclass(frozen=True)
class TlsStorm:
    """The result of one storm."""

    resumes: bool  # whether the clients had sessions to resume
    granted: int  # clients that were logged in at the end
    resumed: int  # of these
    attempts: int  # connections
    seconds: float  # until the last login was granted
    cpu_ms: float  # of the server's processor time a client

    def cells(self) -> list[str]:
        what = "with their sessions" if self.resumes else "without"
        counts = (f"{count:,}" for count in (self.granted, self.resumed, self.attempts))
        return [what, *counts, f"{self.seconds:.1f}", f"{self.cpu_ms:.2f}"]


class _Client(LoopClient):
    server_name = HOST
    attempts = 0
    is_resumed = False

    def on_connected(self) -> None:
        self.attempts += 1
        super().on_connected()

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        assert self.tls is not None
        self.is_resumed = self.tls.session_reused is True


def storm(key: trustme.KeyType, clients: int, workers: int, *, resumes: bool) -> TlsStorm:
    """Let the clients log in, and come back after a reload of the certificate."""
    authority = trustme.CA(key_type=key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    with TemporaryDirectory() as folder:
        cert = Path(folder) / "server.pem"

        def renew() -> None:
            pem = authority.issue_cert(HOST, key_type=key).private_key_and_cert_chain_pem
            pem.write_to_path(str(cert))

        renew()
        flags = ("--workers", str(workers), "--tls-cert", str(cert), *FLAGS)
        with PresenceServer(*flags) as server, ClientLoop(server.address) as loop:
            members = [_Client(loop, f"storm-{number}") for number in range(clients)]
            for each in members:
                each.context = context
            loop.log_in(members, clients / PER_SECOND + STORM_LIMIT_S, PER_SECOND)
            renew()
            server.process.send_signal(signal.SIGHUP)
            if not wait_for(lambda: len(server.logged("certificate renewed")) == workers, RELOAD_LIMIT_S):
                raise RuntimeError("the certificate was not reloaded")
            for each in members:
                assert each.tls is not None
                each.tls_session = each.tls.session if resumes else None
                each.attempts = 0
            pids = usage.server_processes(server.process.pid)
            cpu_s, begun = sum(usage.cpu_seconds_by_pid(pids).values()), time.monotonic()
            for each in members:
                each.close(reset=True)
            loop.connect_all(members, per_second=float("inf"))
            loop.run(STORM_LIMIT_S, lambda: loop.count_logged_in() == clients)
            seconds, granted = time.monotonic() - begun, loop.count_logged_in()
            time.sleep(AFTER_S)
            cpu_s = sum(usage.cpu_seconds_by_pid(pids).values()) - cpu_s
            resumed = sum(each.is_resumed for each in members if each.is_logged_in)
            attempts = sum(each.attempts for each in members)
    return TlsStorm(resumes, granted, resumed, attempts, seconds, cpu_s / clients * 1000)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls_storm", description=__doc__)
    parser.add_argument("--clients", type=from_1, default=10_000)
    parser.add_argument("--workers", type=from_1, default=3)
    parser.add_argument("--key", choices=KEYS, default="rsa", help="of the certificate")
    arguments = parser.parse_args()
    usage.require_linux()
    raise_file_limit()
    found = []
    for resumes in (False, True):
        print_progress("with TLS sessions …" if resumes else "without TLS sessions …")
        key = KEYS[arguments.key]
        found.append(storm(key, arguments.clients, arguments.workers, resumes=resumes))
    print(markdown(HEAD, (each.cells() for each in found)))
    return 0 if all(each.granted == arguments.clients for each in found) else 1


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
