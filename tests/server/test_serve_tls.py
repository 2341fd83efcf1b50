"""`presence serve` with a certificate: both ports, several workers, resumed sessions, a new certificate."""

import os
import signal
import socket
import ssl
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from presence import protocol
from presence.protocol import Kind
from presence.store.embedded import EmbeddedRedis
from presence.transports.accept_rotation import PERIOD_S
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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_resumed_by_every_worker_after_a_reload_and_by_a_replaced_worker(
    redis_server: EmbeddedRedis, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    cert, key = certificates.write(tmp_path)
    flags = ("--redis", redis_server.url, "--workers", "2", "--tls-only", "--disconnect-grace", "0")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificates.authority().configure_trust(context)
    context.maximum_version = version
    with running_server(*flags, "--tls-cert", str(cert), "--tls-key", str(key)) as server:

        def resumed(session: ssl.SSLSession | None) -> tuple[bool | None, ssl.SSLSession | None]:
            """Log in with the session of another connection; whether it was resumed, and the next one."""
            connection = socket.create_connection(server.address, TIMEOUT_S)
            tls = context.wrap_socket(connection, server_hostname=certificates.HOST, session=session)
            with closing(Phone(tls)) as phone:
                assert phone.ask(protocol.login("ann", id=1)).kind == Kind.OK
                return tls.session_reused, tls.session

        is_resumed, session = resumed(None)
        assert not is_resumed

        def resumes_at_every_worker() -> bool:
            """Log in six times over two periods of the accept rotation; whether each was resumed."""
            answers = []
            for _ in range(6):
                answers.append(resumed(session)[0])
                time.sleep(0.4 * PERIOD_S)
            return all(answers)

        assert resumes_at_every_worker()
        certificates.write(tmp_path, number=1)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(server.logged("certificate renewed")) == 2)
        assert resumes_at_every_worker()
        os.kill(server.logged("worker started")[0]["pid"], signal.SIGKILL)
        wait_for(lambda: len(server.logged("serving TLS")) == 3)
        assert resumes_at_every_worker()
    workers = [line["transport"] for line in server.logged("stopped")]
    assert len(workers) == 2
    assert all(worker["handshakes_resumed"] for worker in workers)
    others = sum(worker["handshakes"] - worker["handshakes_resumed"] for worker in workers)
    assert others <= 1, "that of the first connection"
