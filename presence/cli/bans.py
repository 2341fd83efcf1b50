"""``presence bans``: prints all bans."""

import argparse

from presence.cli.ban import until
from presence.cli.errors import OK
from presence.cli.options import DataLocation, add_reader
from presence.cli.redis_errors import with_redis
from presence.common.text import json_line, printable, utc_time
from presence.ops import ban
from presence.reader import PresenceReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``presence bans``."""
    parser.description = "Prints the bans that have not ended, the latest first."
    add_reader(parser, "print one JSON object: the list of bans")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Print all bans; return the exit status."""
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        bans = reader.bans()
    if args.json:
        print(json_line({"bans": [ban.report(each) for each in bans]}))
        return OK
    for each in bans:
        reason = f": {each.reason}" if each.reason else ""
        made = f"by {printable(each.by) or 'unknown'} at {utc_time(each.at_ms)}"
        print(f"{printable(each.uid)}  {described(each.device)}  {until(each.until_ms)}, {made}{reason}")
    return OK


def described(device: str | None) -> str:
    """Return which devices a ban concerns."""
    return "all devices" if device is None else printable(device) or "default device"
