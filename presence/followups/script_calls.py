"""Calls of the scripts of follow-ups: a run of a scheduler, adding, cancelling, and the walk over all.

The rules are in the scripts, `presence/store/scripts/followups/`: `plan_and_deliver.lua` plans a follow-up
when its user goes offline, cancels it when the user returns, and delivers it when it is due.

Tests: `tests/followups/test_run.py`, `tests/followups/test_planned.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from presence.config.followup_rules import Rule
from presence.store.keys import Keys
from presence.store.script_runner import Call

MAX_PENDING_PER_SHARD: Final = 1_000_000  # follow-ups of a shard: about 500 MB of Redis without payloads
MAX_PENDING_BYTES_PER_SHARD: Final = 1_000_000_000  # of Redis, roughly: 150,000 with the longest payloads
MAX_PENDING_PER_USER: Final = 100
MAX_EVENTS_PER_RUN: Final = 200  # of a shard: a few ms of Redis' time
MAX_DUE_PER_RUN: Final = 200
REINDEXED_PER_CALL: Final = 100  # follow-ups, below 1 ms of Redis' time: a million of a shard take 3 hours
# Above the longest pause of a runner: who holds it is only followed when it has died.
RUN_LEASE_MS: Final = 1500
STREAM_MAXLEN: Final = 1_000_000  # entries of a shard's stream of follow-ups, roughly


def script_keys(keys: Keys, shard: int) -> list[str]:
    """Return KEYS as the scripts in `followups/` take them."""
    base = keys.followup_queue(shard)
    queue = [
        f"{base}:{name}" for name in ("work", "due", "leased", "dead", "counts", "absent", "of", "state")
    ]
    return [*queue, keys.events(shard), keys.online(shard), keys.seen(shard), keys.followups(shard)]


def packed_rules(rules: Iterable[Rule] | None) -> bytes:
    """Return rules packed for plan_and_deliver.lua; None: keep those stored by others."""
    if rules is None:
        return b""
    packed: bytes = msgpack.packb(
        [[rule.name, _ms(rule.after), list(rule.reasons), rule.payload] for rule in rules]
    )
    return packed


def run_call(keys: Keys, shard: int, scheduler: str, rules: bytes, *, has_begun: bool, kept: int) -> Call:
    """Return the call of one run by a scheduler, with rules as of `packed_rules`.

    `has_begun`: whether this scheduler knows that the shard had runs before. `kept`: cap of the stream of
    follow-ups, roughly.
    """
    begun = "1" if has_begun else ""
    bounds = [MAX_EVENTS_PER_RUN, MAX_DUE_PER_RUN, kept, MAX_PENDING_PER_SHARD, MAX_PENDING_BYTES_PER_SHARD]
    arguments = ["", scheduler, RUN_LEASE_MS, rules, begun, *bounds]
    return Call("followups/plan_and_deliver", script_keys(keys, shard), arguments)


def reindex_call(keys: Keys, shard: int, cursor: str) -> Call:
    """Return a call of the walk that restores what leads to follow-ups."""
    return Call("followups/reindex", script_keys(keys, shard), ["", cursor, REINDEXED_PER_CALL])


def recount_call(keys: Keys, shard: int, missing_bytes: int, recounts: int) -> Call:
    """Return the call that corrects the counted memory, as a walk has found."""
    return Call("followups/recount", script_keys(keys, shard), ["", missing_bytes, recounts])


@dataclass(frozen=True, slots=True)
class Addition:
    """A follow-up to add for one user."""

    id: str
    uid: str
    name: str
    after_s: float
    payload: str


def add_call(keys: Keys, what: Addition) -> Call:
    arguments: list[Any] = ["", what.id, what.uid, what.name, _ms(what.after_s), what.payload.encode()]
    bounds = [MAX_PENDING_PER_SHARD, MAX_PENDING_PER_USER, MAX_PENDING_BYTES_PER_SHARD]
    return Call("followups/add", script_keys(keys, keys.shard(what.uid)), [*arguments, *bounds])


def cancel_call(keys: Keys, shard: int, uids: Iterable[str], followup_id: str = "") -> Call:
    """Return the call that removes all follow-ups of users of a shard, or one of a user."""
    return Call("followups/cancel", script_keys(keys, shard), ["", followup_id, *uids])


def _ms(seconds: float) -> int:
    return -int(-seconds * 1000 // 1)  # rounded up: never early
