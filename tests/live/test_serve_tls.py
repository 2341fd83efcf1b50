"""`presence serve` with a certificate: both ports, several workers, and another certificate under way."""

import signal
import ssl
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import protocol
from presence.embedded import EmbeddedRedis
from protocol import Kind
from tests.live.server_process import Line, running_server
from tests.transports import certificates
from tests.waiting import wait_for


def peer(line: Line) -> bytes | None:
    """The certificate that a connection was shown."""
    assert isinstance(line.sock, ssl.SSLSocket)
    return line.sock.getpeercert(binary_form=True)


def test_tls_beside_plain_tcp_and_another_certificate_that_drops_nobody(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    cert, key = certificates.write(tmp_path)
    flags = ("--redis", redis_server.url, "--workers", "2", "--tls-port", "0")
    with (
        ExitStack() as stack,
        running_server(*flags, "--tls-cert", str(cert), "--tls-key", str(key)) as server,
    ):
        wait_for(lambda: len(server.said("serving tls")) == 2)
        (port,) = {line["port"] for line in server.said("serving tls")}

        def login(uid: str, *secured: Any) -> Line:
            address = (server.address[0], port) if secured else server.address
            line = stack.enter_context(closing(Line(address, *secured)))
            assert line.ask(protocol.login(uid, id=1)).kind == Kind.OK
            return line

        tls = (certificates.client_context(), certificates.HOST)
        plain = login("ann")
        before = [login(f"user-{n}", *tls) for n in range(8)]
        certificates.write(tmp_path, number=1)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(server.said("certificate renewed")) == 2)
        after = login("bob", *tls)
        assert {peer(each) for each in before} != {peer(after)}
        assert {line.beat().kind for line in (plain, *before)} == {Kind.OK}
    assert sum(line["transport"]["handshakes"] for line in server.said("stopped")) == 9
