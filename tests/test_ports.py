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


def test_plain_tcp_tls_or_both_are_served_and_the_plain_port_is_told_if_there_is_one(opened: Open) -> None:
    plain, both, alone = opened(PLAIN), opened(BOTH), opened(ALONE)
    assert plain.secured_address is None
    assert plain.address.port == plain.plain[0].getsockname()[1]
    assert both.secured_address is not None
    assert both.address.port == both.plain[0].getsockname()[1] != both.secured_address.port
    for address in (both.address, both.secured_address):
        socket.create_connection(address).close()
    assert alone.plain == []
    assert alone.address == alone.secured_address


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
