"""``presence rooms``: prints rooms and their members, rebuilds them, and runs what keeps them."""

import argparse
import contextlib
import threading
from dataclasses import asdict
from typing import Any

from presence.cli.errors import FAILED, OK, print_error, sigterm_interrupts
from presence.cli.job_loop import run_job
from presence.cli.options import (
    READER_SETTINGS,
    DataLocation,
    add_reader,
    add_seconds,
    add_settings,
    room_argument,
    whole_number,
)
from presence.cli.redis_errors import with_redis
from presence.common.text import counted, json_line, printable
from presence.ops.explain_text import moment
from presence.reader import MAX_LARGEST, PresenceReader
from presence.rooms.rebuild import rebuild_rooms
from presence.store.shard_clients import ShardClients

_RUN = (
    "Keeps the members of rooms, as servers whose setting rooms is not off do: in each shard one of them is "
    "active. It needs servers to tell who is in which room."
)
_REBUILD = (
    "Has the projectors, of servers or of `presence rooms run`, compare all rooms with the records of users, "
    "and waits for it. After a loss of data they do so by themselves. Rooms can be read meanwhile."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|rebuild|run")

    some = actions.add_parser("list", help="print the rooms that have members, and how many")
    some.add_argument(
        "--largest", type=whole_number(MAX_LARGEST), metavar="N", help="only so many, the largest first"
    )
    add_reader(some, "print one JSON object per line")

    show = actions.add_parser("show", help="print a room")
    show.add_argument("name", metavar="NAME", type=room_argument)
    show.add_argument("--members", action="store_true", help="print its members, too")
    add_reader(show, "print one JSON object")

    again = actions.add_parser(
        "rebuild", help="compare all rooms with the records of users", description=_REBUILD
    )
    add_seconds(again, "--wait", 60.0, "most time to wait until it is complete")
    add_reader(again, "print one JSON object")

    run = actions.add_parser("run", help="keep the members of rooms", description=_RUN)
    add_settings(run, (*READER_SETTINGS, "stream_maxlen", "room_events", "max_rooms"))


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    if args.action == "run":
        return _run(place)
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        return {"list": _list, "show": _show, "rebuild": _rebuild}[args.action](reader, args, place)


def _list(reader: PresenceReader, args: argparse.Namespace, _place: DataLocation) -> int:
    """Print rooms, page by page; rooms that come or go meanwhile may be missing."""
    if args.largest is not None:
        _print(reader.rooms(largest=args.largest), as_json=args.json)
        return OK
    listed, cursor = set[str](), None
    while True:
        page = reader.room_page(cursor)
        _print({name: size for name, size in page.rooms.items() if name not in listed}, as_json=args.json)
        listed |= page.rooms.keys()
        if (cursor := page.cursor) is None:
            return OK


def _print(rooms: dict[str, int], *, as_json: bool) -> None:
    for name, count in rooms.items():
        print(json_line({"name": name, "count": count}) if as_json else f"{count:>9}  {printable(name)}")


def _show(reader: PresenceReader, args: argparse.Namespace, _place: DataLocation) -> int:
    room, members = reader.room(args.name), dict[str, Any]()
    cursor = None
    while args.members:
        page = reader.members(args.name, cursor)
        members |= page.members
        if (cursor := page.cursor) is None:
            break
    if args.json:
        print(json_line({**asdict(room), **({"members": members} if args.members else {})}))
        return OK
    since = f"  occupied since {moment(room.since_ms)}" if room.since_ms is not None else ""
    counts = f"{counted(room.count, 'member')}, {room.count - room.public} invisible"
    print(f"{printable(room.name)}  {counts}{since}")
    for uid, member in members.items():
        print(f"  {printable(uid)}  {'invisible' if member['invisible'] else member['status']}")
    return OK


def _rebuild(reader: PresenceReader, args: argparse.Namespace, place: DataLocation) -> int:
    with ShardClients(place.redis_url) as clients:
        done = rebuild_rooms(clients, reader.keys(), args.wait)
    if done is None:
        print_error(
            f"rooms: not rebuilt within {args.wait:g} s; it goes on, if a server whose setting rooms is not "
            "off, or presence rooms run, reaches all shards"
        )
        return FAILED
    users, corrected = counted(done.users, "user"), counted(done.corrected, "member")
    told = f"{users}, {corrected} corrected, {done.removed} removed, {done.seconds:.2f} s"
    print(json_line(asdict(done)) if args.json else f"rooms rebuilt: {told}")
    return OK


def _run(place: DataLocation) -> int:
    """Run a projector until a signal comes; return the exit status."""
    # Loads what only the server needs; readers do without.
    import structlog  # noqa: PLC0415

    from presence.common import logs  # noqa: PLC0415
    from presence.rooms.projector import RoomProjector, projector_outage  # noqa: PLC0415

    settings = place.settings
    projector = RoomProjector(
        place.redis_url,
        place.prefix,
        kept=settings.stream_maxlen,
        events=settings.room_events,
        max_rooms=settings.max_rooms,
    )
    logs.configure_directly(settings.log_format, settings.log_level)
    try:
        with sigterm_interrupts(), contextlib.closing(projector):
            projector.run_once()
            if projector.failure is not None:  # on the first run: a wrong URL or password
                raise projector.failure
            print_error("rooms: running")
            outage = projector_outage(structlog.get_logger("presence.rooms"))
            run_job(projector, outage, threading.Event())
    except KeyboardInterrupt:
        pass
    return OK
