"""Keeps users or addresses out for a time or for ever, and lifts that again; calls block.

Redis has the table of bans. Every node reads it and enforces it: it refuses logins and connections, and ends
the sessions.

Tests: `tests/cli/test_ban.py`, `tests/server/test_ban_enforcer.py`.
"""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from presence.common.networks import HOST_BITS_V6, Network, network_of, network_text
from presence.ops.kick import KickResult, Target, wait_until_ended
from presence.protocol.schema import device_complaint, uid_complaint
from presence.reader import PresenceReader
from presence.store.ban_table import MAX_DURATION_S, MAX_REASON_CHARS, BanTable
from presence.store.control_messages import BanNotice

MAX_UIDS: Final = 500  # in one call
UIDS_SENT: Final = 10  # for the logs of nodes; so many addresses, too
# Larger networks, by version of IP, are more likely a mistake than a decision.
MIN_PREFIX_BITS: Final = {4: 8, 6: 16}
MAX_PREFIX_BITS: Final = {4: 32, 6: 128 - HOST_BITS_V6}
_LOOPBACK: Final = {4: network_of("127.0.0.0/8"), 6: network_of("::/64")}


@dataclass(frozen=True, slots=True)
class BanResult:
    until_ms: int | None  # Unix milliseconds of Redis' clock; None: for ever
    ended: KickResult  # what became of the sessions

    def report(self, uid: str) -> dict[str, object]:
        """Return the outcome for a user as ``presence ban --json`` prints it."""
        return {"until_ms": self.until_ms, **self.ended.report(uid)}


def ban(
    redis_url: str,
    reader: PresenceReader,
    uids: Iterable[str],
    *,
    device: str | None = None,
    for_s: float | None = None,
    reason: str = "",
    by: str,
    wait_s: float,
) -> BanResult:
    """Ban users, all or none, and wait until their sessions have ended, for at most `wait_s`.

    Args:
        redis_url: where the table is.
        reader: of the same Redis.
        uids: at most `MAX_UIDS`.
        device: only this one, "" for the default one; None: all.
        for_s: seconds; None: for ever.
        reason: for the users.
        by: the caller, for operators and logs.
        wait_s: seconds.

    Raises:
        TooManyBans: the table is full.
        RedisError, StoreUnavailable, StoreError: Redis does not answer.
        ValueError: too many users, an invalid one, or a duration or a reason that is too long.
    """
    wanted = check(uids, device)
    _check_terms(for_s, reason)
    with closing(BanTable(redis_url, reader.keys())) as bans:
        until_ms = bans.add(wanted, device, for_s, reason, by)
        nodes = [each.node for each in reader.nodes()]
        states = reader.states(wanted)  # before nodes end sessions, so that these are counted
        bans.notify(nodes, BanNotice(by, False, len(wanted), tuple(wanted[:UIDS_SENT])))
    targets = [
        Target(uid, each["device"], each["session"], each["node"], False)
        for uid, state in states.items()
        for each in state["sessions"]
        if device in (None, each["device"])
    ]
    return BanResult(until_ms, wait_until_ended(reader, targets, wait_s))


def unban(
    redis_url: str, reader: PresenceReader, uids: Iterable[str], *, device: str | None = None, by: str
) -> dict[str, list[str | None]]:
    """Lift bans of users: those of a device, or all; return the devices whose bans were lifted.

    In the result None stands for a ban of all devices, and a user without a ban has an empty list. Raises as
    `ban`.
    """
    wanted = check(uids, device)
    found: dict[str, list[str | None]] = {uid: [] for uid in wanted}
    with closing(BanTable(redis_url, reader.keys())) as bans:
        for uid, which in bans.lift(wanted, device):
            found[uid].append(which)
        if users := [uid for uid, lifted in found.items() if lifted]:
            nodes = [each.node for each in reader.nodes()]
            bans.notify(nodes, BanNotice(by, True, len(users), tuple(users[:UIDS_SENT])))
    return found


def check(uids: Iterable[str], device: str | None) -> list[str]:
    """Return uids, each once, if they and the device are valid.

    Raises:
        ValueError: one is invalid, or there are too many.
    """
    wanted = list(dict.fromkeys(uids))
    if len(wanted) > MAX_UIDS:
        raise ValueError(f"at most {MAX_UIDS} users at a time")
    for uid in wanted:
        if complaint := uid_complaint(uid):
            raise ValueError(f"{uid!r} is not a valid uid: it {complaint}")
    if device and (complaint := device_complaint(device)):
        raise ValueError(f"{device!r} is not a valid device: it {complaint}")
    return wanted


def ban_addresses(
    redis_url: str,
    reader: PresenceReader,
    addresses: Iterable[str],
    *,
    for_s: float | None = None,
    reason: str = "",
    by: str,
    force: bool = False,
) -> int | None:
    """Ban addresses and networks, all or none. Nodes end the sessions from there by themselves.

    Args:
        addresses: at most `MAX_UIDS`; see `check_addresses`, also for `force`.

    For the other arguments and what is raised see `ban`.

    Returns:
        Unix milliseconds of the end by Redis' clock; None for ever.
    """
    wanted = check_addresses(addresses, force=force)
    _check_terms(for_s, reason)
    with closing(BanTable(redis_url, reader.keys())) as bans:
        until_ms = bans.add_addresses(wanted, for_s, reason, by)
        nodes = [each.node for each in reader.nodes()]
        bans.notify(nodes, BanNotice(by, False, 0, (), tuple(wanted[:UIDS_SENT])))
    return until_ms


def unban_addresses(
    redis_url: str, reader: PresenceReader, addresses: Iterable[str], *, by: str
) -> dict[str, bool]:
    """Lift bans of exactly these addresses and networks; return which were banned. Raises as `ban`."""
    wanted = check_addresses(addresses, force=True)
    with closing(BanTable(redis_url, reader.keys())) as bans:
        lifted = bans.lift_addresses(wanted)
        if lifted:
            nodes = [each.node for each in reader.nodes()]
            bans.notify(nodes, BanNotice(by, True, 0, (), tuple(lifted[:UIDS_SENT])))
    return {address: address in lifted for address in wanted}


def check_addresses(addresses: Iterable[str], *, force: bool = False) -> list[str]:
    """Return addresses and networks as the table has them, each once.

    Args:
        addresses: such as ``192.0.2.7``, ``192.0.2.0/24`` or ``2001:db8::/64``. Smaller networks of IPv6 are
            refused: a client may use any address of its 64 bits.
        force: whether loopback and very large networks may be among them, too.

    Raises:
        ValueError: one is invalid or refused, or there are too many.
    """
    wanted = list(dict.fromkeys(network_text(_bannable(each, force=force)) for each in addresses))
    if len(wanted) > MAX_UIDS:
        raise ValueError(f"at most {MAX_UIDS} addresses at a time")
    return wanted


def _bannable(text: str, *, force: bool) -> Network:
    try:
        network = network_of(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an address or a network: {error}") from None
    bits, version = network.prefixlen, network.version
    if bits > MAX_PREFIX_BITS[version]:
        whole = network.supernet(new_prefix=MAX_PREFIX_BITS[version])
        raise ValueError(f"{text}: a client may use all addresses of its /64: ban {whole}")
    if force:
        return network
    if bits < MIN_PREFIX_BITS[version]:
        raise ValueError(f"{text}: so large a network is banned only with force")
    if network.overlaps(_LOOPBACK[version]):
        raise ValueError(f"{text}: clients of a proxy on this machine may have it: banned only with force")
    return network


def _check_terms(for_s: float | None, reason: str) -> None:
    if for_s is not None and not 0 < for_s <= MAX_DURATION_S:
        raise ValueError(f"a ban lasts for more than 0 s and at most {MAX_DURATION_S} s, or for ever")
    if len(reason) > MAX_REASON_CHARS:
        raise ValueError(f"a reason has at most {MAX_REASON_CHARS} characters")
