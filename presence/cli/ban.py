"""``presence ban``: keeps users or addresses out, and ends their sessions."""

import argparse
from collections.abc import Iterable

from presence.cli.errors import FAILED, OK
from presence.cli.kick import add_wait, outcome, print_left
from presence.cli.options import DataLocation, UsageError, add_reader, device_argument, duration, uid_argument
from presence.cli.redis_errors import caller, with_redis
from presence.common.text import json_line, printable, utc_time
from presence.ops import ban
from presence.ops.ban import BanResult
from presence.reader import PresenceReader
from presence.store.ban_table import MAX_REASON_CHARS

_DESCRIPTION = (
    "Keeps users, or with --address networks, out: servers refuse their logins, end their sessions, and give "
    "them the reason. A ban replaces an earlier one of the same users and device, or network. Servers learn "
    "of it immediately, and keep to it while Redis is away."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    add_banned(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="accept a loopback address, and a network of more than /8 (IPv6: /16)",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        metavar="DURATION",
        type=duration,
        help="how long, as 90s, 10m, 1h or 7d (default: for ever)",
    )
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        type=_reason,
        default="",
        help=f"text that the users get, at most {MAX_REASON_CHARS} characters",
    )
    add_wait(parser)
    add_reader(parser, "print one JSON object: uid, or network, to the end of the ban, sessions, those left")


def add_banned(parser: argparse.ArgumentParser) -> None:
    """Add arguments that name users or addresses."""
    parser.add_argument("uids", nargs="*", metavar="UID", type=uid_argument)
    parser.add_argument(
        "--address",
        dest="addresses",
        metavar="NETWORK",
        action="append",
        default=[],
        help="an address or a network, as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/64, in place of users; "
        "may be repeated",
    )
    parser.add_argument(
        "--device",
        metavar="D",
        type=device_argument,
        help='only this device; "" is the default one (default: all)',
    )


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Ban users and wait until their sessions have ended; return the exit status.

    It is 0 if all have ended or a user was offline before, 1 if the table of bans is full or a node did not
    end a session in time.
    """
    check_banned(args, "ban")
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        if args.addresses:
            return _ban_addresses(args, place, reader)
        banned = ban.ban(
            place.redis_url,
            reader,
            args.uids,
            device=args.device,
            for_s=args.for_s,
            reason=args.reason,
            by=caller("ban"),
            wait_s=args.wait,
        )
    print(
        json_line({uid: banned.report(uid) for uid in args.uids}) if args.json else _lines(args.uids, banned)
    )
    print_left(banned.ended, args.wait)
    return FAILED if banned.ended.reasons else OK


def _ban_addresses(args: argparse.Namespace, place: DataLocation, reader: PresenceReader) -> int:
    until_ms = ban.ban_addresses(
        place.redis_url,
        reader,
        args.addresses,
        for_s=args.for_s,
        reason=args.reason,
        by=caller("ban"),
        force=args.force,
    )
    if args.json:
        print(json_line({address: {"until_ms": until_ms} for address in args.addresses}))
        return OK
    width = max(map(len, args.addresses))
    for address in args.addresses:
        print(f"{address:<{width}}  banned {until(until_ms)}")
    return OK


def check_banned(args: argparse.Namespace, command: str) -> None:
    """Check the arguments of `add_banned`, names as servers do; addresses become those of the table.

    Raises:
        UsageError: one is invalid, there are too many, or none, or users and addresses.
    """
    if bool(args.uids) == bool(args.addresses) or (args.addresses and args.device is not None):
        raise UsageError(f"{command}: name either users, or networks with --address")
    try:
        ban.check(args.uids, args.device)
        args.addresses = ban.check_addresses(args.addresses, force=getattr(args, "force", True))
    except ValueError as error:
        raise UsageError(f"{command}: {error}".replace("with force", "with --force")) from None


def until(until_ms: int | None) -> str:
    """Return the end of a ban in a sentence."""
    return "for ever" if until_ms is None else f"until {utc_time(until_ms)}"


def _reason(text: str) -> str:
    if text.isprintable() and len(text) <= MAX_REASON_CHARS:
        return text
    raise argparse.ArgumentTypeError(
        f"must be text without control characters, of at most {MAX_REASON_CHARS} characters"
    )


def _lines(uids: Iterable[str], banned: BanResult) -> str:
    names = {uid: printable(uid) for uid in uids}
    width = max(map(len, names.values()))
    return "\n".join(
        f"{name:<{width}}  banned {until(banned.until_ms)}; {outcome(uid, banned.ended)}"
        for uid, name in names.items()
    )
