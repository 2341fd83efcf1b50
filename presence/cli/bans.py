"""``presence bans``: prints all bans.

Tests: `tests/cli/test_ban.py`.
"""

import argparse
from dataclasses import asdict

from presence.cli.ban import until
from presence.cli.errors import OK
from presence.cli.options import DataLocation, add_reader
from presence.cli.redis_errors import with_redis
from presence.common.text import json_line, printable, utc_time
from presence.reader import PresenceReader
from presence.store.ban_table import StoredAddressBan, StoredBan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints the bans that have not ended, the latest first."
    add_reader(parser, "print one JSON object: the list of bans, and that of addresses")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        bans, addresses = reader.bans(), reader.address_bans()
    if args.json:
        print(
            json_line(
                {
                    "bans": [asdict(each) for each in bans],
                    "addresses": [asdict(each) for each in addresses],
                }
            )
        )
        return OK
    for each in bans:
        print(f"{printable(each.uid)}  {banned(each)}")
    for address in addresses:
        print(f"{address.address}  banned {until(address.until_ms)}, {_made(address)}")
    return OK


def banned(ban: StoredBan) -> str:
    """Return a ban in one line, without the user."""
    device = "all devices" if ban.device is None else printable(ban.device) or "default device"
    return f"banned {until(ban.until_ms)}, {device}, {_made(ban)}"


def _made(ban: StoredBan | StoredAddressBan) -> str:
    reason = f": {printable(ban.reason)}" if ban.reason else ""
    return f"by {printable(ban.by) or 'unknown'} at {utc_time(ban.at_ms)}{reason}"
