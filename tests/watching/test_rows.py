"""Rows: clients that take them are told exactly what the others are told.

The same random play happens to watchers who differ only in what they take: presence packets or rows, with
devices or without. The real push queue and answers serve them.
"""

import json
import random
from typing import Any

import pytest

from presence.client.pushes import user_state
from presence.common.faults import Faults
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import ClientFeatures
from presence.protocol import SERVER_FRAME_LIMIT_BYTES, UIDS_MAX, Code, Kind, Packet, from_row
from presence.watching import push_queue as module
from presence.watching.client_answers import last_packets, states_packet
from presence.watching.push_queue import MAX_JOINED_BYTES, PushQueue
from presence.watching.user_states import UserEvent, WatchedDevice, WatchedState
from presence.watching.user_table import UserTable
from presence.watching.watch_index import Watches
from tests.watching.fakes import Line, entry, session

UIDS = [f"user-{number}" for number in range(6)]
REASONS = ["login", "idle_timeout", "logout", "kicked", "banned", "background", "closed", "teleported", ""]
METAS = ["", '{"text":"at lunch"}', '{"raw":{"$bin":"00ff"}}', '{"a":{"b":{"c":[1,2.5,null]}}}', "{damaged"]
IDS = ["", "5-0", "1700000000001-7"]


def told(packet: Packet) -> list[Any]:
    """Return what a packet tells a client, in whichever form it comes."""
    payload = packet.payload
    if packet.kind == Kind.PRESENCE:
        return [(payload["uid"], user_state(payload), payload["reason"])]
    if packet.kind == Kind.CHANGES:
        rows = map(from_row, payload["changes"])
        return [(uid, user_state(state), state["reason"]) for uid, state in rows]
    states = payload["presence"] if "presence" in payload else dict(map(from_row, payload["states"]))
    return [(packet.id, {uid: user_state(state) for uid, state in states.items()})]


class Pair:
    """Two watchers who differ in this: the second takes rows."""

    def __init__(self, *, detail: bool, name: str) -> None:
        self.detail = detail
        self.sessions, self.lines = zip(
            *(session(f"{name}-{each}") for each in ("maps", "rows")), strict=True
        )
        self.sessions[1].features = ClientFeatures(batch=True)

    def told(self) -> list[Any]:
        """Return what both have been told since the last call, which is the same."""
        with_maps, with_rows = (line.packets() for line in self.lines)
        assert {packet.kind for packet in with_maps} <= {Kind.OK, Kind.PRESENCE}
        assert {packet.kind for packet in with_rows} <= {Kind.OK, Kind.CHANGES}
        assert len(with_rows) <= len(with_maps)
        found = [each for packet in with_maps for each in told(packet)]
        assert [each for packet in with_rows for each in told(packet)] == found
        return found


class Play:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.watches, self.quiet = Watches(UserTable()), QuietSessions()
        self.latest: dict[str, WatchedState] = {}
        self.pushes = PushQueue(self.watches, Faults(), self.latest.get, self.quiet)
        self.pairs = [Pair(detail=detail, name=f"watcher-{detail}") for detail in (False, True)]
        self.pushes.with_devices.update(self.pairs[1].sessions)
        self.number = 0

    def state(self) -> WatchedState:
        chance, number = self.random, self.number
        status = chance.choice(["online", "away", "busy", "dnd", "offline", "offline", "unknown", "new"])
        devices = tuple(
            WatchedDevice(f"d{each}", "online", number, chance.choice(["", "web"]), chance.choice(METAS))
            for each in range(chance.randrange(3) if status != "offline" else 0)
        )
        return WatchedState(
            status,
            chance.choice([None, number, number + 5, -1]),
            chance.choice([None, number - 3, number + 9]),
            chance.choice([f"{number}-{number % 3}", *IDS]),
            chance.choice(METAS),
            chance.choice(REASONS) if status == "offline" else "",
            chance.choice([None, devices]),
            hides_times=chance.random() < 0.1,
        )

    def step(self) -> None:
        chance = self.random
        self.number += 1
        uid = chance.choice(UIDS)
        match chance.choice(["change"] * 8 + ["send"] * 4 + ["answer", "end", "unwatch", "slow", "quiet"]):
            case "change":
                self.latest[uid] = state = self.state()
                reason = chance.choice(REASONS[:-1])
                is_of_device = chance.random() < 0.2
                self.pushes.push(UserEvent(uid, (self.number, 0), state, reason, is_of_device))
            case "send":
                self.send()
            case "answer":
                uids = chance.sample(UIDS, chance.randrange(len(UIDS)))
                states = {each: self.latest.get(each, WatchedState("offline")) for each in uids}
                for pair in self.pairs:
                    shown = {
                        each: state if pair.detail else state.without_devices()
                        for each, state in states.items()
                    }
                    for one in pair.sessions:
                        self.pushes.answered(one, uids)
                        self.watches.add(one, uids)
                        packet = states_packet(self.number, shown, ["unseen"], rows=one.features.batch)
                        self.line(one).send(0, packet)
            case "end":
                for one in self.sessions():
                    self.pushes.discard(one, [uid])
                    self.watches.remove(one, [uid])
                    self.line(one).send(0, last_packets([uid], Code.NOT_ALLOWED, rows=one.features.batch))
            case "unwatch":
                for one in self.sessions():
                    self.pushes.discard(one, [uid])
                    self.watches.remove(one, [uid])
            case "slow":
                is_slow = chance.random() < 0.5
                for one in self.sessions():
                    self.line(one).slow = is_slow
                    if not is_slow:
                        self.pushes.all_sent(one)
            case "quiet":
                is_quiet = chance.random() < 0.5
                for one in self.sessions():
                    self.quiet.set(one, is_quiet=is_quiet)
                    self.pushes.release(one)

    def send(self) -> None:
        self.pushes.send_released_slice()
        while self.pushes.statistics().queued:
            self.pushes.send_slice()

    def sessions(self) -> list[Any]:
        return [one for pair in self.pairs for one in pair.sessions]

    def line(self, one: Any) -> Line:
        assert isinstance(one.transport, Line)
        return one.transport


@pytest.mark.parametrize("bound", ["none", "few bytes queued", "few bytes deferred", "small writes"])
def test_watchers_with_rows_are_told_the_same_as_others(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match bound:
        case "few bytes queued":
            monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 2_000)
        case "few bytes deferred":  # the forms have different sizes: no packet has room
            monkeypatch.setattr(module, "MAX_DEFERRED_BYTES", 0)
        case "small writes":
            monkeypatch.setattr(module, "MAX_JOINED_BYTES", 100)
    told_in_all = 0
    for seed in range(15):
        play = Play(seed)
        for _ in range(150):
            play.step()
            told_in_all += sum(len(pair.told()) for pair in play.pairs)
    assert told_in_all > 600


# Packets of rows, and their bounds


def batching_watcher(uids: list[str]) -> tuple[PushQueue, Line, Any]:
    watches, quiet = Watches(UserTable()), QuietSessions()
    watcher, line = session()
    watcher.features = ClientFeatures(batch=True)
    watches.add(watcher, uids)
    return PushQueue(watches, Faults(), lambda _uid: None, quiet), line, watcher


def sizes_of_packets(line: Line) -> list[int]:
    data, sizes = bytes(line.taken), []
    while data:
        sizes.append(4 + int.from_bytes(data[:4]))
        data = data[sizes[-1] :]
    return sizes


def test_changes_of_a_slice_come_in_one_packet() -> None:
    pushes, line, _ = batching_watcher(UIDS)
    for number, uid in enumerate(UIDS, 1):
        pushes.push(entry(uid, number))
    pushes.send_slice()
    (packet,) = line.packets()
    assert [row[0] for row in packet.payload["changes"]] == UIDS


@pytest.mark.parametrize(("status", "reason"), [("online", "login"), ("offline", "idle_timeout")])
def test_an_ordinary_change_alone_takes_at_most_60_bytes(status: str, reason: str) -> None:
    pushes, line, _ = batching_watcher(["user-000001"])
    change = entry("user-000001", 1_700_000_000_001, status)
    pushes.push(change._replace(reason=reason, state=change.state._replace(since_ms=1_700_000_000_000)))
    pushes.send_slice()
    assert len(line.taken) <= 60


def test_packets_of_many_held_changes_are_bounded_by_their_bytes_and_rows() -> None:
    uids = [f"{number:04}" for number in range(3_000)]
    pushes, line, watcher = batching_watcher(uids)
    line.slow = True
    for number, uid in enumerate(uids, 1):
        meta = json.dumps({"m": "x" * 200}) if number > 1_500 else ""
        pushes.push(entry(uid, number)._replace(state=WatchedState("online", meta=meta)))
    while pushes.statistics().queued:
        pushes.send_slice()
    line.slow = False
    pushes.all_sent(watcher)
    sizes = sizes_of_packets(line)
    packets = line.packets()
    assert max(sizes) <= MAX_JOINED_BYTES
    assert max(len(packet.payload["changes"]) for packet in packets) == UIDS_MAX
    assert [row[0] for packet in packets for row in packet.payload["changes"]] == uids


def test_a_change_with_very_many_devices_has_a_packet_of_its_own_among_others() -> None:
    meta = json.dumps({"m": "x" * 240})
    uids = ["ann", "big", "bob"]
    pushes, line, watcher = batching_watcher(uids)
    pushes.with_devices.add(watcher)
    line.slow = True
    for number, uid in enumerate(uids, 1):
        count = 850 if uid == "big" else 1
        devices = tuple(WatchedDevice(f"d{each}", "online", number, "", meta) for each in range(count))
        change = entry(uid, number)
        pushes.push(change._replace(state=change.state._replace(devices=devices)))
    pushes.send_slice()
    line.slow = False
    pushes.all_sent(watcher)
    assert max(sizes_of_packets(line)) <= SERVER_FRAME_LIMIT_BYTES
    assert [[row[0] for row in packet.payload["changes"]] for packet in line.packets()] == [
        ["ann"],
        ["big"],
        ["bob"],
    ]


def test_users_whom_a_client_no_longer_watches_come_in_few_packets() -> None:
    uids = [f"{number:04}".rjust(128, "u") for number in range(1_000)]
    _, line, _ = batching_watcher([])
    line.send(0, last_packets(uids, Code.NOT_ALLOWED, rows=True))
    assert max(sizes_of_packets(line)) <= MAX_JOINED_BYTES
    rows = [row for packet in line.packets() for row in packet.payload["changes"]]
    assert rows == [[uid, "not_allowed", 318] for uid in uids]


# Answers


def test_a_user_who_was_never_seen_costs_an_answer_only_the_uid() -> None:
    few, many = ({uid: WatchedState("offline") for uid in UIDS[:count]} for count in (1, 6))
    packed = [len(states_packet(1, states, rows=True)) for states in (few, many)]
    assert packed[1] - packed[0] == 5 * (1 + len(UIDS[0]))


def test_an_answer_of_rows_has_room_for_the_largest_request() -> None:
    meta = json.dumps({"a": "x" * 240})
    uids = [f"{number:03}".rjust(128, "u") for number in range(UIDS_MAX)]
    state = WatchedState("not_allowed", 2**62, 1, f"{2**62}-{2**62}", meta, "x" * 64)
    line = Line()
    line.send(0, states_packet(7, dict.fromkeys(uids, state), rows=True))
    (packet,) = line.packets()
    assert all(row[7] == json.loads(meta) for row in packet.payload["states"])


def test_the_damaged_state_of_a_user_spoils_no_other_row() -> None:
    damaged = [WatchedState("online", -1), WatchedState("\ud800"), WatchedState("x" * 300_000)]
    line = Line()
    line.send(
        0, states_packet(7, dict(zip(UIDS, [*damaged, entry("bob", 5).state], strict=False)), rows=True)
    )
    (packet,) = line.packets()
    assert [row[1] for row in packet.payload["states"]] == ["unknown", "unknown", "unknown", "online"]
