"""Guards of the protocol, each of which can be switched off: then the simulation must find a broken promise.

A guard is off by another text of a script, or by another attribute of a class or module. If one is no longer
found by `--guards --known`, look with `--guards --guard NAME --seeds 1000`, and note the seed here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from presence.cluster import failure_detector
from presence.core.ban_list import BanList
from presence.core.changes import Change
from presence.core.expiry import Expiry
from presence.core.profiles import ProfileChange, Profiles
from presence.core.registry import Session
from presence.core.sessions import Sessions
from presence.outbox import end_gate, shard_writer
from presence.outbox.backlog import Backlog
from presence.outbox.reconciler import Reconciler
from presence.outbox.relay import Relay
from presence.outbox.shard_peers import ShardPeers
from presence.rooms import comparison, source_shard
from presence.server.ban_enforcer import BanEnforcer
from presence.server.node_assembly import Node
from presence.store.script_runner import Scripting
from tests.support.script_texts import SourceChange, changed


@dataclass(frozen=True)
class Guard:
    name: str  # as in the command line
    scripts: tuple[SourceChange, ...] = ()  # what is changed in scripts
    attributes: Mapping[tuple[Any, str], Any] | None = None  # (owner, name) to what takes its place
    seed: int = 0  # found it, when that was last looked for
    is_of_rooms: bool = False  # whether only seeds with rooms can find it
    covered_by: str = ""  # the guard that keeps every promise though this one is off; "" if none does

    @contextmanager
    def off(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(changed(*self.scripts))
            for (owner, name), value in (self.attributes or {}).items():
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


FOREVER_S: Final = 1e6

_probe = Relay._probe
_prepare = shard_writer.ShardWriter.prepare_step
_fenced = failure_detector.FailureDetector.fence_seen


async def _probe_once(relay: Relay, writers: Sequence[shard_writer.ShardWriter]) -> list[Any]:
    unknown = [writer for writer in writers if writer.gate._answered_at == -math.inf]
    failures = await _probe(relay, unknown)
    for writer in writers:
        if writer not in unknown:
            writer.gate._answered_at = relay.clock()
            relay._breakers[writer.shard].record_answer()
    return failures


def _never_retire(writer: shard_writer.ShardWriter, now: float) -> None:
    writer._retiring = None
    _prepare(writer, now)


def _answered_always(contact: failure_detector.ContactClock, now: float) -> None:
    contact._time = now
    contact.unbroken_s = math.inf
    contact._last = now


def _fenced_and_due(
    detector: failure_detector.FailureDetector, node: failure_detector.PeerNode, shard: int, rollbacks: int
) -> None:
    _fenced(detector, node, shard, rollbacks)
    node.shards[shard].due_at = -math.inf


def _update_without_deadline(
    self: Sessions,
    session: Session,
    now: float,
    change: ProfileChange,
    _status_ends_at: float | None = None,
    idle_timeout: float | None = None,
) -> Change | None:
    """Tell Redis the idle time-out that a client was granted, and go on with the one from before."""
    before = session.idle_timeout
    told = self.registry.update(session, now, change, idle_timeout)
    session.idle_timeout = before
    return told


_settle = source_shard.SourceShard.settle
_go_on = source_shard.SourceShard._go_on


def _settled_without_a_walk(self: source_shard.SourceShard, now: float) -> None:
    """Complete a rebuild without the comparison of members with records."""
    _settle(self, now)
    if self._walk_due:
        self._finish_rebuild(now)


def _gone_on_where_it_was(
    self: source_shard.SourceShard, each: source_shard._RoomShard, position: bytes
) -> None:
    """Do not read again what a room shard lacks."""
    cursor = self.cursor
    _go_on(self, each, position)
    self.cursor = cursor


def _removed_early(self: comparison.MemberWalk, scripting: Scripting) -> None:
    """Remove members before the rooms have the events that their records have."""
    self._suspects = [
        (source, b"0-0 " + position.partition(b" ")[2], member) for source, position, member in self._suspects
    ]
    _remove(self, scripting)


_remove = comparison.MemberWalk._remove

_FENCE: Final = (
    SourceChange("apply", "if counter[4] then return refuse('fenced', present_generation) end", ""),
    SourceChange("lib/refuse_outdated", "if counter[2] then return refuse('fenced', present) end", ""),
    SourceChange("probe", "fenced = counter[3] and true or false", "fenced = false"),
)
_CERTIFICATE: Final = (
    SourceChange(
        "lease", "redis.call('ZSCORE', tombs_key, node) or (row and string.find(row, ' ', 1, true))", "false"
    ),
)
_TOMBSTONE: Final = (
    SourceChange(
        "sweep",
        "will('PEXPIRE', node_prefix .. dead, tombstone_ms)",
        "will('DEL', node_prefix .. dead)",
    ),
)

GUARDS: Final = (
    Guard("read-before-expiry", attributes={(Expiry, "poll"): lambda *_: False}, seed=8),
    Guard(
        "session-compare",
        (
            SourceChange("apply", "if its_device == device and its_session == session then", "if true then"),
            SourceChange(
                "apply",
                "if present and present.session == session then\n    remove_session",
                "if present then remove_session",
            ),
            SourceChange(
                "lib/owned_sessions",
                "present and present.session == session and present.node == of_node\n",
                "present\n",
            ),
            SourceChange(
                "lib/owned_sessions", "      and present.generation == owned_generation) then", ") then"
            ),
        ),
    ),
    Guard(
        "script-decides-transitions",
        (
            SourceChange(
                "lib/sessions",
                "if not record then\n    local id",
                "if change.code == CODE_LOGIN or not record then\n    local id",
            ),
            SourceChange("lib/sessions", "record = {id = id,", "record = record or {id = id,"),
        ),
    ),
    Guard(
        "batch-number",
        (SourceChange("apply", "if n <= last_n then\n", "if false then\n"),),
        seed=79,
    ),
    Guard(
        "missing-counter",
        (
            SourceChange(
                "apply",
                "if not opens and generation ~= present_generation",
                "if present_generation == 0 then present_generation, last_n = generation, n - 1 end\n"
                "if not opens and generation ~= present_generation",
            ),
        ),
        seed=45,
    ),
    Guard(
        "generation",
        (
            SourceChange(
                "apply",
                "if not opens and generation ~= present_generation",
                "if not opens and present_generation == 0",
            ),
        ),
        seed=5054,
    ),
    Guard(
        "counted-in-the-trail",
        (SourceChange("apply", "former_superseded, former_counts}}", "former_superseded, {}}}"),),
        seed=166,
    ),
    Guard("probe", attributes={(Relay, "_probe"): _probe_once}, seed=16),
    Guard("hold-after-resync", attributes={(end_gate, "SETTLE_TIMEOUT_S"): 0.0}, seed=72),
    Guard("fence", _FENCE, seed=8),
    Guard(
        "wait-before-sweep",  # the observer's and the script's: each covers the other
        attributes={
            (failure_detector.FailureDetector, "fence_seen"): _fenced_and_due,
            (failure_detector.FailureDetector, "waited_s"): lambda *_: FOREVER_S,
        },
        seed=416,
    ),
    Guard(
        "lost-fences",
        attributes={(failure_detector.FailureDetector, "forget_lost_fences"): lambda *_: None},
        seed=304,
    ),
    Guard("lost-fences-seen", attributes={(ShardPeers, "has_lost_fence"): lambda *_: False}, seed=584),
    Guard("patience", attributes={(failure_detector.ContactClock, "answered"): _answered_always}, seed=6),
    Guard("tombstone", _TOMBSTONE, seed=424),
    Guard("certificate", _CERTIFICATE, covered_by="fence"),
    Guard("certificate+fence", (*_CERTIFICATE, *_FENCE), seed=8),
    Guard(
        "late-login-yields",
        (
            SourceChange(
                "apply",
                "wins = now_ms - earliest_ms <= LATE_LOGIN_MS or earliest_ms >= earliest_login_ms(present)",
                "wins = true",
            ),
        ),
        seed=11,
    ),
    Guard(
        "two-sided-resync", attributes={(shard_writer.ShardWriter, "prepare_step"): _never_retire}, seed=37
    ),
    Guard(
        "profile-with-registration",
        (SourceChange("apply", "if profile ~= '' then show_as(entry, profile) end", ""),),
        seed=1,
    ),
    Guard(
        "shown-when-a-device-goes",
        (
            SourceChange(
                "lib/changes",
                "  staying().shown_changed(change, record, before)\n  if not record",
                "  if not record",
            ),
        ),
        seed=1,
    ),
    Guard(
        "invisible-as-before-the-login",
        (
            SourceChange(
                "lib/events",
                "local public = status == 'invisible' and public_of_offline(uid) or nil",
                "local public = status == 'invisible' and '' or nil",
            ),
        ),
        seed=3,
    ),
    Guard(
        "invisible-after-the-end",
        (SourceChange("lib/events", " .. (public and ' ' .. (public ~= '' and public or '-') or '')", ""),),
        seed=1,
    ),
    Guard(
        "invisible-with-one-device",
        (SourceChange("lib/profile", "invisible = 5", "invisible = 0"),),
        seed=6,
    ),
    Guard(
        "shown-by-the-latest-login",
        (
            SourceChange(
                "lib/shown_state",
                "(candidate.login_ms > session.login_ms\n",
                "(false\n",
            ),
        ),
        seed=1,
    ),
    Guard(
        "devices-that-go",
        (
            SourceChange(
                "lib/changes",
                "  if not record.sessions[change.device] then staying().device(change, record, gone) end\n",
                "",
            ),
        ),
        seed=1,
    ),
    Guard(
        "registrations-limited",
        (
            SourceChange(
                "apply",
                "if had_record and next(record.sessions, next(record.sessions)) then note_another",
                "if had_record and op == 'login'\n"
                "    and next(record.sessions, next(record.sessions)) then note_another",
            ),
        ),
        seed=10928,
    ),
    Guard(
        "classes-limited",
        (SourceChange("apply", "local limit = class_limits[class]", "local limit"),),
        seed=69,
    ),
    Guard("status-ends", attributes={(Profiles, "end_status"): lambda *_: None}, seed=1),
    Guard("wheel-follows-updates", attributes={(Sessions, "update"): _update_without_deadline}, seed=1),
    Guard("banned-refused", attributes={(BanList, "find"): lambda *_: None}, seed=2),
    Guard("banned-sessions-end", attributes={(Node, "enforce_ban"): lambda *_: None}, seed=2),
    Guard(
        "changes-of-bans-announced", attributes={(BanEnforcer, "refresh_soon"): lambda _self: None}, seed=2
    ),
    Guard(
        "items-too-many-sent-later",
        attributes={(Backlog, "cut"): lambda *_: None},
    ),
    Guard("missed-news-compared", attributes={(Reconciler, "run_soon"): lambda _self: None}, seed=22199),
    # Of rooms
    Guard(
        "rooms-position",
        (SourceChange("rooms/project", "if not fits then", "if not fits and from == '?' then"),),
        seed=1100,
        is_of_rooms=True,
    ),
    Guard(
        "rooms-removals-of-the-epoch",
        (
            SourceChange(
                "rooms/project", "if epoch then fits = epoch == '' or", "if epoch then fits = true or"
            ),
        ),
        seed=31271,
        is_of_rooms=True,
    ),
    Guard(
        "rooms-occupied-goes",
        (
            SourceChange(
                "rooms/project",
                "after[OCCUPIED] = room_count - 1, vacated + 1, false",
                "_ = room_count - 1, vacated + 1",
            ),
        ),
        seed=4,
        is_of_rooms=True,
    ),
    Guard(
        "rooms-read-again",
        attributes={(source_shard.SourceShard, "_go_on"): _gone_on_where_it_was},
        seed=18,
        is_of_rooms=True,
    ),
    Guard(
        "rooms-walk",
        attributes={(source_shard.SourceShard, "settle"): _settled_without_a_walk},
        seed=14,
        is_of_rooms=True,
    ),
    Guard(
        "rooms-lease",  # which only keeps projectors from doing the same twice
        (SourceChange("rooms/read", "if state[1] and state[1] ~= projector and", "if false and"),),
        is_of_rooms=True,
        covered_by="rooms-position",
    ),
)

ROOM_GUARDS: Final = (
    Guard(
        "rooms-epoch",
        (SourceChange("rooms/read", "(cursor == 'reset' or state[3] == epoch)", "true"),),
        {(source_shard.SourceShard, "_is_placed"): lambda _self, each: bool(each.position)},
    ),
    Guard(
        "rooms-gap",
        (
            SourceChange("rooms/read", "is_gap = first == 2 and not", "is_gap = false and not"),
            SourceChange("rooms/read", "wanted_id ~= '' and #redis", "false and #redis"),
        ),
    ),
    Guard("rooms-behind", attributes={(source_shard.SourceShard, "_want_reset"): lambda *_: None}),
    Guard(
        "rooms-difference-by-value",
        (SourceChange("rooms/project", "applies = false, before == value", "applies = false, before"),),
    ),
    Guard("rooms-difference-after-events", attributes={(comparison.MemberWalk, "_remove"): _removed_early}),
    Guard("rooms-later-events", attributes={(source_shard, "_later"): lambda items, _position: items}),
)
"""Against what the simulation hardly does: shards lose data or entries one by one. Tests of rooms do."""
