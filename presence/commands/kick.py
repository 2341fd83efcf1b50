"""``presence kick``: ends all sessions of a user; his clients are told not to come back by themselves."""

import time
from collections.abc import Iterable

from presence.commands.outcome import FAILED, OK, complain
from presence.commands.reaching import reaching
from presence.reader import PresenceReader
from presence.rendering import json_line, printable
from presence.store.operator import Operator, Target

LOOK_S = 0.02  # between two looks at the records, while nodes do what they were told


def run(redis_url: str, prefix: str, uids: list[str], *, wait_s: float, as_json: bool) -> int:
    """Kick users and wait until their sessions are gone; return the exit status.

    It is 0 when they are gone, also if a user was offline before: what was asked for holds. It is 1 when a
    node did not end a session within `wait_s`.
    """

    def kick() -> int:
        with (
            PresenceReader(redis_url, prefix=prefix) as reader,
            Operator(redis_url, reader.keys()) as operator,
        ):
            targets = operator.kick(uids)
            left = _wait(reader, targets, wait_s)
            silent = {each.node for each in reader.nodes() if each.status != "alive"} if left else set()
        reasons = {target: _reason(target, silent) for target in left}
        print(json_line(_report(uids, targets, reasons)) if as_json else _lines(uids, targets, left))
        for target, reason in reasons.items():
            device = f" ({target.device})" if target.device else ""
            complain(f"{target.uid}{device}: {_WHY[reason].format(node=target.node, wait_s=wait_s)}")
        return FAILED if left else OK

    return reaching(redis_url, kick)


_WHY = {
    "no_answer": "{node} did not end it within {wait_s:g} s; it was told, and will when it can",
    "node_silent": "{node} is silent: others end it when they sweep that node; if it comes back, kick again",
}


def _wait(reader: PresenceReader, targets: list[Target], wait_s: float) -> list[Target]:
    """Return the sessions that are left when those whose nodes were told are gone, or when time is up."""
    deadline = time.monotonic() + wait_s
    left = targets
    while left := _left(reader, left):
        if time.monotonic() >= deadline or all(target.fenced for target in left):
            break
        time.sleep(LOOK_S)
    return left


def _left(reader: PresenceReader, targets: Iterable[Target]) -> list[Target]:
    """Return those of the sessions that stand in a record."""
    by_name = {target[:3]: target for target in targets}
    states = reader.states({uid for uid, _, _ in by_name})
    present = {(uid, each["device"], each["session"]) for uid, s in states.items() for each in s["sessions"]}
    return [target for name, target in by_name.items() if name in present]


def _reason(target: Target, silent: set[str]) -> str:
    return "node_silent" if target.fenced or target.node in silent else "no_answer"


def _report(
    uids: list[str], targets: list[Target], reasons: dict[Target, str]
) -> dict[str, dict[str, object]]:
    return {
        uid: {
            "sessions": sum(target.uid == uid for target in targets),
            "left": [
                {"device": t.device, "session": t.session, "node": t.node, "reason": reason}
                for t, reason in reasons.items()
                if t.uid == uid
            ],
        }
        for uid in uids
    }


def _lines(uids: list[str], targets: list[Target], left: list[Target]) -> str:
    width = max(len(printable(uid)) for uid in uids)
    return "\n".join(f"{printable(uid):<{width}}  {_outcome(uid, targets, left)}" for uid in uids)


def _outcome(uid: str, targets: list[Target], left: list[Target]) -> str:
    sessions = sum(target.uid == uid for target in targets)
    ended = sessions - sum(target.uid == uid for target in left)
    if not sessions:
        return "offline"
    noun = "session" if sessions == 1 else "sessions"
    return f"{ended} {noun} ended" if ended == sessions else f"{ended} of {sessions} {noun} ended"
