"""The promises on rooms as rules, in plans with projectors; see `judge` for all others.

What Redis has forgotten is forgotten here too. A room entry is a *correction* if its reason is the comparison
of members with records. A source shard is *exact* from the beginning, until Redis loses data or a rebuild of
the shard begins; and again when the rooms are right, have all events, and no rebuild is under way.

While the simulation runs
 occupancy  `occupied` and `vacated` of a room alternate, with 1 and 0 members.
 counts     Where members have entries, `joined` and `left` of a member alternate, and each count is that of
            the members after the entry.
 projected  Each entry but a correction names an event that says so of its user and room, and no other entry
            does, whatever was rebuilt meanwhile. While the shard of the user is exact, where members have
            entries, those of a user and room are what the events say, each once and in order.
 corrected  As long as Redis has lost nothing and nobody asked for a rebuild, there are no corrections, and no
            projector begins a rebuild.
 rebuilt    When rebuilds and the comparisons that they want are complete, and Redis has lost nothing
            meanwhile, the members are right, but for events that are still to come.
When all is over
 converged  The members of all rooms are those of the records, with their statuses; the index, the numbers of
            members and the ids of `occupied` agree with them; no rebuild or comparison that is wanted is
            pending; and, while a shard is exact, each event is in the stream.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack

from presence.rooms.comparison import order
from presence.store.records import online_state
from tests.simulation.fake.values import Hash, Sorted, Stream

if TYPE_CHECKING:
    from tests.simulation.judge import SimulationJudge
    from tests.simulation.observed import ObservedEntry, ScriptRun
    from tests.simulation.world import SimulatedWorld

LOOK_S: Final = 1.0  # between two looks whether rooms are right again
AGAIN_S: Final = 0.5  # between attempts of the operator
CORRECTION: Final = "comparison"
LETTERS: Final = {"online": "-", "away": "a", "busy": "b", "dnd": "d"}
OCCUPIED, INVISIBLE = b" o", b" i"

EventName = tuple[int, str]  # its shard and id
Members = dict[str, dict[str, str]]  # by room: the letter of each member


class UserEvent(NamedTuple):
    """What an event says of rooms."""

    at: float  # true time
    uid: str
    joined: frozenset[str]
    left: frozenset[str]


class RoomsOfUser(NamedTuple):
    """The rooms that a user is in, as the events say, and the last of these."""

    rooms: frozenset[str] = frozenset()
    event_id: str = "0-0"


class KnownRooms(NamedTuple):
    """What Redis is known to have of rooms at one moment."""

    at: float  # true time
    occupied: dict[str, str]  # room to the id of its entry
    members: dict[str, frozenset[str]]  # by the streams of rooms
    users: dict[str, RoomsOfUser]
    told: frozenset[tuple[str, str, EventName]]  # room and type of an entry, and the event that it names
    last_events: dict[tuple[int, int], str]  # by source and room shard: the last event about its rooms


NO_ROOMS: Final = KnownRooms(-1e9, {}, {}, {}, frozenset(), {})


class RoomRules:
    """Compares what happens to rooms with the rules."""

    def __init__(self, world: SimulatedWorld, judge: SimulationJudge) -> None:
        self._world = world
        self._judge = judge
        self._keys = world.keys
        self._are_members_told = world.plan.settings.room_events == "all"
        self._occupied: dict[str, str] = {}
        self._members: dict[str, set[str]] = {}
        self._users: dict[str, RoomsOfUser] = {}
        self._told: set[tuple[str, str, EventName]] = set()
        self._last_events: dict[tuple[int, int], str] = {}
        self._events: dict[EventName, UserEvent] = {}
        self._lost: set[EventName] = set()
        # Of each source, the event after which it is exact; None: it is not
        self._exact_after: list[str | None] = ["0-0"] * world.keys.shards
        self._due: dict[
            tuple[str, str], deque[tuple[str, str]]
        ] = {}  # room, uid -> type, event id of entries
        self._may_correct = False
        self._is_rebuilding = (
            False  # or a comparison that is wanted is under way; unless data was lost meanwhile
        )
        self._is_looking = False
        self._requests = 0

    # What Redis forgets

    def snapshot(self) -> KnownRooms:
        """Return what `data_lost` needs if Redis goes back to this moment."""
        return KnownRooms(
            self._world.agenda.now,
            dict(self._occupied),
            {room: frozenset(uids) for room, uids in self._members.items()},
            dict(self._users),
            frozenset(self._told),
            dict(self._last_events),
        )

    def data_lost(self, known: KnownRooms | None) -> None:
        """Redis went back to its state of a snapshot; None: it is empty."""
        known = known or NO_ROOMS
        self._lost |= {name for name, event in self._events.items() if event.at > known.at}
        self._occupied = dict(known.occupied)
        self._members = {room: set(uids) for room, uids in known.members.items()}
        self._users = dict(known.users)
        self._is_rebuilding = False
        self._told = set(known.told)
        self._last_events = dict(known.last_events)
        self._may_correct = True
        for source in range(self._keys.shards):
            self._loosen(source)

    def _loosen(self, source: int) -> None:
        """Note that a source is not exact any more."""
        self._exact_after[source] = None
        self._due = {pair: due for pair, due in self._due.items() if self._keys.shard(pair[1]) != source}
        if not self._is_looking and self._world.plan.projectors:
            self._is_looking = True
            self._world.agenda.after(LOOK_S, self._look)

    def _look(self) -> None:
        """Note that sources are exact again, if the rooms are right."""
        if self.is_behind() or self._stored_members(with_letters=False) != self._wanted_members():
            self._world.agenda.after(LOOK_S, self._look)
            return
        self._is_looking = False
        for source, after in enumerate(self._exact_after):
            if after is None:
                self._exact_after[source] = self._last_entry(source)
        self._world.note("rooms are exact after {}", self._exact_after)

    # What users, operators and projectors do

    def user_changed(self, entry: ObservedEntry) -> None:
        """An event of a user was written."""
        if not self._world.plan.projectors:
            return
        fields, uid = entry.fields, entry.fields["uid"]
        source, before = self._keys.shard(uid), self._users.get(uid, RoomsOfUser()).rooms
        rooms, left = (frozenset(fields.get(name, "").split()) for name in ("rooms", "rooms_left"))
        if fields["type"] == "offline":
            rooms, left = frozenset[str](), rooms
        self._events[source, entry.id] = UserEvent(entry.at, uid, rooms, left)
        self._users[uid] = RoomsOfUser((before | rooms) - left, entry.id)
        for room in rooms | left:
            self._last_events[source, self._keys.shard(room)] = entry.id
        if self._exact_after[source] is not None and self._are_members_told:
            changes = [("joined", room) for room in rooms - before]
            for kind, room in changes + [("left", room) for room in left & before]:
                self._due.setdefault((room, uid), deque()).append((kind, entry.id))

    def have_rebuilt(self) -> None:
        """Ask for a rebuild of all rooms, as soon as Redis answers."""
        if self._world.redis.outages:
            self._world.agenda.after(AGAIN_S, self.have_rebuilt)
            return
        self._may_correct, self._requests = True, self._requests + 1
        for shard in range(self._keys.shards):
            state = self._keys.rooms_state(shard).encode()
            self._world.redis.execute(b"HSET", state, b"rebuild", b"operator %d" % self._requests)

    def script_ran(self, ran: ScriptRun) -> None:
        """A script of rooms was run."""
        if ran.script == "rooms/read" and ran.arguments[2] == b"reset":
            answer: list[Any] = msgpack.unpackb(ran.reply, raw=True, strict_map_key=False)
            if answer[0] == b"reset":
                source = next(
                    shard
                    for shard in range(self._keys.shards)
                    if self._keys.rooms_state(shard).encode() == ran.keys[0]
                )
                self._world.note("{} begins to rebuild {}", ran.arguments[0].decode(), source)
                self._loosen(source)
                self._is_rebuilding = True
                if not self._may_correct:
                    self._judge.add_violation("corrected", "a rebuild of {}, and nothing was lost", source)
        if self._is_rebuilding and ran.script == "rooms/read" and not self._is_comparison_pending():
            self._is_rebuilding = False
            self._check_rebuilt()

    # What the streams of rooms say

    def entry_written(self, entry: ObservedEntry) -> None:
        """An entry of a stream of rooms was written."""
        fields = entry.fields
        kind, room, uid, count = fields["type"], fields["room"], fields["uid"], int(fields["count"])
        details = kind, uid, count, fields["reason"], fields["event_id"]
        self._world.note("{} {} {} {} {} {}", room, *details)
        if kind in {"occupied", "vacated"}:
            if (room in self._occupied) == (kind == "occupied") or count != (kind == "occupied"):
                self._judge.add_violation("occupancy", "{} {} by {}, {} members", room, kind, uid, count)
            if kind == "occupied":
                self._occupied[room] = entry.id
            else:
                self._occupied.pop(room, None)
        else:
            users = self._members.setdefault(room, set())
            users.symmetric_difference_update({uid})
            if (uid in users) != (kind == "joined") or count != len(users):
                text = "{} {} {}, {} members and not {}"
                self._judge.add_violation("counts", text, room, uid, kind, count, len(users))
        if fields["reason"] == CORRECTION:
            if not self._may_correct:
                self._judge.add_violation("corrected", "{} {} {}", room, uid, kind)
            self._loosen(int(fields["source"]))
        else:
            self._check_event(kind, room, uid, (int(fields["source"]), fields["event_id"]))

    def _check_event(self, kind: str, room: str, uid: str, name: EventName) -> None:
        event, told = self._events.get(name), (room, kind, name)
        is_coming = kind in {"occupied", "joined"}
        if event is None or event.uid != uid or room not in (event.joined if is_coming else event.left):
            self._judge.add_violation("projected", "{} {} {} by {} {}", room, uid, kind, name, event)
        if told in self._told:
            self._judge.add_violation("projected", "{} {} {} by {} again", room, uid, kind, name)
        self._told.add(told)
        if name in self._lost:  # a call from before the loss was carried out
            self._loosen(name[0])
        after = self._exact_after[name[0]]
        if (
            kind in {"occupied", "vacated"}
            or after is None
            or order(name[1].encode()) <= order(after.encode())
        ):
            return
        due = self._due.get((room, uid), deque())
        if not due or due[0] != (kind, name[1]):
            text = "{} {} {} by {}, due is {}"
            self._judge.add_violation("projected", text, room, uid, kind, name[1], [*due][:3])
            return
        due.popleft()
        if not due:
            del self._due[room, uid]

    # What Redis has

    def _hash(self, key: str) -> Hash:
        found = self._world.redis.data.get(key.encode(), Hash())
        assert isinstance(found, Hash)
        return found

    def _last_entry(self, source: int) -> str:
        stream = self._world.redis.data.get(self._keys.events(source).encode(), Stream())
        assert isinstance(stream, Stream)
        return "{}-{}".format(*stream.ids[-1]) if stream.ids else "0-0"

    def _is_comparison_pending(self) -> bool:
        for shard in range(self._keys.shards):
            state, sources = self._hash(self._keys.rooms_state(shard)), self._keys.room_sources(shard)
            if b"rebuild" in state or state.get(b"walked") != self._hash(sources).get(b"walk"):
                return True
        return False

    def _has(self, place: int, source: int, event_id: str) -> bool:
        """Whether the rooms of a shard have all events of a source up to one."""
        position = self._hash(self._keys.room_sources(place)).get(b"%d" % source, b"0-0")
        return order(position) >= order(event_id.encode())

    def is_behind(self) -> bool:
        """Whether rooms lack events, or a rebuild or a comparison that is wanted is under way."""
        if not self._world.plan.projectors:
            return False
        are_here = (self._has(place, source, last) for (source, place), last in self._last_events.items())
        return self._is_comparison_pending() or not all(are_here)

    def _check_rebuilt(self) -> None:
        """Judge by `rebuilt`."""
        stored = self._stored_members(with_letters=False)
        for room in sorted({*stored, *(room for user in self._users.values() for room in user.rooms)}):
            place, members = self._keys.shard(room), stored.get(room, {})
            for uid in sorted({*members, *(uid for uid, user in self._users.items() if room in user.rooms)}):
                user = self._users.get(uid, RoomsOfUser())
                is_wrong = (uid in members) != (room in user.rooms)
                if is_wrong and self._has(place, self._keys.shard(uid), user.event_id):
                    text = "{} is a member of {}: {}, by the events {}"
                    self._judge.add_violation("rebuilt", text, uid, room, uid in members, user)

    def _stored_rooms(self, shard: int) -> dict[str, Hash]:
        prefix = self._keys.room_prefix(shard).encode()
        return {
            key.removeprefix(prefix).decode(): value
            for key, value in self._world.redis.data.items()
            if key.startswith(prefix) and isinstance(value, Hash)
        }

    def _stored_members(self, *, with_letters: bool = True) -> Members:
        return {
            room: {
                uid.decode(): value[-1:].decode() if with_letters else ""
                for uid, value in found.items()
                if not uid.startswith(b" ")
            }
            for shard in range(self._keys.shards)
            for room, found in self._stored_rooms(shard).items()
        }

    def _wanted_members(self) -> Members:
        """Return the members as the events say, without letters."""
        members: Members = {}
        for uid, user in self._users.items():
            for room in user.rooms:
                members.setdefault(room, {})[uid] = ""
        return members

    def _recorded_members(self) -> Members:
        members: Members = {}
        for shard in range(self._keys.shards):
            for uid, text in self._hash(self._keys.online(shard)).items():
                state = online_state(text)
                assert state is not None
                letter = "i" if "invisible" in state else LETTERS[state["status"]]
                for room in state.get("rooms", ()):
                    members.setdefault(room, {})[uid.decode()] = letter
        return members

    # The end

    def compare(self) -> None:
        """Judge by `converged`."""
        if not self._world.plan.projectors:
            return
        stored, recorded = self._stored_members(), self._recorded_members()
        for room in sorted({*stored, *recorded}):
            if stored.get(room) != recorded.get(room):
                text = "{} has {}, by the records {}"
                self._judge.add_violation("converged", text, room, stored.get(room), recorded.get(room))
        if self.is_behind():
            self._judge.add_violation("converged", "rooms lack events, or are being compared")
        for shard in range(self._keys.shards):
            self._compare_shard(shard)
        if self._are_members_told:
            told = {room: uids for room, uids in self._members.items() if uids}
            if told != {room: {*uids} for room, uids in stored.items()}:
                self._judge.add_violation("converged", "the streams of rooms have {}, not {}", told, stored)
        for pair, due in sorted(self._due.items()):
            self._judge.add_violation("converged", "no entry says of {}: {}", pair, [*due])
        if not self._may_correct:
            for each in self._world.all_projectors:
                counters = each.projector.counters
                if counters.differences or counters.gaps or counters.rebuilds or counters.refused:
                    self._judge.add_violation("corrected", "{} counts {}", each.name, counters)

    def _compare_shard(self, shard: int) -> None:
        rooms = self._stored_rooms(shard)
        members = {room: sum(not uid.startswith(b" ") for uid in found) for room, found in rooms.items()}
        index = self._world.redis.data.get(self._keys.room_sizes(shard).encode(), Sorted())
        assert isinstance(index, Sorted)
        sizes = {room.decode(): score for room, score in index.scores.items()}
        if sizes != members:
            self._judge.add_violation("converged", "the index has {}, not {}", sizes, members)
        total = int(self._hash(self._keys.room_sources(shard)).get(b"members", b"0"))
        if total != sum(members.values()):
            self._judge.add_violation("converged", "{} counts {} members, not {}", shard, total, members)
        for room, found in rooms.items():
            invisible = sum(uid[:1] != b" " and value[-1:] == b"i" for uid, value in found.items())
            if int(found.get(INVISIBLE, b"0")) != invisible or not members[room]:
                self._judge.add_violation("converged", "{} has {}", room, found)
            if found.get(OCCUPIED, b"").decode() != self._occupied.get(room):
                text = "{} is occupied since {}, by its stream {}"
                self._judge.add_violation(
                    "converged", text, room, found.get(OCCUPIED), self._occupied.get(room)
                )
        if gone := {room for room in self._occupied if self._keys.shard(room) == shard} - rooms.keys():
            self._judge.add_violation("converged", "occupied by the stream, and without members: {}", gone)
