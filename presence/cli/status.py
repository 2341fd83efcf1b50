"""``presence status``: prints which users are online, from Redis."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from presence.cli.bans import banned
from presence.cli.errors import OK
from presence.cli.options import DataLocation, UsageError, add_reader, uid_argument
from presence.cli.redis_errors import with_redis
from presence.common import meta_json
from presence.common.text import json_line, plain_state, printable, utc_time
from presence.protocol.constants import STATUSES
from presence.reader import PresenceReader, UserFilter
from presence.store.records import status_of
from presence.store.user_filter import ALL_USERS, LISTED_STATUSES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("uids", nargs="*", metavar="UID", type=uid_argument)
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--count", action="store_true", help="print how many users are online")
    whole.add_argument("--list", action="store_true", help="print all users online")
    only = parser.add_argument_group("of all users online, only those")
    add = only.add_argument
    add("--uid-prefix", metavar="TEXT", type=uid_argument, help="whose uid begins with it")
    add("--class", dest="device_class", metavar="NAME", help="with a session on a device of this class")
    add("--node", metavar="ID", help="with a session at this node; with --class, the same session")
    add("--status", choices=LISTED_STATUSES, help="with this status; invisible: to clients")
    add_reader(parser, "print one JSON object: uid to state")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    if args.uids and (args.count or args.list):
        raise UsageError("status: give either users, or --count, or --list")
    if not (args.uids or args.count or args.list):
        raise UsageError("status: give at least one uid, --count or --list")
    try:
        names = ("uid_prefix", "device_class", "node", "status")
        wanted = UserFilter(**{name: getattr(args, name) for name in names})
    except ValueError as error:
        raise UsageError(f"status: --{error}") from None
    if args.uids and wanted != ALL_USERS:
        raise UsageError("status: conditions are for --count and --list")
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        if args.count:
            online = reader.count() if wanted == ALL_USERS else len({*_uids(reader, wanted)})
            print(json_line({"online": online}) if args.json else online)
        elif args.list:
            _list_online(reader, wanted, as_json=args.json)
        else:
            _show(reader, args.uids, as_json=args.json)
    return OK


def _show(reader: PresenceReader, uids: list[str], *, as_json: bool) -> None:
    states = reader.states(uids)
    bans = [each for each in reader.bans() if each.uid in states]
    if as_json:
        for each in bans:
            states[each.uid].setdefault("bans", []).append(asdict(each))
        print(json_line(plain_state(states)))
        return
    width = max(len(printable(uid)) for uid in uids)
    for uid, state in states.items():
        print(f"{printable(uid):<{width}}  {_described(state)}")
        for each in bans:
            if each.uid == uid:
                print(f"{'':<{width}}  {banned(each)}")


def _uids(reader: PresenceReader, wanted: UserFilter) -> Iterator[str]:
    for page in reader.pages(wanted=wanted):
        yield from page.states


def _list_online(reader: PresenceReader, wanted: UserFilter, *, as_json: bool) -> None:
    """Print all wanted users online, page by page, each once; their uids are kept for that.

    As JSON it is one object, uid to state, one user per line. Users who come or go meanwhile may be missing.
    """

    lead, listed = "{\n" if as_json else "", set[str]()
    for page in reader.pages(wanted=wanted):
        for uid, state in page.states.items():
            if uid in listed:
                continue
            listed.add(uid)
            text = (
                f"{json.dumps(uid)}:{json_line(plain_state(state))}"
                if as_json
                else f"{printable(uid)}  {_described(state)}"
            )
            sys.stdout.write(lead + text)
            lead = ",\n" if as_json else "\n"
        sys.stdout.flush()
    if as_json:
        sys.stdout.write("\n}\n" if lead.startswith(",") else "{}\n")
    elif lead:
        sys.stdout.write(lead)


def _described(state: dict[str, Any]) -> str:
    status = state["status"]
    hidden = "  invisible to clients" if "invisible" in state else ""
    devices = ", ".join(_session(session, status) for session in state["sessions"])
    if status in STATUSES:
        meta = f"  {printable(meta_json.to_text(state['meta']))}" if "meta" in state else ""
        return f"{status:<7}  since {utc_time(state['since_ms'])}  {devices}{meta}{hidden}"
    if status == "unknown":  # the leases of all these nodes have expired, and none is swept yet
        return f"unknown  online since {utc_time(state['since_ms'])}, but its nodes are silent: {devices}"
    if state["last_seen_ms"] is None:
        return "offline  never seen, or long ago"
    since = f"since {utc_time(state['since_ms'])}  " if state["since_ms"] is not None else ""
    why = f"  {state['reason']}" if "reason" in state else ""
    return f"offline  {since}last seen {utc_time(state['last_seen_ms'])}{why}{hidden}"


def _session(session: dict[str, Any], status: str) -> str:
    own = status_of(session)
    other = "" if own in {status, "online"} else f" ({own})"
    return f"{printable(session['device']) or 'default device'} on {printable(session['node'])}{other}"
