"""``presence kick``: ends all sessions of users; their clients do not reconnect automatically."""

import argparse

from presence.cli.errors import FAILED, OK, print_error
from presence.cli.options import DataLocation, UsageError, add_reader, duration, seconds, uid_argument
from presence.cli.redis_errors import caller, with_redis
from presence.common.text import json_line, printable
from presence.ops import ban, kick
from presence.ops.kick import KickResult
from presence.reader import PresenceReader

_DESCRIPTION = (
    "Ends all sessions of users and waits until they have ended. Clients do not reconnect "
    "automatically. A user may log in again immediately, unless --ban keeps the user out for a time; see "
    "presence ban."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("uids", nargs="+", metavar="UID", type=uid_argument)
    parser.add_argument(
        "--ban",
        metavar="DURATION",
        type=duration,
        help="also keep the users out for that time, as 90s, 10m, 1h or 7d",
    )
    add_wait(parser)
    add_reader(parser, "print one JSON object: uid to sessions, and those left")


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the time that servers have to end sessions."""
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=5.0,
        help="time-out for the servers, then the exit status is 1 (default 5)",
    )


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Kick users and wait until their sessions have ended; return the exit status.

    It is 0 if all have ended or a user was offline before, 1 if a node did not end a session in time.
    """
    uids, wait_s, by = args.uids, args.wait, caller("kick")
    with PresenceReader(place.redis_url, prefix=place.prefix) as reader:
        if args.ban is None:
            kicked = kick.kick(place.redis_url, reader, uids, wait_s=wait_s, by=by)
        else:
            try:
                ban.check(uids, None)
            except ValueError as error:
                raise UsageError(f"kick: {error}") from None
            kicked = ban.ban(place.redis_url, reader, uids, for_s=args.ban, by=by, wait_s=wait_s).ended
    print(json_line({uid: kicked.report(uid) for uid in uids}) if args.json else _lines(uids, kicked))
    print_left(kicked, wait_s)
    if kicked.targets and args.ban is None:
        print_error("kick: this is no ban: the users may log in again; presence ban keeps them out")
    return FAILED if kicked.reasons else OK


def print_left(kicked: KickResult, wait_s: float) -> None:
    """Print which sessions are left, and why."""
    for target, reason in kicked.reasons.items():
        device = f" ({target.device})" if target.device else ""
        print_error(f"{target.uid}{device}: {_WHY[reason].format(node=target.node, wait_s=wait_s)}")


_WHY = {
    "no_answer": "{node} did not end it within {wait_s:g} s; the request is delivered, and it will end later",
    "node_silent": "{node} is silent: its sweep will end the session; if the node returns, kick again",
}


def _lines(uids: list[str], kicked: KickResult) -> str:
    width = max(len(printable(uid)) for uid in uids)
    return "\n".join(f"{printable(uid):<{width}}  {outcome(uid, kicked)}" for uid in uids)


def outcome(uid: str, kicked: KickResult) -> str:
    """Return what became of the sessions of a user."""
    sessions = sum(target.uid == uid for target in kicked.targets)
    ended = sessions - sum(target.uid == uid for target in kicked.reasons)
    if not sessions:
        return "offline"
    noun = "session" if sessions == 1 else "sessions"
    return f"{ended} {noun} ended" if ended == sessions else f"{ended} of {sessions} {noun} ended"
