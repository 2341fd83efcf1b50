"""Addresses of clients: the networks that a setting names, and what counts as one client's address.

A home or a phone has a whole IPv6 network of 64 bits for itself, and may take any address in it: so for
limits an IPv6 address counts by its network. An IPv4 address inside IPv6 counts as what it is.
"""

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network
HOST_BITS_V6 = 64


def parse(text: str) -> tuple[Network, ...]:
    """Return the networks that `text` names, with commas between; an address is a network of one.

    Raises:
        ValueError: one of them is none; the message says which.
    """
    networks = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(f"must be comma-separated networks such as 10.0.0.0/8: {error}") from None
    return tuple(networks)


def holds(networks: tuple[Network, ...], address: str) -> bool:
    """Return whether an address, as the kernel writes it, is in one of some networks."""
    if not networks:
        return False
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # of a socket that is not of the internet
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == network.version and parsed in network for network in networks)


def is_loopback(host: str) -> bool:
    """Return whether who listens on a host is reached from this machine only; names are not looked up."""
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower().rstrip(".") in {"localhost", "ip6-localhost"}
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback


def client_of(address: str) -> str:
    """Return what limits count an address by: itself, or the 64-bit network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((int(parsed) >> HOST_BITS_V6 << HOST_BITS_V6, HOST_BITS_V6)))
