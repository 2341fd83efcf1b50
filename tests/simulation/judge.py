"""The judge: the promises as rules. A broken rule reports its name, the moment and the user.

Rules that also hold for real processes are in `loadtest.checker`: `doubled`, `risen`, `disorder`, `shown`,
the core of `early` and `false`, the comparisons of `converged`. This module knows the simulation's truth.

While the simulation runs
 early      A session ends as idle_timeout only if, by its node's clock, none of its packets became
            readable for its time-out; as closed only if its FIN was readable for the grace, or it was
            silent for the time-out; as logout only if its logout was readable; as replaced only if its
            device has logged in more than once; for its user's limit only if they have more devices.
 late       It ends no later than its time-out, a tick and the reading window after its last packet, by
            its node's clock. Time in which the process was stopped counts twice: nothing runs, and
            later the whole stop is credited, up to T.
 untold     With no fault now or shortly before, an end is reported REPORT_S after its decision; a
            gap entry of its process counts as the end of a fault, and so does a resync for what a comparison
            found. If a batch of its process was refused as heavy since the decision, GATHER_S more: the
            refusal is read like any answer, after changes have gathered.
 unswept    A session of a process that died alone, no fault before or after, is swept within a lease, its
            time-out (at least T), three heartbeats and SWEEP_SLACK_S, by the slowest clock.
 false      At an offline event, no device of the user may have a live session as its newest login: one that
            its process holds, and whose client was received within its time-out and has sent
            neither FIN nor logout. A process is excused only if it could not report that session to Redis:
            it was stopped, or one of the relay's calls failed or was slow, within the last RECOVERY_S, and
            not because Redis was unreachable for all, unless for less than BRIEF_OUTAGE_S, or without a
            failed call of the process that reports the end; its outbox is
            beyond its bound, or was, until its gap entry and RECOVERY_S; the process that reports the end
            has not yet seen its node in that shard; the login is younger than LOGIN_LAG_S; or Redis went
            back to an earlier state of the same history within ROLLBACK_S, which a node whose own counter
            agrees cannot see. For an end that a node decided the moment of the decision counts: a later
            login, by clocks as wrong as theirs, comes online afterwards.
 unfounded  An offline event with another reason than node_down has the decision of the session's process.
 swept      A sweep ends what a node id owns no sooner than lease + T after that id's last renewal, by the
            sweeper's clock; a session with a longer time-out of its own that much later. Time in which
            Redis was unreachable for all for more than two heartbeats does not count.
 doubled    The events of a user alternate, and each offline event names the entry id of its online event.
            What Redis has forgotten is forgotten here too.
 risen      A session whose end was applied never comes online again, unless Redis forgot the end.
 shown      An event about a user's status or `meta` reports a change in the present period.
 exile      No final goodbye to the newest login of a device, unless its user has more devices than allowed
            sessions. Here, as in `false`, a device is exempt if Redis has since applied one of its logins
            that was in flight for more than IN_FLIGHT_S:
            its age was that of its sending, so it may count as younger than it is.
 banned     A process admits nobody whom a ban that it knows forbids. With no fault now or shortly before, it
            admits none whom the table in Redis has forbidden for BAN_S, has no such session, and tells
            nobody of a ban that the table has not had for BAN_S.
 Those of rooms are in `room_rules`.
When all is over
 converged  Redis' records are the union of the sessions of the running processes, exactly, and these are
            the sessions of the live clients. What nodes own agrees with the records; the table of
            leases and the members of each shard are the running nodes. The last event of each user
            agrees with their record. Records show sessions as their processes do, and these as the
            clients have set, or as their silence implies; the last event about a user shows the same.
            No user has more sessions than allowed. Each process knows the bans in the table, and has no
            session that they forbid, unless Redis has lost changes since the last look that is due anyway.
 conserved  Every login and end that an outbox of a living process accepted was applied, none is pending;
            what it skipped is counted by gap entries. For a user whose last session a process ended,
            subscribers' last event is an offline event, whatever Redis lost; unless a process that had one of
            the user's sessions died, and Redis lost its data after that: then no process knows of them.
 counted    A running process has counted each entry that its batches wrote, once, whatever became of the
            answers, unless Redis lost data; and none that neither these nor its sweeps and retirements wrote.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from loadtest.checker import EPSILON_S, Broken, Given, Periods, Promised, Showing, ShownStates, is_justified
from presence.cluster.lease_renewal import RENEWALS_PER_LEASE
from presence.core.changes import Change, Op
from presence.protocol import Code
from tests.simulation import excuses
from tests.simulation.excuses import Liveness
from tests.simulation.final import Counting, compare
from tests.simulation.observed import ObservedEntry, ScriptRun
from tests.simulation.operator import BanRules
from tests.simulation.room_rules import KnownRooms, RoomRules
from tests.simulation.truth import LONG_AGO, TrueSession

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import SimulatedWorld

ITEM_VALUES: Final = 9  # see apply.lua
ENDS: Final = frozenset({"end", "restore"})


class KnownState(NamedTuple):
    """What Redis is known to have at one moment."""

    at: float  # true time
    online: dict[str, str]  # see `Periods`
    shown: ShownStates  # see `Showing`
    renewed_at: dict[str, float]  # by node, when its lease was renewed last
    rooms: KnownRooms  # see `RoomRules`


class SimulationJudge:
    """Compares what happens with the rules.

    Attributes:
        accepted: logins and ends (True) that each process's outbox accepted.
        applied: those that a script has applied, with the true time of the first time.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.violations: list[str] = []  # what was broken
        self.periods = Periods()  # who is online, as the streams have it
        self.showing = Showing()  # how they show themselves, as the streams have it
        self.accepted: dict[Host, list[tuple[bool, str]]] = {}
        self.applied: dict[tuple[bool, str], float] = {}
        self.registered_at: dict[
            str, float
        ] = {}  # true time at which Redis was last told that a session lives
        self.liveness = Liveness(world)
        self._renewed_at: dict[str, float] = {}
        self._losses: list[tuple[float, float]] = []  # true time, and that of the state it went back to
        self.bans = BanRules(world, self)
        self.counting = Counting()  # what nodes are to have counted
        self.rooms = RoomRules(world, self)

    def add_violation(self, rule: str, text: str, *values: object) -> None:
        line = f"{self._world.agenda.now:.3f} {rule}: {text.format(*values)}"
        self._world.note("VIOLATION {}", line)
        self.violations.append(line)

    def add_broken(self, found: list[Broken]) -> None:
        """Add the findings of the rules that real processes share."""
        for each in found:
            self.add_violation(each.rule, "{}", each.text)

    # What nodes decide

    def change_queued(self, host: Host, change: Change) -> None:
        """An outbox accepted a change."""
        if change.op in (Op.LOGIN, Op.END):
            self.accepted.setdefault(host, []).append((change.op is Op.END, change.session))

    def change_decided(self, host: Host, change: Change) -> None:
        now = self._world.agenda.now
        if change.op is Op.LOGIN:
            self._world.note("{} at {}: login {}", change.uid, host.name, change.session)
            self.bans.admitted(host, change.uid, change.device)
        if change.op is not Op.END:
            return
        life = self._world.truth.by_id[change.session]
        life.ended_at, life.end_code = now, change.code
        self._world.note(
            "{} at {}: end {} {}", change.uid, host.name, change.session, Code(change.code).reason
        )
        rate = host.clock.rate
        silent_s = (now - life.readable) * rate
        given = Given(
            silent_s,
            None if life.fin_at is None else (now - life.fin_at) * rate,
            life.logout_at is not None,
            len(self._world.truth.by_user[change.uid][change.device]) > 1,
        )
        grace_s = self._world.plan.settings.disconnect_grace
        if change.code == Code.SESSION_LIMIT:
            self._check_limit("early", life)
        elif change.code != Code.BANNED and not is_justified(
            change.code, given, Promised(life.idle_timeout, grace_s)
        ):
            self.add_violation(
                "early", "{} {} after {:.3f} s of silence", life.id, Code(change.code).reason, silent_s
            )
        if change.code != Code.REPLACED and not host.is_draining:  # a session that is ended needs no tick
            self._check_late(life, now)

    def _check_late(self, life: TrueSession, now: float) -> None:
        silent_s = (now - life.readable) * life.host.clock.rate
        allowed_s = excuses.decision_allowed_s(self._world, life, now)
        if silent_s > allowed_s + EPSILON_S:
            self.add_violation("late", "{} {:.3f} s silent, {:.3f} allowed", life.id, silent_s, allowed_s)

    def goodbye_sent(self, life: TrueSession, code: Code) -> None:
        self._world.note("{} at {}: goodbye {} to {}", life.key[0], life.host.name, code.reason, life.id)
        if code.reconnect or code is Code.BANNED:
            return
        uid, device = life.key
        if code is Code.SESSION_LIMIT:
            self._check_limit("exile", life)
            return
        newest = max(self._world.truth.by_user[uid][device], key=lambda each: each.arrived)
        if newest is life and not self.liveness.is_outdated(life):
            self.add_violation(
                "exile", "{} of {} was told {}, and no login is newer", life.id, uid, code.reason
            )

    def _check_limit(self, rule: str, life: TrueSession) -> None:
        uid, settings = life.key[0], self._world.plan.settings
        devices = self._world.truth.by_user[uid]
        class_of = {
            each.plan.device: each.plan.device_class for each in self._world.devices if each.plan.uid == uid
        }
        name = class_of[life.key[1]]
        same = sum(class_of[device] == name for device in devices)
        most_of_class = settings.class_limits.get(name, (same, ""))[0]
        if len(devices) <= settings.max_sessions and same <= most_of_class:
            self.add_violation(rule, "{} had to go, one of {} devices", life.id, len(devices))

    # What Redis does

    def script_ran(self, ran: ScriptRun) -> None:
        status, now = ran.reply.get("status") if isinstance(ran.reply, dict) else None, self._world.agenda.now
        if status == "heavy":
            self.liveness.refused_as_heavy_at[self._world.host_of_node[ran.arguments[0].decode()]] = now
        if status != "ok":
            return
        if ran.script == "claim":
            self._world.note("row of {}: {} becomes {}", *(word.decode() for word in ran.arguments[:3]))
        elif ran.script == "fence":
            caller, other = ran.arguments[0].decode(), ran.arguments[9].decode()
            self._world.note("{} fences {} in {}", caller, other, ran.keys[0].decode())
        elif ran.script == "lease":
            # When it was sent: one that is carried out late is no sign of life.
            node, sent_at = ran.arguments[0].decode(), json.loads(ran.arguments[3])["sent_at"]
            self._renewed_at[node] = max(sent_at, self._renewed_at.get(node, LONG_AGO))
        elif ran.script == "apply" and ran.is_new:
            items: list[Any] = msgpack.unpackb(ran.arguments[10])
            for first in range(0, len(items), ITEM_VALUES):
                op, session = items[first], items[first + 3]
                if op == "update":
                    continue
                if op not in ENDS:
                    self.registered_at[session] = now
                    self.liveness.login_applied((items[first + 1], items[first + 2]))
                if op != "hold":
                    self.applied.setdefault((op in ENDS, session), now)
                if op in ENDS:
                    self.periods.session_ended(session, now)

    def data_lost(self, snapshot: KnownState | None, *, silently: bool = False) -> None:
        """Redis went back to its state of a snapshot; None: it is empty."""
        now = self._world.agenda.now
        self._losses.append((now, snapshot.at if snapshot else LONG_AGO))
        self.periods.data_lost(now, snapshot.online if snapshot else None)
        self.showing.data_lost(snapshot.shown if snapshot else None)
        self._renewed_at = dict(snapshot.renewed_at) if snapshot else {}
        self.rooms.data_lost(snapshot.rooms if snapshot else None)
        if silently:
            self.liveness.rolled_back_at = now

    def snapshot(self) -> KnownState:
        """Return what `data_lost` needs if Redis goes back to this moment."""
        return KnownState(
            self._world.agenda.now,
            self.periods.snapshot(),
            self.showing.snapshot(),
            dict(self._renewed_at),
            self.rooms.snapshot(),
        )

    def was_lost_twice(self, life: TrueSession) -> bool:
        """Whether Redis lost the end of a session that it had acknowledged, and later lost data again."""
        applied_at = self.applied.get((True, life.id), math.inf)
        losses = [lost_at for lost_at, back_to in self._losses if back_to < applied_at <= lost_at]
        return bool(losses) and self.periods.data_lost_at > losses[0]

    def entry_written(self, entry: ObservedEntry) -> None:
        self.counting.entry_written(entry)
        fields = entry.fields
        if "uid" in fields:
            self.add_broken(self.periods.check_order(fields["uid"], entry.id))
            self.add_broken(self.showing.check_entry(entry.id, fields))
            self.rooms.user_changed(entry)
        match fields["type"]:
            case "gap":
                host = self._world.host_of_node[fields["node"]]
                gaps = self.liveness.reported_skips
                gaps[host] = gaps.get(host, 0) + int(fields["dropped"])
                self.liveness.skips_reported_at[host] = entry.at
                self._world.note("{} gap of {}", host.name, fields["dropped"])
            case "online":
                self._user_online(entry)
            case "offline":
                self._user_offline(entry)
            case "away" | "update" | "device" | "rooms":
                details = [fields[name] for name in ("uid", "reason", "status")]
                self._world.note("{} {} {} {} by {}", *details, fields.get("meta", ""), entry.script)

    def _user_online(self, entry: ObservedEntry) -> None:
        uid, session = entry.fields["uid"], entry.fields["session"]
        self._world.note("{} ONLINE {} by {} of {}", uid, session, entry.script, entry.fields["node"])
        self.add_broken(self.periods.user_online(uid, session, entry.id, entry.at))

    def _user_offline(self, entry: ObservedEntry) -> None:
        uid, session, reason = (entry.fields[name] for name in ("uid", "session", "reason"))
        self._world.note("{} OFFLINE {} {} by {} of {}", uid, session, reason, entry.script, entry.caller)
        self.add_broken(self.periods.user_offline(uid, session, entry.fields["since_id"]))
        life = self._world.truth.by_id[session]
        decided_at = entry.at
        if entry.script == "apply":
            if life.ended_at is None:
                self.add_violation("unfounded", "{} of {} {}", session, uid, reason)
                return
            decided_at = life.ended_at
            took_s = entry.at - decided_at
            gap_at = self.liveness.skips_reported_at.get(life.host, LONG_AGO)
            is_cut = self.liveness.refused_as_heavy_at.get(life.host, LONG_AGO) >= decided_at
            if took_s > excuses.report_allowed_s(self._world, life, decided_at, gap_at, is_cut=is_cut):
                self.add_violation("untold", "the end of {} for {:.3f} s", life.id, took_s)
        elif entry.script == "sweep":
            self._check_sweep(entry, life)
        reporter = self._world.host_of_node[entry.caller]
        for newest in self._world.truth.newest(uid):
            if self.liveness.must_be_known(newest, decided_at, reporter):
                text = "{} offline by {} ({} {}) though {} lives at {}"
                self.add_violation(
                    "false", text, uid, session, entry.script, reason, newest.id, newest.host.name
                )

    def _check_sweep(self, entry: ObservedEntry, life: TrueSession) -> None:
        settings = self._world.plan.settings
        dead, sweeper = entry.fields["node"], self._world.host_of_node[entry.caller]
        renewed_at = self._renewed_at.get(dead, LONG_AGO)
        away_s = self._world.redis.unreachable_between(
            renewed_at, entry.at, 2 * settings.lease / RENEWALS_PER_LEASE
        )
        silent_s = (entry.at - renewed_at - away_s) * sweeper.clock.rate
        least_s = settings.lease + max(settings.idle_timeout, life.shortest_timeout)
        if silent_s < least_s - EPSILON_S:
            self.add_violation(
                "swept", "{} of {} after {:.3f} s, not {:.3f}", life.id, dead, silent_s, least_s
            )
        since_death_s = entry.at - life.host.machine.ended_at
        if since_death_s > excuses.sweep_allowed_s(self._world, life):
            self.add_violation("unswept", "{} of {} for {:.3f} s", life.id, dead, since_death_s)

    def judge_final_state(self) -> None:
        compare(self._world, self)
