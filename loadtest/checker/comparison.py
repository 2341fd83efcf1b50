"""What has to agree when all is over and quiet: the rule `converged`, and `doubled` in what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from loadtest.checker import Broken

TRANSITIONS: Final = frozenset({"online", "offline"})


class RemainingEvent(NamedTuple):
    """An event still in a stream, of any type; `since_id` is "" for an online event."""

    uid: str
    type: str
    id: str
    since_id: str


def differences(
    what: str, left: Mapping[tuple[str, str], object], right: Mapping[tuple[str, str], object]
) -> list[Broken]:
    """Return where two views of the sessions differ; both by uid and device."""
    if left == right:
        return []
    return [
        Broken("converged", f"{what}: {key} {left.get(key)} and {right.get(key)}")
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    ]


def check_last_events(entries: Iterable[RemainingEvent], online: set[str]) -> list[Broken]:
    """Compare what is left of the streams, in order, with the users who have a record."""
    broken = []
    last: dict[str, RemainingEvent] = {}
    for entry in entries:
        before = last.get(entry.uid)
        if entry.type not in TRANSITIONS:
            if before and (before.type, before.id) != ("online", entry.since_id):
                broken.append(Broken("shown", f"{entry.uid} {entry.type} after {before} in what is left"))
            continue
        is_twin = entry.type == (before.type if before else "offline")
        if is_twin or (entry.type == "offline" and before and entry.since_id != before.id):
            broken.append(Broken("doubled", f"{entry.uid} {entry.type} after {before} in what is left"))
        last[entry.uid] = entry
    ends_online = {uid for uid, entry in last.items() if entry.type == "online"}
    broken.extend(
        Broken("converged", f"{uid}: last event {last.get(uid)}, record {uid in online}")
        for uid in sorted(ends_online ^ online)
    )
    return broken
