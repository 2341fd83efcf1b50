"""Ends sessions of users and waits until they have ended; calls block.

Tests: `tests/cli/test_kick.py`.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, NamedTuple

from presence.reader import PresenceReader
from presence.store.keys import Keys
from presence.store.script_arguments import Shape, unpacked
from presence.store.script_runner import Scripting

POLL_INTERVAL_S = 0.02  # between two reads of the records, while nodes end sessions

Reason = Literal["no_answer", "node_silent"]
"""Why a session is left: its node will end it later; or the node is silent, and its sweep will."""


class Target(NamedTuple):
    """A session to end."""

    uid: str
    device: str
    session: str
    node: str
    fenced: bool  # the node is fenced and was not asked: its sessions end when it is swept


@dataclass(frozen=True, slots=True)
class KickResult:
    """The outcome for all sessions."""

    targets: list[Target]  # all sessions; none for users who were offline
    reasons: Mapping[Target, Reason]  # sessions that are left, and why

    def report(self, uid: str) -> dict[str, object]:
        """Return the outcome for a user as ``presence kick --json`` prints it."""
        return {
            "sessions": sum(target.uid == uid for target in self.targets),
            "left": [
                {"device": t.device, "session": t.session, "node": t.node, "reason": reason}
                for t, reason in self.reasons.items()
                if t.uid == uid
            ],
        }


def request_kick(
    scripting: Scripting, keys: Keys, uids: Iterable[str], device: str | None = None, *, by: str = ""
) -> list[Target]:
    """Ask the nodes of all sessions of these users to end them; return the sessions.

    A node receives this immediately, or within seconds if its control channel is broken. A user who is
    offline has no sessions. `device`: only this one; None: all. `by`: the caller, for the nodes' logs.

    Raises:
        StoreUnavailable, StoreError: Redis does not answer, or refuses.
    """
    wanted = list(dict.fromkeys(uids))
    which = [] if device is None else [device]
    shape = Shape(keys, maxlen=0, seen_retention_ms=0)  # nothing is trimmed here
    calls = [shape.operator_call("kick", keys.shard(uid), [uid, by, *which]) for uid in wanted]
    targets: list[Target] = []
    for uid, answer in zip(wanted, scripting.evaluate(calls), strict=True):
        if isinstance(answer, Exception):
            raise answer
        targets += [Target(uid, *row) for row in unpacked(answer[0])["sessions"]]
    return targets


def kick(
    redis_url: str,
    reader: PresenceReader,
    uids: Iterable[str],
    *,
    wait_s: float,
    by: str,
    device: str | None = None,
) -> KickResult:
    """Kick users and wait until their sessions have ended, for at most `wait_s`.

    Sessions of fenced nodes are not waited for. For `by` and `device` see `request_kick`.

    Raises:
        RedisError, StoreUnavailable, StoreError: Redis does not answer.
    """
    with closing(Scripting(redis_url)) as scripting:
        targets = request_kick(scripting, reader.keys(), uids, device, by=by)
    return wait_until_ended(reader, targets, wait_s)


def wait_until_ended(reader: PresenceReader, targets: list[Target], wait_s: float) -> KickResult:
    """Wait until sessions have ended, for at most `wait_s`; return what became of them."""
    left = _wait(reader, targets, wait_s)
    alive = {each.node for each in reader.nodes() if each.status == "alive"} if left else set()
    return KickResult(targets, {target: _reason(target, alive) for target in left})


def _wait(reader: PresenceReader, targets: list[Target], wait_s: float) -> list[Target]:
    """Return the sessions that are left, after the time-out or when only those of fenced nodes are."""
    deadline = time.monotonic() + wait_s
    left = targets
    while left := _left(reader, left):
        if time.monotonic() >= deadline or all(target.fenced for target in left):
            break
        time.sleep(POLL_INTERVAL_S)
    return left


def _left(reader: PresenceReader, targets: Iterable[Target]) -> list[Target]:
    """Return the sessions that are still on record."""
    by_name = {target[:3]: target for target in targets}
    states = reader.states({uid for uid, _, _ in by_name})
    present = {(uid, each["device"], each["session"]) for uid, s in states.items() for each in s["sessions"]}
    return [target for name, target in by_name.items() if name in present]


def _reason(target: Target, alive: set[str]) -> Reason:
    """Return why a session is left; a node without a lease is silent, too."""
    return "no_answer" if target.node in alive and not target.fenced else "node_silent"
