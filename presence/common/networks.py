"""Client addresses: networks in settings, and the address by which limits count a client.

A home or a phone has an IPv6 network of 64 bits and may use any address in it. So limits count an IPv6
address by its network, and an IPv4-mapped address as IPv4.

Tests: `tests/transports/test_limits.py`, `tests/transports/test_proxied.py`.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Generic, TypeAlias, TypeVar

Network: TypeAlias = IPv4Network | IPv6Network
HOST_BITS_V6 = 64
_MAPPED_BITS = 96  # what precedes the IPv4 address in an IPv4-mapped one

T = TypeVar("T")


def parse(text: str) -> tuple[Network, ...]:
    """Return the networks in a comma-separated list; an address is a network of one.

    Raises:
        ValueError: an element is not a network; the message names it.
    """
    networks = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(f"must be comma-separated networks such as 10.0.0.0/8: {error}") from None
    return tuple(networks)


def contains(networks: tuple[Network, ...], address: str) -> bool:
    """Return whether an address, as the kernel writes it, is in one of the networks."""
    if not networks:
        return False
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # not an internet address, as of a Unix socket
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in networks)


def is_loopback(host: str) -> bool:
    """Return whether a listener on a host is reachable from this machine only; names are not resolved."""
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower().rstrip(".") in {"localhost", "ip6-localhost"}
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback


def limit_key(address: str) -> str:
    """Return the key by which limits count an address: itself, or the 64-bit network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((int(parsed) >> HOST_BITS_V6 << HOST_BITS_V6, HOST_BITS_V6)))


def network_of(text: str) -> Network:
    """Return the network that a text names: an address is a network of one, an IPv4-mapped one is of IPv4.

    Raises:
        ValueError: it names none; the message says why.
    """
    if "%" in text:
        raise ValueError(f"{text!r} has a scope, which other machines do not know")
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        return network if mapped is None else IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def network_text(network: Network) -> str:
    """Return a network as text, a single address without its length."""
    is_address = network.prefixlen == network.max_prefixlen
    return str(network.network_address if is_address else network)


class NetworkMap(Generic[T]):
    """Values by network; an address finds those of all networks that contain it.

    A table for each length of prefix that is in use, so a look-up is O(these lengths), at most 33 for IPv4
    and 65 for IPv6, however many networks there are.
    """

    def __init__(self, items: Iterable[tuple[Network, T]] = ()) -> None:
        self._tables: dict[tuple[int, int], dict[int, T]] = {}  # by version and host bits; each by prefix
        for network, value in items:
            host_bits = network.max_prefixlen - network.prefixlen
            table = self._tables.setdefault((network.version, host_bits), {})
            table[int(network.network_address) >> host_bits] = value

    def containing(self, address: str) -> list[T]:
        """Return the values for an address, as `limit_key` writes it; none if it is no internet address.

        Networks of IPv6 that are smaller than those of `limit_key` are not found.
        """
        if not self._tables:
            return []
        try:
            parsed = ip_address(address.partition("/")[0])
        except ValueError:
            return []
        number = int(parsed)
        return [
            table[prefix]
            for (version, host_bits), table in self._tables.items()
            if version == parsed.version and (prefix := number >> host_bits) in table
        ]
