"""Networks by their text, and the map that finds those that contain an address."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence.common.networks import NetworkMap, limit_key, network_of, network_text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7/32", "192.0.2.7"),
        ("192.0.2.0/24", "192.0.2.0/24"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("2001:DB8::/64", "2001:db8::/64"),
        ("2001:db8:0::1", "2001:db8::1"),
        ("::/0", "::/0"),
    ],
)
def test_a_network_has_one_text(text: str, canonical: str) -> None:
    assert network_text(network_of(text)) == canonical


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "does not appear to be"),
        ("ann", "does not appear to be"),
        ("192.0.2.7/24", "has host bits set"),
        ("192.0.2.0/33", "does not appear to be"),
        ("2001:db8::1/64", "has host bits set"),
        ("fe80::%eth0/64", "has a scope"),
    ],
)
def test_what_names_no_network_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        network_of(text)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("192.0.2.7", ["all", "host", "net"]),
        ("192.0.2.8", ["all", "net"]),
        ("198.51.100.1", ["all"]),
        ("::ffff:192.0.2.7", ["all", "host", "net"]),
        ("2001:db8::99", ["v6"]),
        ("2001:db8::1%eth0", ["v6"]),
        ("2001:db8:0:1::", []),
        ("", []),
        ("/run/x.sock", []),
    ],
)
def test_an_address_finds_all_networks_that_contain_it(address: str, found: list[str]) -> None:
    networks = {"all": "0.0.0.0/0", "host": "192.0.2.7", "net": "192.0.2.0/24", "v6": "2001:db8::/64"}
    by_network = NetworkMap((network_of(text), name) for name, text in networks.items())
    assert sorted(by_network.containing(limit_key(address))) == found


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)), max_size=30), st.integers(0, 2**32 - 1)
)
def test_the_map_finds_what_a_search_finds(networks: list[tuple[int, int]], address: int) -> None:
    made = {ip_network((number, bits), strict=False) for number, bits in networks}
    shown = ip_address(address)
    expected = {network for network in made if shown in network}
    assert set(NetworkMap((each, each) for each in made).containing(str(shown))) == expected
