"""Listening sockets: with or without TLS, on ports that are picked, reserved for workers, or in use."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from presence.common import networks
from presence.config.settings import Settings
from presence.server import listeners
from presence.server.listeners import CannotListen, Listeners

CERT = Path("cert.pem")
PLAIN, BOTH, ALONE = (
    Settings(port=0, tls_port=0),
    Settings(port=0, tls_port=0, tls_cert=CERT),
    Settings(port=0, tls_port=0, tls_cert=CERT, tls_only=True),
)
Open = Callable[..., Listeners]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open listeners, closed after the test."""
    with ExitStack() as stack:
        yield lambda settings, **options: stack.enter_context(
            closing(listeners.open_listeners(settings, **options))
        )


def test_plain_tcp_tls_or_both_are_served_and_the_plain_port_is_reported_if_there_is_one(
    opened: Open,
) -> None:
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
def test_reserved_addresses_are_shared_by_workers_only(opened: Open, settings: Settings) -> None:
    with closing(listeners.reserve_addresses(settings)) as kept:
        theirs = listeners.with_actual_ports(settings, kept)
        workers = [opened(theirs, shared=True) for _ in range(2)]
        assert {(each.address, each.secured_address) for each in workers} == {
            (kept.address, kept.secured_address)
        }
        with pytest.raises(CannotListen, match=f"^127.0.0.1:{kept.address.port}: ") as caught:
            listeners.open_listeners(theirs)
        assert caught.value.problem.endswith(
            f": give another, or see ss -ltnp 'sport = :{kept.address.port}'"
        )


def test_tls_port_in_use_is_reported_and_the_plain_port_is_released(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, away = free.getsockname()[1], taken.getsockname()[1]
        free.close()
        with pytest.raises(CannotListen) as caught:
            listeners.open_listeners(Settings(port=port, tls_port=away, tls_cert=CERT))
    assert caught.value.address == f"127.0.0.1:{away}"
    opened(Settings(port=port))


# Networks, and the addresses that count as one client's


LOOPBACK = ("127.0.0.1", "127.9.9.9", "::1", "::1%lo", "::ffff:127.0.0.1", "localhost", "LOCALHOST.")
ELSEWHERE = ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "localhost.example", "a b")


@pytest.mark.parametrize("host", [*LOOPBACK, *ELSEWHERE])
def test_loopback_is_reachable_from_this_machine_only(host: str) -> None:
    assert networks.is_loopback(host) is (host in LOOPBACK)


@pytest.mark.parametrize(
    ("text", "address", "is_in"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("192.0.2.7, 10.0.0.0/8", "192.0.2.7", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("2001:db8::/32", "2001:db8::1%eth0", True),
        ("2001:db8::/32", "10.1.2.3", False),
        ("10.0.0.0/8", "", False),
        ("", "10.1.2.3", False),
    ],
)
def test_an_address_is_in_the_networks_or_not(text: str, address: str, *, is_in: bool) -> None:
    assert networks.contains(networks.parse(text), address) == is_in


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
    ],
)
def test_address_that_limits_count_by(address: str, client: str) -> None:
    assert networks.limit_key(address) == client
