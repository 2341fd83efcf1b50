"""Where a server listens: with TLS or without, on ports that are picked, kept for workers, or taken."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from presence import ports
from presence.ports import CannotListen, Ports
from presence.settings import Settings

CERT = Path("cert.pem")
PLAIN, BOTH, ALONE = (
    Settings(port=0, tls_port=0),
    Settings(port=0, tls_port=0, tls_cert=CERT),
    Settings(port=0, tls_port=0, tls_cert=CERT, tls_only=True),
)
Open = Callable[..., Ports]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open ports, to be closed when the test is over."""
    with ExitStack() as stack:
        yield lambda settings, **options: stack.enter_context(closing(ports.listening(settings, **options)))


def test_without_a_certificate_there_is_plain_tcp_only(opened: Open) -> None:
    found = opened(PLAIN)
    assert found.secured_address is None
    assert found.address.port == found.plain[0].getsockname()[1]


def test_with_one_there_are_both_and_the_plain_port_is_told(opened: Open) -> None:
    found = opened(BOTH)
    assert found.secured_address is not None
    assert found.address.port == found.plain[0].getsockname()[1] != found.secured_address.port
    for address in (found.address, found.secured_address):
        socket.create_connection(address).close()


def test_tls_alone_has_the_port(opened: Open) -> None:
    found = opened(ALONE)
    assert found.plain == []
    assert found.address == found.secured_address


@pytest.mark.parametrize("settings", [PLAIN, BOTH, ALONE], ids=["plain", "both", "alone"])
def test_what_is_kept_for_workers_is_shared_by_them_and_by_nobody_else(
    opened: Open, settings: Settings
) -> None:
    with closing(ports.reserved(settings)) as kept:
        theirs = ports.settled(settings, kept)
        workers = [opened(theirs, shared=True) for _ in range(2)]
        assert {(each.address, each.secured_address) for each in workers} == {
            (kept.address, kept.secured_address)
        }
        with pytest.raises(CannotListen, match=f"^127.0.0.1:{kept.address.port}: "):
            ports.listening(theirs)


def test_a_port_for_tls_that_is_taken_is_named_and_gives_the_other_back(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, away = free.getsockname()[1], taken.getsockname()[1]
        free.close()
        with pytest.raises(CannotListen) as caught:
            ports.listening(Settings(port=port, tls_port=away, tls_cert=CERT))
    assert caught.value.address == f"127.0.0.1:{away}"
    opened(Settings(port=port))
