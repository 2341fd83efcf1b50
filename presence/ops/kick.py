"""Ending sessions of users and seeing to it that they are gone; calls that block."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from presence.ops.operator_calls import Operator, Target
from presence.reader import PresenceReader

POLL_INTERVAL_S = 0.02  # between two looks at the records, while nodes do what they were told

Reason = Literal["no_answer", "node_silent"]
"""Why a session is left: its node was told, and will end it when it can; or it is silent, and others will."""


@dataclass(frozen=True, slots=True)
class KickResult:
    """What became of the sessions."""

    targets: list[Target]  # those that were to end; of a user who was offline there are none
    reasons: Mapping[Target, Reason]  # why some are left

    def report(self, uid: str) -> dict[str, object]:
        """Return what became of a user's sessions as ``presence kick --json`` tells it."""
        return {
            "sessions": sum(target.uid == uid for target in self.targets),
            "left": [
                {"device": t.device, "session": t.session, "node": t.node, "reason": reason}
                for t, reason in self.reasons.items()
                if t.uid == uid
            ],
        }


def kick(
    redis_url: str,
    reader: PresenceReader,
    uids: Iterable[str],
    *,
    wait_s: float,
    by: str,
    device: str | None = None,
) -> KickResult:
    """Kick users and wait until their sessions are gone, for at most so long.

    Args:
        redis_url: of the servers' Redis.
        reader: of the same.
        uids: whom.
        by: who asks for it, for the logs of the nodes.
        wait_s: for how long; nothing is waited for that was told to nobody.
        device: sessions of this device only; None: all.

    Raises:
        RedisError, StoreUnavailable, StoreError: Redis cannot be asked.
    """
    with Operator(redis_url, reader.keys()) as operator:
        targets = operator.kick(uids, device, by=by)
    left = _wait(reader, targets, wait_s)
    silent = {each.node for each in reader.nodes() if each.status != "alive"} if left else set()
    return KickResult(targets, {target: _reason(target, silent) for target in left})


def _wait(reader: PresenceReader, targets: list[Target], wait_s: float) -> list[Target]:
    """Return the sessions that are left when those whose nodes were told are gone, or when time is up."""
    deadline = time.monotonic() + wait_s
    left = targets
    while left := _left(reader, left):
        if time.monotonic() >= deadline or all(target.fenced for target in left):
            break
        time.sleep(POLL_INTERVAL_S)
    return left


def _left(reader: PresenceReader, targets: Iterable[Target]) -> list[Target]:
    """Return those of the sessions that stand in a record."""
    by_name = {target[:3]: target for target in targets}
    states = reader.states({uid for uid, _, _ in by_name})
    present = {(uid, each["device"], each["session"]) for uid, s in states.items() for each in s["sessions"]}
    return [target for name, target in by_name.items() if name in present]


def _reason(target: Target, silent: set[str]) -> Reason:
    return "node_silent" if target.fenced or target.node in silent else "no_answer"
