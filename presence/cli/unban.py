"""``presence unban``: lifts bans of users.

Tests: `tests/cli/test_ban.py`.
"""

import argparse

from presence.cli.ban import add_users, check_names
from presence.cli.errors import OK
from presence.cli.options import DataLocation, add_reader
from presence.cli.redis_errors import caller, with_redis
from presence.common.text import json_line, printable
from presence.ops import ban
from presence.reader import PresenceReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lifts all bans of users, or with --device only that of one device. A client that waits for the end "
        "of its ban returns when it asks next, within a day; one that is started again, immediately."
    )
    add_users(parser)
    add_reader(parser, "print one JSON object: uid to the devices, null for a ban of all devices")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Lift bans; return the exit status, 0 also for users without a ban."""
    check_names(args.uids, args.device, "unban")
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        lifted = ban.unban(place.redis_url, reader, args.uids, device=args.device, by=caller("unban"))
    if args.json:
        print(json_line(lifted))
        return OK
    width = max(len(printable(uid)) for uid in lifted)
    for uid, devices in lifted.items():
        noun = "ban" if len(devices) == 1 else "bans"
        print(
            f"{printable(uid):<{width}}  {f'{len(devices)} {noun} lifted' if devices else 'was not banned'}"
        )
    return OK
