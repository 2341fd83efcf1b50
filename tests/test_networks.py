"""Which addresses are in a network, which count as one client's, and which are of this machine."""

import pytest

from presence import networks

LOOPBACK = ("127.0.0.1", "127.9.9.9", "::1", "::1%lo", "::ffff:127.0.0.1", "localhost", "LOCALHOST.")
ELSEWHERE = ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "localhost.example", "a b")


@pytest.mark.parametrize("host", [*LOOPBACK, *ELSEWHERE])
def test_who_listens_on_loopback_alone_is_reached_from_this_machine_alone(host: str) -> None:
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
    assert networks.holds(networks.parse(text), address) == is_in


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
    ],
)
def test_what_limits_count_a_client_by(address: str, client: str) -> None:
    assert networks.client_of(address) == client
