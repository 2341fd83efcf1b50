"""The last comparison: Redis, the nodes and the clients, once everything is over and quiet."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from loadtest.checker import RemainingEvent, check_last_events, differences
from presence.common import meta_json
from presence.core.event_facts import LoginFacts
from presence.core.profiles import Profile
from presence.core.registry import Session
from presence.store.records import State, offline_state, online_state, public_state, status_of
from tests.simulation.fake.values import Hash, Members, Sorted, Stream
from tests.simulation.machine import UNIX_START_S
from tests.simulation.truth import LONG_AGO

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.judge import SimulationJudge
    from tests.simulation.observed import ObservedEntry
    from tests.simulation.sockets import SimulatedConnection
    from tests.simulation.world import SimulatedWorld

Kind = tuple[str, str]  # of an event: type and reason
Owned = dict[tuple[str, str], tuple[str, str]]  # uid and device: node id and session


def compare(world: SimulatedWorld, judge: SimulationJudge) -> None:
    """Judge by `converged`, `conserved` and `counted`; see `judge`."""
    live = _live_sessions(world)
    recorded, nodes = _recorded(world), {host.node.relay.node for host in _running_hosts(world)}
    judge.add_broken(differences("records, nodes", recorded, live))
    judge.add_broken(differences("what nodes own, records", _owned(world), recorded))
    leases = set(map(str, _decode_names(world.redis.data.get(world.keys.lease_keys[1].encode(), Hash()))))
    if leases != nodes:
        judge.add_violation("converged", "leases {}, nodes {}", sorted(leases), sorted(nodes))
    for shard in range(world.keys.shards):
        members = world.redis.data.get(world.keys.peer_traces(shard).encode(), Hash())
        if not isinstance(members, Hash) or not nodes >= set(_decode_names(members)):
            judge.add_violation("converged", "traces {}, nodes {}", members, sorted(nodes))
    _check_clients(world, judge, set(live.values()))
    _check_shown(world, judge)
    judge.bans.compare(_running_hosts(world))
    most = world.plan.settings.max_sessions
    for uid, count in Counter(uid for uid, _ in recorded).items():
        if count > most:
            judge.add_violation("converged", "{} has {} sessions, {} at most", uid, count, most)
    class_of = {(each.plan.uid, each.plan.device): each.plan.device_class for each in world.devices}
    classes = Counter((uid, class_of[uid, device]) for uid, device in recorded)
    for name, (most, _) in world.plan.settings.class_limits.items():
        for uid, count in ((uid, n) for (uid, of_class), n in classes.items() if of_class == name):
            if count > most:
                judge.add_violation(
                    "converged", "{} has {} sessions of {}, {} at most", uid, count, name, most
                )
    _check_streams(world, judge, {uid for uid, _ in recorded})
    for host in _running_hosts(world):
        _check_outbox(judge, host)
        judge.counting.compare(judge, host, forgot=judge.periods.data_lost_at > -math.inf)
    _check_last_event(world, judge, {uid for uid, _ in recorded})
    judge.rooms.compare()


def _running_hosts(world: SimulatedWorld) -> list[Host]:
    return [host for host in world.hosts if host.machine.is_alive]


def _decode_names(names: Hash | Members | object) -> list[str]:
    return [name.decode() for name in names] if isinstance(names, (Hash, Members)) else []


def _live_sessions(world: SimulatedWorld) -> Owned:
    live: Owned = {}
    for host in _running_hosts(world):
        sessions = host.node.engine.registry
        for session in sessions:
            live[session.uid, session.device] = host.node.relay.node, sessions.session_id(session)
    return live


def _recorded(world: SimulatedWorld) -> Owned:
    records: Owned = {}
    for shard in range(world.keys.shards):
        stored = world.redis.data.get(world.keys.online(shard).encode(), Hash())
        for uid, text in stored.items() if isinstance(stored, Hash) else ():
            for device, session in json.loads(text)["sessions"].items():
                records[uid.decode(), device] = session["node"], session["session"]
    return records


def _owned(world: SimulatedWorld) -> Owned:
    owned: Owned = {}
    for key, value in world.redis.data.items():
        node, is_sessions, _ = key.decode().partition("}:node:")[2].partition(":sessions")
        for field, text in value.items() if is_sessions and isinstance(value, Hash) else ():
            uid, _, device = field.decode().partition(" ")
            owned[uid, device] = node, text.decode().partition(" ")[2]
    return owned


def _check_clients(world: SimulatedWorld, judge: SimulationJudge, live: set[tuple[str, str]]) -> None:
    """Compare the sessions with the clients that send keepalives."""
    sessions = {session for _, session in live}
    beating = {
        connection.life.id
        for host in _running_hosts(world)
        for connection in host.connections
        if connection.life and connection.is_open and not connection.device.is_cut(host)
        if isinstance(connection.client, Session)
    }
    for session in sorted(beating ^ sessions):
        what = "a client beats without a session" if session in beating else "a session without a client"
        judge.add_violation("converged", "{}: {}", session, what)
    for device in world.devices:
        if (
            device.wants_connection
            and not device.may_not_return
            and device.cut_off_until <= world.agenda.now
            and not device.main
        ):
            judge.add_violation("converged", "{} is not connected", device.plan.name)


def _check_shown(world: SimulatedWorld, judge: SimulationJudge) -> None:
    """Compare what records show with the processes, the events, and the clients."""
    profiles = {
        host.node.engine.registry.session_id(session): host.node.engine.registry.profiles.get(session.number)
        for host in _running_hosts(world)
        for session in host.node.engine.registry
    }
    shown = judge.showing.shown
    for shard in range(world.keys.shards):
        stored = world.redis.data.get(world.keys.online(shard).encode(), Hash())
        for name, text in stored.items() if isinstance(stored, Hash) else ():
            uid, state = name.decode(), online_state(text)
            assert state is not None
            for each in state["sessions"]:
                facts = LoginFacts(each.get("address", ""), each.get("class", ""))
                rooms = " ".join(each.get("rooms", ()))
                recorded = Profile(
                    status_of(each), each.get("meta", ""), each.get("private", ""), facts, rooms=rooms
                )
                if recorded != profiles.get(each["session"]):
                    text_of = "{} of {} is {} in its record, {} in its process"
                    known = profiles.get(each["session"])
                    judge.add_violation("converged", text_of, each["session"], uid, recorded, known)
            said = state.get("meta", ""), state.get("private", "")
            status = "invisible" if "invisible" in state else state["status"]
            shows = status, str(state["since_ms"]), said, state["id"]
            is_told = uid in shown and shown[uid][:4] == shows
            is_told = is_told and shown[uid].rooms == {*state.get("rooms", ())}
            if is_told and world.plan.settings.device_events:
                is_told = shown[uid].devices == {each["device"] for each in state["sessions"]}
            if not is_told:
                judge.add_violation("converged", "{} shows {}, told was {}", uid, shows, shown.get(uid))
            if "invisible" in state:
                _check_public(judge, uid, state)
        seen = world.redis.data.get(world.keys.seen(shard).encode(), Sorted())
        left = world.redis.data.get(world.keys.left(shard).encode(), Hash())
        assert isinstance(seen, Sorted)
        assert isinstance(left, Hash)
        if seen.scores.keys() != left.keys():
            both = sorted(seen.scores.keys() ^ left.keys())
            judge.add_violation("converged", "of these only one is known, seen or left: {}", both)
        for name, score in seen.scores.items():
            _check_public(judge, name.decode(), offline_state(score, left.get(name)))
    for host in _running_hosts(world):
        for connection in host.connections:
            _check_profile(world, judge, host, connection)


def _check_public(judge: SimulationJudge, uid: str, state: State) -> None:
    """Compare what clients are shown of a user who is offline or invisible with what they were told."""
    shown, told = state.get("public", state), public_state(judge.showing.offline.get(uid))
    if shown != told:
        judge.add_violation("converged", "{} is shown as {}, told was {}", uid, shown, told)


def _check_profile(
    world: SimulatedWorld, judge: SimulationJudge, host: Host, connection: SimulatedConnection
) -> None:
    """Compare how a session shows itself with what its client last sent, and when."""
    session, status, sessions = connection.client, connection.arrived_status, host.node.engine.registry
    if not isinstance(session, Session) or status is None or session not in sessions:
        return
    profile, settings = sessions.profiles.get(session.number), world.plan.settings
    shown = status.status
    if status.ends_at is not None:
        left_s = UNIX_START_S + status.ends_at - host.node.engine.clock.seen_ms(host.clock.monotonic()) / 1000
        if abs(left_s) < 2 * settings.tick or (left_s < 0 and settings.away_after):
            return
        shown = connection.lasting_status if left_s < 0 else shown
    if settings.away_after and shown == "online":
        silent_s = (world.agenda.now - connection.status_arrived_at) * host.clock.rate
        # A tick that is late credits up to a time-out, see `presence.core.slots`.
        if settings.away_after < silent_s < settings.away_after + 2 * settings.tick + settings.idle_timeout:
            return
        shown = "away" if silent_s > settings.away_after else shown
    meta, private = (
        meta_json.to_text({"text": text}) if text else "" for text in (status.meta, status.private)
    )
    facts = LoginFacts(device_class=connection.device.plan.device_class)
    wanted = Profile(shown, meta, private, facts, rooms=" ".join(sorted(connection.arrived_rooms)))
    if profile != wanted:
        judge.add_violation("converged", "{} shows {}, not {}", sessions.session_id(session), profile, wanted)


def _check_streams(world: SimulatedWorld, judge: SimulationJudge, online: set[str]) -> None:
    """Compare what is left of each stream with the records."""
    entries: list[RemainingEvent] = []
    for shard in range(world.keys.shards):
        stream = world.redis.data.get(world.keys.events(shard).encode(), Stream())
        assert isinstance(stream, Stream)
        for entry_id, words in zip(stream.ids, stream.entries, strict=True):
            texts = [word.decode() for word in words]
            fields = dict(zip(texts[::2], texts[1::2], strict=True))
            if uid := fields.get("uid", ""):
                text = f"{entry_id[0]}-{entry_id[1]}"
                entries.append(RemainingEvent(uid, fields["type"], text, fields.get("since_id", "")))
    judge.add_broken(check_last_events(entries, online))


def _check_last_event(world: SimulatedWorld, judge: SimulationJudge, online: set[str]) -> None:
    """Compare the last event of each user with the user's state."""
    for uid, devices in world.truth.by_user.items():
        lives = [life for lives in devices.values() for life in lives]
        died_unknown = any(
            not life.host.machine.is_alive
            and judge.registered_at.get(life.id, LONG_AGO) <= judge.periods.data_lost_at
            for life in lives
        )
        nobody_knows = died_unknown or any(map(judge.was_lost_twice, lives))
        are_applied = all((True, life.id) in judge.applied for life in lives if life.ended_at is not None)
        if uid in online or nobody_knows or not are_applied:
            continue
        if judge.periods.last_events.get(uid) == "online":
            last = max(lives, key=lambda life: life.handled)
            judge.add_violation(
                "conserved", "{} is offline since {} ended, and no event says so", uid, last.id
            )


def _check_outbox(judge: SimulationJudge, host: Host) -> None:
    figures = host.node.outbox.statistics()
    if figures.pending:
        judge.add_violation("conserved", "{} holds {}", host.name, figures.pending)
    for is_end, session in judge.accepted.get(host, ()):
        if (is_end, session) not in judge.applied:
            judge.add_violation(
                "conserved", "{} of {} was never applied", "end" if is_end else "login", session
            )
    reported = judge.liveness.reported_skips.get(host, 0)
    if reported < figures.skipped_total:
        judge.add_violation(
            "conserved", "{} skipped {}, gaps tell {}", host.name, figures.skipped_total, reported
        )


class Counting:
    """The events that nodes must have counted: each of a batch once, even if Redis has lost it since."""

    def __init__(self) -> None:
        self._by_batches: dict[str, Counter[Kind]] = {}  # by the node id that called
        self._by_others: dict[str, Counter[Kind]] = {}

    def entry_written(self, entry: ObservedEntry) -> None:
        kind = entry.fields["type"]
        if kind != "floor":  # which is taken out again immediately
            written = self._by_batches if entry.script == "apply" else self._by_others
            written.setdefault(entry.caller, Counter())[kind, entry.fields.get("reason", kind)] += 1

    def compare(self, judge: SimulationJudge, host: Host, *, forgot: bool) -> None:
        """Judge a running process; `forgot`: Redis lost data, and so perhaps the answer to a batch."""
        batches, others = self._total_of(self._by_batches, host), self._total_of(self._by_others, host)
        report = host.node.relay.transitions.report()
        counted = Counter({(type, reason): n for type, ns in report.items() for reason, n in ns.items()})
        if twice := counted - (batches + others):
            judge.add_violation("counted", "{} counts what was not written: {}", host.name, dict(twice))
        if not forgot and (missed := batches - counted):
            judge.add_violation("counted", "{} does not count what was written: {}", host.name, dict(missed))

    def _total_of(self, written: dict[str, Counter[Kind]], host: Host) -> Counter[Kind]:
        return sum((written.get(id, Counter()) for id in host.ids), Counter())
