"""``presence roster``: prints a user's roster, or changes it."""

import argparse

from presence.cli.errors import FAILED, OK, print_error
from presence.cli.options import DataLocation, UsageError, add_reader, uid_argument
from presence.cli.redis_errors import with_redis
from presence.common.text import json_line, printable
from presence.rosters import PresenceRosters, RosterFull

_DESCRIPTION = (
    "Prints the roster of a user: the users whom the user's clients watch if they follow it. With --put, "
    "--add or --remove changes it first; connected clients learn of that within a moment. The roster in a "
    "token, and users whom clients watch by name, are not shown."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("uid", metavar="UID", type=uid_argument, help="whose roster")
    for flag, what in (
        ("--put", "replace the roster by these users"),
        ("--add", "add these users"),
        ("--remove", "remove these users"),
    ):
        parser.add_argument(flag, nargs="*", metavar="UID", type=uid_argument, help=what)
    add_reader(parser, "print one JSON object: the uid, and the list of users, or null if there is no roster")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Print a roster, after a change; return the exit status: 1 if there is no room for the change."""
    if args.put is not None and (args.add is not None or args.remove is not None):
        raise UsageError("roster: --put replaces the roster, so it needs no --add or --remove")
    with PresenceRosters(place.redis_url, prefix=place.prefix) as rosters:
        try:
            if args.put is not None:
                rosters.put(args.uid, args.put)
            elif args.add is not None or args.remove is not None:
                rosters.change(args.uid, remove=args.remove or (), add=args.add or ())
        except RosterFull as error:
            print_error(error)
            return FAILED
        except ValueError as error:
            raise UsageError(f"roster: {error}") from None
        found = rosters.get(args.uid)
    if args.json:
        print(json_line({"uid": args.uid, "users": found}))
    elif found is None:
        print(f"{printable(args.uid)} has no roster")
    else:
        for uid in found:
            print(printable(uid))
    return OK
