"""TLS to a Redis Cluster."""

import time
from pathlib import Path

from loadtest.servers import free_port
from presence.common.errors import StoreUnavailable
from tests.store.test_redis_tls import TlsServer, contact, refusal


def test_a_cluster_behind_tls_is_entered_and_found_by_name(folder: Path) -> None:
    bus = ("--cluster-port", str(free_port()), "--tls-cluster", "yes", "--cluster-node-timeout", "1000")
    names = ("--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname")
    tls = TlsServer(folder, "--cluster-enabled", "yes", *bus, *names)
    try:
        tls.server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")  # type: ignore[no-untyped-call]
        url = tls.url().replace("rediss:", "rediss+cluster:")
        deadline = time.monotonic() + 10
        while not is_taken(url):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "its certificate is refused" in refusal(url.replace("/ca", "/stranger-ca"))
    finally:
        tls.server.close()


def is_taken(url: str) -> bool:
    try:
        contact(url)
    except StoreUnavailable:  # a cluster takes no writes in its first two seconds
        return False
    return True
