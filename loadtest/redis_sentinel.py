"""Redis servers and the Sentinels that watch them, real processes on this machine; a replica takes over."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from loadtest.servers import SERVE_NO_STALE_DATA, LocalRedis, free_port, redis_binary, wait_for
from presence.store.embedded import die_with_parent
from presence.store.redis_client import RedisError, open_client

HOST: Final = "127.0.0.1"
SERVICE: Final = "presence"
USER: Final = "app"
PASSWORD: Final = "of-the-servers"  # of the user
SENTINEL_PASSWORD: Final = "of-the-sentinels"
DOWN_AFTER_MS: Final = 1000  # after so long a silent primary is suspected, and soon replaced
FAILOVER_TIMEOUT_MS: Final = 5000  # after twice as long the Sentinels try again
START_TIMEOUT_S: Final = 20.0
WHOLE_TIMEOUT_S: Final = 40.0  # a Sentinel demotes a former primary some ten seconds after its return
CALM_S: Final = 2.5  # DOWN_AFTER_MS, a reconnection, and some
POLL_INTERVAL_S: Final = 0.02


@dataclass(frozen=True)
class Secrets:
    """TLS on all ports, a user of the servers, and a password of the Sentinels.

    Attributes:
        folder: has the files ``ca``, ``server.crt`` and ``server.key``.
    """

    folder: Path

    @property
    def tls(self) -> dict[str, str]:
        """Settings of a server or a Sentinel."""
        names = {"tls-ca-cert-file": "ca", "tls-cert-file": "server.crt", "tls-key-file": "server.key"}
        files = {setting: str(self.folder / name) for setting, name in names.items()}
        return {**files, "tls-replication": "yes", "tls-auth-clients": "no"}

    @property
    def query(self) -> str:
        return f"ssl_ca_certs={self.folder}/ca"


class TcpRedis(LocalRedis):
    """A server that listens on a port, too.

    Args:
        primary: its port, for a replica of it.
        secrets: then the port wants TLS.
    """

    def __init__(
        self, binary: str | None = None, primary: int | None = None, secrets: Secrets | None = None
    ) -> None:
        self.port = free_port()
        settings = {"bind": HOST, "tls-port" if secrets else "port": str(self.port)}
        if secrets:
            settings |= {**secrets.tls, "user": f"{USER} on >{PASSWORD} ~* &* +@all"}
        if primary is not None:
            settings["replicaof"] = f"{HOST} {primary}"
        words = (word for name, value in settings.items() for word in (f"--{name}", *value.split()))
        super().__init__(binary, extra=(*words, *SERVE_NO_STALE_DATA))

    def replication(self) -> dict[str, Any]:
        """Return the answer to INFO replication; empty without one."""
        with contextlib.suppress(RedisError):
            found: dict[str, Any] = self.client.info("replication")
            return found
        return {}

    @property
    def is_primary(self) -> bool:
        """Whether it regards itself as a primary; False without an answer."""
        return self.replication().get("role") == "master"

    def offset(self) -> int:
        """Return how much it has of what was ever written."""
        found = self.replication()
        return int(found["slave_repl_offset" if found["role"] == "slave" else "master_repl_offset"])


class SentinelProcess:
    """One Sentinel.

    Attributes:
        client: a connection to it.
    """

    def __init__(self, binary: str, folder: Path, primary: int, quorum: int, secrets: Secrets | None) -> None:
        self.port = free_port()
        url = f"redis://{HOST}:{self.port}"
        lines = [
            *(f"bind {HOST}", f"dir {folder}"),
            f"sentinel monitor {SERVICE} {HOST} {primary} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}",
        ]
        if secrets:
            url = f"rediss://:{SENTINEL_PASSWORD}@{HOST}:{self.port}?{secrets.query}"
            lines += [f"{name} {value}" for name, value in secrets.tls.items()]
            lines += ["port 0", f"tls-port {self.port}", f"requirepass {SENTINEL_PASSWORD}"]
            lines.append(f"sentinel sentinel-pass {SENTINEL_PASSWORD}")
        else:
            lines.append(f"port {self.port}")
        self.client: Any = open_client(url)
        configuration = folder / f"{self.port}.conf"
        configuration.write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen(
            [binary, str(configuration), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - it makes one system call
        )

    def state(self) -> dict[str, Any]:
        """Return what it knows of the primary; empty without an answer."""
        with contextlib.suppress(RedisError):
            found: dict[str, Any] = self.client.sentinel_master(SERVICE, return_responses=True)
            return found
        return {}

    def freeze(self) -> None:
        """Stop the process: it answers nothing, and its connections stay."""
        self.process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


class SentinelSetup:
    """A primary with replicas, and Sentinels that watch it; for a ``with`` block.

    Args:
        secrets: for TLS and passwords.

    Attributes:
        servers: the first is the primary at first.
        url: names all Sentinels.
    """

    def __init__(
        self,
        replicas: int = 1,
        sentinels: int = 3,
        *,
        binary: str | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sentinel-"))
        self._cleanup = contextlib.ExitStack()
        self._cleanup.callback(shutil.rmtree, self._folder, ignore_errors=True)
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            self.servers = [self._cleanup.enter_context(TcpRedis(binary, secrets=secrets))]
            first = self.servers[0].port
            self.servers += [
                self._cleanup.enter_context(TcpRedis(binary, first, secrets)) for _ in range(replicas)
            ]
            self.sentinels: list[SentinelProcess] = []
            for _ in range(sentinels):
                each = SentinelProcess(
                    binary or redis_binary(), self._folder, first, sentinels // 2 + 1, secrets
                )
                self._cleanup.callback(each.close)
                self.sentinels.append(each)
            names = ",".join(f"{HOST}:{each.port}" for each in self.sentinels)
            self.url = f"redis+sentinel://{names}/{SERVICE}"
            if secrets:
                own = f"sentinel_password={SENTINEL_PASSWORD}&{secrets.query}"
                self.url = f"rediss+sentinel://{USER}:{PASSWORD}@{names}/{SERVICE}?{own}"
            self.wait_until_whole(START_TIMEOUT_S)
            failed.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._cleanup.close()

    @property
    def primary(self) -> TcpRedis:
        """The server that a majority of the Sentinels names; raises LookupError if there is none."""
        ports = [each.state().get("port") for each in self.sentinels]
        for server in self.servers:
            if ports.count(server.port) > len(self.sentinels) // 2:
                return server
        raise LookupError("the Sentinels name no primary")

    def wait_until_whole(self, seconds: float = WHOLE_TIMEOUT_S) -> None:
        """Wait until all servers follow one primary, and all Sentinels know all servers and each other."""
        if not wait_for(self._is_whole, seconds, poll_s=POLL_INTERVAL_S):
            raise TimeoutError(f"Sentinels: not whole within {seconds:g} s")

    def wait_until_replaced(self, former: TcpRedis, seconds: float = START_TIMEOUT_S) -> None:
        """Wait until a majority of the Sentinels names another primary."""
        if not wait_for(lambda: self.primary is not former, seconds, poll_s=POLL_INTERVAL_S):
            raise TimeoutError(f"Sentinels: no other primary within {seconds:g} s")

    def wait_until_calm(self, seconds: float = START_TIMEOUT_S) -> None:
        """Wait until all Sentinels name one primary, and have reached it for a while.

        For a second after a change a Sentinel may take the new primary for dead. A former primary that is
        back by then, without its data, could take its place.
        """
        since, give_up = time.monotonic(), time.monotonic() + seconds
        while time.monotonic() < since + CALM_S:
            if time.monotonic() > give_up:
                raise TimeoutError(f"Sentinels: not calm within {seconds:g} s")
            states = [each.state() for each in self.sentinels]
            port = states[0].get("port")
            if len({(state.get("port"), state.get("flags")) for state in states} | {(port, "master")}) != 1:
                since = time.monotonic()
            time.sleep(POLL_INTERVAL_S)

    def fail_over(self) -> None:
        """Let a Sentinel replace the primary, which goes on; return immediately."""
        self.sentinels[0].client.sentinel_failover(SERVICE)

    def _is_whole(self) -> bool:
        replicas, others = len(self.servers) - 1, len(self.sentinels) - 1
        states = [each.state() for each in self.sentinels]
        if {state.get("flags") for state in states} != {"master"}:
            return False
        if any(state["num-slaves"] != replicas or state["num-other-sentinels"] != others for state in states):
            return False
        links = [each.replication() for each in self.servers if each is not self.primary]
        return all(
            link.get("master_link_status") == "up" and link["master_port"] == self.primary.port
            for link in links
        )
