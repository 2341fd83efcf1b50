"""`presence serve` with a certificate: both ports, several workers, and a new certificate."""

import signal
import socket
import ssl
from contextlib import ExitStack, closing
from pathlib import Path

from presence import protocol
from presence.protocol import Kind
from presence.store.embedded import EmbeddedRedis
from tests.support.phone import TIMEOUT_S, Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.transports import certificates


def peer(phone: Phone) -> bytes | None:
    """Return the certificate that the server presented."""
    assert isinstance(phone.socket, ssl.SSLSocket)
    return phone.socket.getpeercert(binary_form=True)


def test_tls_beside_plain_tcp_and_a_new_certificate_that_drops_no_client(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    cert, key = certificates.write(tmp_path)
    flags = ("--redis", redis_server.url, "--workers", "2", "--tls-port", "0")
    with (
        ExitStack() as stack,
        running_server(*flags, "--tls-cert", str(cert), "--tls-key", str(key)) as server,
    ):
        wait_for(lambda: len(server.logged("serving TLS")) == 2)
        (port,) = {line["port"] for line in server.logged("serving TLS")}

        def login(uid: str, port: int) -> Phone:
            connection = socket.create_connection((server.address[0], port), TIMEOUT_S)
            if port != server.address[1]:
                context = certificates.client_context()
                connection = context.wrap_socket(connection, server_hostname=certificates.HOST)
            phone = stack.enter_context(closing(Phone(connection)))
            assert phone.ask(protocol.login(uid, id=1)).kind == Kind.OK
            return phone

        plain = login("ann", server.address[1])
        before = [login(f"user-{n}", port) for n in range(8)]
        certificates.write(tmp_path, number=1)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(server.logged("certificate renewed")) == 2)
        after = login("bob", port)
        assert {peer(each) for each in before} != {peer(after)}
        assert {phone.send_keepalive().kind for phone in (plain, *before)} == {Kind.OK}
    assert sum(line["transport"]["handshakes"] for line in server.logged("stopped")) == 9
