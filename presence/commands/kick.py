"""``presence kick``: ends all sessions of users; their clients are told not to come back by themselves."""

from presence import kicking
from presence.commands.outcome import FAILED, OK, complain
from presence.commands.reaching import caller, reaching
from presence.kicking import Kicked
from presence.reader import PresenceReader
from presence.rendering import json_line, printable


def run(redis_url: str, prefix: str, uids: list[str], *, wait_s: float, as_json: bool) -> int:
    """Kick users and wait until their sessions are gone; return the exit status.

    It is 0 when they are gone, also if a user was offline before: what was asked for holds. It is 1 when a
    node did not end a session within `wait_s`.
    """

    def kick() -> int:
        with PresenceReader(redis_url, prefix=prefix) as reader:
            kicked = kicking.kick(redis_url, reader, uids, wait_s=wait_s, by=caller("kick"))
        print(json_line({uid: kicked.report(uid) for uid in uids}) if as_json else _lines(uids, kicked))
        for target, reason in kicked.reasons.items():
            device = f" ({target.device})" if target.device else ""
            complain(f"{target.uid}{device}: {_WHY[reason].format(node=target.node, wait_s=wait_s)}")
        if kicked.targets:
            complain("kick: this is no ban: the users may log in again")
        return FAILED if kicked.reasons else OK

    return reaching(redis_url, kick)


_WHY = {
    "no_answer": "{node} did not end it within {wait_s:g} s; it was told, and will when it can",
    "node_silent": "{node} is silent: others end it when they sweep that node; if it comes back, kick again",
}


def _lines(uids: list[str], kicked: Kicked) -> str:
    width = max(len(printable(uid)) for uid in uids)
    return "\n".join(f"{printable(uid):<{width}}  {_outcome(uid, kicked)}" for uid in uids)


def _outcome(uid: str, kicked: Kicked) -> str:
    sessions = sum(target.uid == uid for target in kicked.targets)
    ended = sessions - sum(target.uid == uid for target in kicked.reasons)
    if not sessions:
        return "offline"
    noun = "session" if sessions == 1 else "sessions"
    return f"{ended} {noun} ended" if ended == sessions else f"{ended} of {sessions} {noun} ended"
