"""``presence forget``: erases the data of offline users from Redis."""

import argparse
from dataclasses import asdict

from presence.cli.errors import FAILED, OK, Progress, print_error
from presence.cli.options import DataLocation, add_reader, uid_argument
from presence.cli.redis_errors import caller, with_redis
from presence.common.text import json_line
from presence.ops.forget import Eraser
from presence.reader import PresenceReader
from presence.store.control_messages import Erasure

UIDS_LOGGED = 10  # in the log of a server

_DESCRIPTION = (
    "Erases the last-seen times of offline users from Redis, their entries in the event streams and in those "
    "of rooms, their follow-ups, the dead letters of these, what consumer groups recorded about them, and "
    "their rosters, but not their names in the rosters of others. A subscriber whose "
    "last event is among them sees a gap. Not erased: bans, copies kept by subscribers, backups and "
    "append-only files of Redis, logs, and, for a while, what nodes remember of ended sessions and notices "
    "between them."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("uids", nargs="+", metavar="UID", type=uid_argument)
    add_reader(parser, "print one JSON object: the users, and how much was erased")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Forget users; return the exit status: 1 if one is online, who is left unchanged."""
    with (
        PresenceReader(place.redis_url, prefix=place.prefix) as reader,
        Eraser(place.redis_url, reader.keys()) as eraser,
    ):
        forgotten = eraser.forget(args.uids, Progress("forget", "scanned"))
        users = [uid for uid in dict.fromkeys(args.uids) if uid not in forgotten.online]
        if users:
            alive = [node.node for node in reader.nodes() if node.status == "alive"]
            erasure = Erasure(caller("forget"), len(users), tuple(users[:UIDS_LOGGED]))
            eraser.note_erasure(alive, erasure)
    if args.json:
        print(json_line({"forgotten": users, **asdict(forgotten)}))
    elif users:
        print(
            f"users forgotten: {len(users)}; erased: last seen {forgotten.last_seen}, "
            f"events {forgotten.events}, dead letters {forgotten.dead_letters}, "
            f"follow-ups {forgotten.followups}, events of rooms {forgotten.room_events}"
        )
    for uid in forgotten.online:
        print_error(f"{uid} is online: end the sessions first, with presence ban")
    return FAILED if forgotten.online else OK
