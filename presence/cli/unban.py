"""``presence unban``: lifts bans of users or addresses.

Tests: `tests/cli/test_ban.py`.
"""

import argparse

from presence.cli.ban import add_banned, check_banned
from presence.cli.errors import OK
from presence.cli.options import DataLocation, add_reader
from presence.cli.redis_errors import caller, with_redis
from presence.common.text import counted, json_line, printable
from presence.ops import ban
from presence.reader import PresenceReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lifts all bans of users, or with --device only that of one device; with --address those of exactly "
        "these networks. A client that waits for the end of its ban returns when it asks next, within a day; "
        "one that is started again, immediately."
    )
    add_banned(parser)
    add_reader(
        parser,
        "print one JSON object: uid to the devices, null for a ban of all devices; address to whether it was "
        "banned",
    )


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Lift bans; return the exit status, 0 also for those without a ban."""
    check_banned(args, "unban")
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        if args.addresses:
            _unban_addresses(args, place, reader)
            return OK
        lifted = ban.unban(place.redis_url, reader, args.uids, device=args.device, by=caller("unban"))
    if args.json:
        print(json_line(lifted))
        return OK
    width = max(len(printable(uid)) for uid in lifted)
    for uid, devices in lifted.items():
        done = f"{counted(len(devices), 'ban')} lifted" if devices else "was not banned"
        print(f"{printable(uid):<{width}}  {done}")
    return OK


def _unban_addresses(args: argparse.Namespace, place: DataLocation, reader: PresenceReader) -> None:
    lifted = ban.unban_addresses(place.redis_url, reader, args.addresses, by=caller("unban"))
    if args.json:
        print(json_line(lifted))
        return
    width = max(map(len, lifted))
    for address, was_banned in lifted.items():
        print(f"{address:<{width}}  {'1 ban lifted' if was_banned else 'was not banned'}")
