"""``presence status``: who is online, from Redis alone."""

import json
import sys
from collections.abc import Callable
from typing import Any

from presence import meta
from presence.commands.outcome import OK
from presence.commands.reaching import reaching
from presence.reader import PresenceReader
from presence.rendering import json_line, plain_state, printable, utc_time
from presence.store.records import State


def run(redis_url: str, prefix: str, uids: list[str], *, as_json: bool) -> int:
    """Print the state of each user; return the exit status."""

    def show(reader: PresenceReader) -> None:
        states = reader.states(uids)
        if as_json:
            print(json.dumps(plain_state(states)))
            return
        width = max(len(printable(uid)) for uid in uids)
        for uid, state in states.items():
            print(f"{printable(uid):<{width}}  {_described(state)}")

    return _with_reader(redis_url, prefix, show)


def count(redis_url: str, prefix: str, *, as_json: bool) -> int:
    """Print how many users are online; return the exit status."""

    def show(reader: PresenceReader) -> None:
        online = reader.count()
        print(json_line({"online": online}) if as_json else online)

    return _with_reader(redis_url, prefix, show)


def list_online(redis_url: str, prefix: str, *, as_json: bool) -> int:
    """Print everybody online, page by page as it is read; return the exit status.

    As JSON it is one object, uid to state, a user a line. Somebody who comes or goes meanwhile may be left
    out; nobody is named twice within a page.
    """

    def show(reader: PresenceReader) -> None:
        lead = "{\n" if as_json else ""
        for page in reader.pages():
            for uid, state in page.states.items():
                shown = json.dumps(plain_state(state))
                text = f"{json.dumps(uid)}: {shown}" if as_json else _line(uid, state)
                sys.stdout.write(lead + text)
                lead = ",\n" if as_json else "\n"
            sys.stdout.flush()
        if as_json:
            sys.stdout.write("\n}\n" if lead.startswith(",") else "{}\n")
        elif lead:
            sys.stdout.write(lead)

    return _with_reader(redis_url, prefix, show)


def _with_reader(redis_url: str, prefix: str, show: Callable[[PresenceReader], None]) -> int:
    def ask() -> int:
        with PresenceReader(redis_url, prefix=prefix) as reader:
            show(reader)
        return OK

    return reaching(redis_url, ask)


def _line(uid: str, state: State) -> str:
    return f"{printable(uid)}  {_described(state)}"


def _described(state: dict[str, Any]) -> str:
    status = state["status"]
    devices = ", ".join(_session(session, status) for session in state["sessions"])
    if status in {"online", "away"}:
        said = f"  {printable(_text(state['meta']))}" if "meta" in state else ""
        return f"{status:<7}  since {utc_time(state['since_ms'])}  {devices}{said}"
    if status == "unknown":  # the leases of all these nodes have ended, and nobody has swept them
        return f"unknown  online since {utc_time(state['since_ms'])}, but silent: {devices}"
    if state["last_seen_ms"] is None:
        return "offline  never seen, or long ago"
    return f"offline  last seen {utc_time(state['last_seen_ms'])}"


def _session(session: dict[str, Any], status: str) -> str:
    away = " (away)" if "away" in session and status != "away" else ""
    return f"{printable(session['device']) or 'default device'} on {printable(session['node'])}{away}"


def _text(said: dict[str, Any]) -> str:
    return meta.to_text(said)
