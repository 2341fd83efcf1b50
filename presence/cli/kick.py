"""``presence kick``: ends all sessions of users; their clients are told not to come back by themselves."""

import argparse

from presence.cli.errors import FAILED, OK, complain
from presence.cli.options import DataLocation, add_reader, plain_text, seconds
from presence.cli.redis_errors import asks_redis, caller
from presence.common.text import json_line, printable
from presence.ops import kick
from presence.ops.kick import KickResult
from presence.reader import PresenceReader

_DESCRIPTION = (
    "Ends all sessions of users and waits until they are gone. Their clients are told not to come back by "
    "themselves. This is no ban: a user may log in again immediately. To keep users out, issue no more "
    "tokens for them, and kick them when those that they have are expired."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said after ``presence kick``."""
    parser.description = _DESCRIPTION
    parser.add_argument("uids", nargs="+", metavar="UID", type=plain_text)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=5.0,
        help="how long the servers may take; then exit status 1 (default 5)",
    )
    add_reader(parser, "one JSON object: uid to sessions, and those left")


@asks_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Kick users and wait until their sessions are gone; return the exit status.

    It is 0 when they are gone, also if a user was offline before: what was asked for holds. It is 1 when a
    node did not end a session within the time that it was given.
    """
    uids, wait_s = args.uids, args.wait
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        kicked = kick.kick(place.redis_url, reader, uids, wait_s=wait_s, by=caller("kick"))
    print(json_line({uid: kicked.report(uid) for uid in uids}) if args.json else _lines(uids, kicked))
    for target, reason in kicked.reasons.items():
        device = f" ({target.device})" if target.device else ""
        complain(f"{target.uid}{device}: {_WHY[reason].format(node=target.node, wait_s=wait_s)}")
    if kicked.targets:
        complain("kick: this is no ban: the users may log in again")
    return FAILED if kicked.reasons else OK


_WHY = {
    "no_answer": "{node} did not end it within {wait_s:g} s; it was told, and will when it can",
    "node_silent": "{node} is silent: others end it when they sweep that node; if it comes back, kick again",
}


def _lines(uids: list[str], kicked: KickResult) -> str:
    width = max(len(printable(uid)) for uid in uids)
    return "\n".join(f"{printable(uid):<{width}}  {_outcome(uid, kicked)}" for uid in uids)


def _outcome(uid: str, kicked: KickResult) -> str:
    sessions = sum(target.uid == uid for target in kicked.targets)
    ended = sessions - sum(target.uid == uid for target in kicked.reasons)
    if not sessions:
        return "offline"
    noun = "session" if sessions == 1 else "sessions"
    return f"{ended} {noun} ended" if ended == sessions else f"{ended} of {sessions} {noun} ended"
