"""``presence explain``: prints why a user is online or offline, and the sessions that each server has."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from presence.cli.errors import FAILED, OK, print_error
from presence.cli.options import DataLocation, UsageError, add_reader, uid_argument
from presence.cli.redis_errors import with_redis
from presence.common.redis_url import redacted
from presence.common.text import counted, json_line, printable
from presence.ops.explain import Explainer
from presence.ops.explain_text import hour, moment, span


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("uid", metavar="UID", type=uid_argument)
    add_reader(parser, "print one JSON object")


@with_redis
def run(args: argparse.Namespace, place: DataLocation) -> int:
    """Print what is known about a user; return the exit status: 1 if Redis could not be reached."""
    with Explainer(place.redis_url, prefix=place.prefix) as explainer:
        try:
            report = explainer.explain(args.uid)
        except ValueError as error:
            raise UsageError(error) from None
    if report["redis"] is not None:
        print_error(f"cannot reach Redis at {redacted(place.redis_url)}: {report['redis']}")
    if report["state"] is None:
        return FAILED
    print(json_line(report) if args.json else "\n".join(map(printable, lines(report))))
    return FAILED if report["redis"] else OK


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Give the lines of an explanation; the caller escapes control characters."""
    yield f"{report['uid']}  {report['state']['status'] if report['state'] else 'not known'}"
    yield f"  why: {report['why']}"
    for name in ("event", "online_event"):
        if (event := report[name]) is not None:
            yield f"  {name.replace('_', ' ')}: {_event(event)}"
    stored = report["roster_users"]
    if report["redis"] is None:
        yield f"  roster: {'none' if stored is None else counted(stored, 'user')}"
    for each in report["rooms"]:
        devices = ", ".join(name or "default device" for name in each["devices"])
        yield f"  in room {each['room']} by {devices}: {each['why']}"
    for session in report["sessions"]:
        yield from _session(session, has_roster=stored is not None)
    event = report["event"] or {}
    covered = event.get("session") if event.get("type") == "offline" else None  # by the sentence
    for end in report["ended"]:
        if end["session"] != covered:
            yield f"  {_ended(end)}"
    for note in report["notes"]:
        yield f"  note: {note}"
    answered = [each["node"] for each in report["nodes"] if each["answer"] == "answered"]
    yield f"  asked: {len(answered)} of {len(report['nodes'])} nodes answered"


def _event(event: Mapping[str, Any]) -> str:
    where = f"session {event.get('session')} at node {event.get('node')}"
    return f"{event['id']}  {event.get('type')}, {event.get('reason')} ({event.get('code')}), {where}"


def _session(session: Mapping[str, Any], *, has_roster: bool) -> Iterator[str]:
    yield f"  {session['device'] or 'default device'} at node {session['node']}, session {session['session']}"
    link, address = session["link"], session.get("address")
    if link == "connected":
        link += f" from {address or 'an unknown address'}, {session.get('transport') or 'unknown transport'}"
        link += f", {session.get('unsent_bytes') or 0} bytes unsent"
    else:
        link += ", in its grace period"
    yield f"    {link}; logged in {moment(session['login_ms'])}"
    yield (
        f"    last packet {moment(session['last_packet_ms'])}, {session['last_packet_age_s']:.3f} s ago; "
        f"idle time-out {session['idle_timeout_s']:g} s{', quiet' if session.get('quiet') else ''}"
    )
    yield f"    {_due(session)}"
    yield f"    {_shown(session, has_roster=has_roster)}"
    for room in session["rooms"]:
        yield f"    {_watched(room)}"
    if session.get("behind_on_rooms"):
        yield "    is sent what is missing of rooms when its client takes it"


def _watched(room: Mapping[str, Any]) -> str:
    sent = "an older count" if room["sent"] is None else room["sent"]
    if room["sent_version"] == 0:
        sent = "nothing yet"
    stored = "unknown" if room["stored"] is None else room["stored"]
    return (
        f"watches room {room['room']}: was sent {sent} (version {room['sent_version']}); "
        f"this server has {room['count']} (version {room['version']}), read {room['read_age_s']:.3f} s ago; "
        f"Redis has {stored}"
    )


def _ended(end: Mapping[str, Any]) -> str:
    return (
        f"ended: {end['device'] or 'default device'} at node {end['node']}, session {end['session']}, as "
        f"{end['reason']} ({end['code']}) {moment(end['at_ms'])}; "
        f"last packet {hour(end['last_packet_ms'], end['at_ms'])}"
    )


def _due(session: Mapping[str, Any]) -> str:
    ends = f"ends as {session['ends_as'].get('reason')} ({session['ends_as'].get('code')})"
    if session["due_in_s"] is None or session["slot"] is None:
        return f"{ends} now"
    hand = f"slot {session['slot']}, {session['slots_from_hand']} slots ahead"
    return f"{ends} in {session['due_in_s']:.3f} s: {hand}"


def _shown(session: Mapping[str, Any], *, has_roster: bool) -> str:
    record = {True: "on record", False: "not on record", None: "record unknown"}[session["on_record"]]
    parts = [session["status"], record]
    if not session["vouched"]:
        parts.append("not registered")
    if (away_in_s := session.get("away_in_s")) is not None:
        parts.append(f"away automatically in {span(away_in_s)}")
    if (expires_in_s := session.get("token_expires_in_s")) is not None:
        parts.append(f"token expires in {span(expires_in_s)}")
    if watches := session.get("watches"):
        parts.append(f"watches {counted(watches, 'user')}")
    if rooms := session.get("watched_rooms"):
        parts.append(f"watches {counted(rooms, 'room')}")
    parts += _roster(session, has_roster=has_roster)
    said = {name: session[name] for name in ("meta", "private") if session.get(name)}
    parts += [
        f"{name} {json.dumps(each, separators=(',', ':'), ensure_ascii=False)}" for name, each in said.items()
    ]
    return ", ".join(parts)


def _roster(session: Mapping[str, Any], *, has_roster: bool) -> Iterator[str]:
    """Give what a session has to do with its user's roster; nothing if neither backend nor token has one."""
    claimed = session.get("roster_claimed") or 0
    if "roster" not in session:  # an older server
        return
    if session["roster"] == "followed":
        yield "follows the roster"
    elif session["roster"] == "requested":
        yield "waits for the roster to be read"
    elif has_roster or claimed:
        yield "does not follow the roster"
    if claimed:
        yield f"its token has a roster of {counted(claimed, 'user')}"
