"""``presence kick``: ends all sessions of users; their clients do not reconnect automatically."""

import argparse

from presence.cli.errors import FAILED, OK, print_error
from presence.cli.options import DataLocation, add_reader, plain_text, seconds
from presence.cli.redis_errors import caller, with_redis
from presence.common.text import json_line, printable
from presence.ops import kick
from presence.ops.kick import KickResult
from presence.reader import PresenceReader

_DESCRIPTION = (
    "Ends all sessions of users and waits until they have ended. Clients do not reconnect "
    "automatically. This is no ban: a user may log in again immediately. To keep users out, stop issuing "
    "tokens for them, and kick them after their tokens have expired."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``presence kick``."""
    parser.description = _DESCRIPTION
    parser.add_argument("uids", nargs="+", metavar="UID", type=plain_text)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=5.0,
        help="time-out for the servers, then the exit status is 1 (default 5)",
    )
    add_reader(parser, "print one JSON object: uid to sessions, and those left")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Kick users and wait until their sessions have ended; return the exit status.

    It is 0 if all have ended or a user was offline before, 1 if a node did not end a session in time.
    """
    uids, wait_s = args.uids, args.wait
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        kicked = kick.kick(place.redis_url, reader, uids, wait_s=wait_s, by=caller("kick"))
    print(json_line({uid: kicked.report(uid) for uid in uids}) if args.json else _lines(uids, kicked))
    for target, reason in kicked.reasons.items():
        device = f" ({target.device})" if target.device else ""
        print_error(f"{target.uid}{device}: {_WHY[reason].format(node=target.node, wait_s=wait_s)}")
    if kicked.targets:
        print_error("kick: this is no ban: the users may log in again")
    return FAILED if kicked.reasons else OK


_WHY = {
    "no_answer": "{node} did not end it within {wait_s:g} s; the request is delivered, and it will end later",
    "node_silent": "{node} is silent: its sweep will end the session; if the node returns, kick again",
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
