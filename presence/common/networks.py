"""Client addresses: networks in settings, and the address by which limits count a client.

A home or a phone has an IPv6 network of 64 bits and may use any address in it. So limits count an IPv6
address by its network, and an IPv4-mapped address as IPv4.

Tests: `tests/transports/test_limits.py`, `tests/transports/test_proxied.py`.
"""

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network
HOST_BITS_V6 = 64


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
