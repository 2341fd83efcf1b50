"""`presence serve` with a certificate: both ports, several workers, and another certificate under way."""

import signal
import socket
import ssl
from contextlib import ExitStack, closing
from pathlib import Path

import protocol
from presence.embedded import EmbeddedRedis
from protocol import Kind
from tests.live.phone import Phone
from tests.live.server_process import ServerProcess, running_server, wait_for
from tests.live.test_reload import PATIENCE_S, times
from tests.transports import certificates


def dial(server: ServerProcess) -> Phone:
    """Return a connection to the port for TLS."""
    (port,) = {line["port"] for line in server.lines if line["event"] == "serving tls"}
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    return Phone(certificates.client_context().wrap_socket(plain, server_hostname=certificates.HOST))


def shown(phone: Phone) -> bytes | None:
    assert isinstance(phone.socket, ssl.SSLSocket)
    return phone.socket.getpeercert(binary_form=True)


def test_tls_beside_plain_tcp_and_another_certificate_that_drops_nobody(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    cert, key = certificates.write(tmp_path)
    flags = ("--redis", redis_server.url, "--workers", "2", "--tls-port", "0")
    with (
        ExitStack() as stack,
        running_server(*flags, "--tls-cert", str(cert), "--tls-key", str(key)) as server,
    ):
        wait_for(lambda: times(server, "serving tls") == 2, PATIENCE_S)
        plain = stack.enter_context(closing(Phone(server.address)))
        assert plain.ask(protocol.login("ann", id=1)).kind == Kind.OK
        before = [stack.enter_context(closing(dial(server))) for _ in range(8)]
        for n, each in enumerate(before):
            assert each.ask(protocol.login(f"user-{n}", id=1)).kind == Kind.OK
        certificates.write(tmp_path, number=1)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: times(server, "certificate renewed") == 2, PATIENCE_S)
        after = stack.enter_context(closing(dial(server)))
        assert after.ask(protocol.login("bob", id=1)).kind == Kind.OK
        assert {shown(each) for each in before} != {shown(after)}
        assert {phone.beat().kind for phone in (plain, *before)} == {Kind.OK}
    assert sum(line["transport"]["handshakes"] for line in server.lines if line["event"] == "stopped") == 9
