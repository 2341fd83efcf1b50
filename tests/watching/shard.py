"""A shard in memory: a stream, records, and at most one connection with queued messages."""

import json
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

import msgpack

from presence.common.errors import StoreUnavailable
from presence.watching.channel import (
    ChannelMessage,
    Pong,
    Replay,
    ServerChannel,
    ShardChanges,
    ShardJoined,
    ShardLost,
    Subscribed,
    Unsubscribed,
)
from presence.watching.user_states import (
    NO_ENTRY,
    EntryId,
    ShardSnapshot,
    UserEvent,
    WatchedDevice,
    WatchedState,
    id_text,
)

PAGE = 2


@dataclass
class Shard:
    """A server with one shard.

    Attributes:
        followed: the number of the shard whose changes the connection is subscribed to; None: of none.
        is_old: whether what is written now is published on the channels of users only.
    """

    entries: list[UserEvent] = field(default_factory=list)
    last_id: EntryId = NO_ENTRY
    shown: dict[str, WatchedState] = field(default_factory=dict)  # of users online
    left: dict[str, WatchedState] = field(default_factory=dict)  # of users offline
    subscribed: set[str] = field(default_factory=set)
    wire: deque[ChannelMessage] = field(default_factory=deque)
    written: dict[tuple[str, str], WatchedState] = field(default_factory=dict)  # every entry ever written
    number: int = 0
    followed: int | None = None
    is_old: bool = False

    def write(self, uid: str, status: str) -> None:
        self.number += 1
        order = (self.number, 0)
        state = WatchedState(
            status, self.number, self.number if status == "offline" else None, id_text(order)
        )
        self.written[uid, state.id] = state
        if status == "offline":
            self.shown.pop(uid, None)
            self.left[uid] = state
        else:
            self.shown[uid] = state
        self._publish(UserEvent(uid, order, state, "login"))

    def write_together(self, changes: Iterable[tuple[str, str]]) -> None:
        """Write changes by one call, so with one message about the whole shard."""
        before = len(self.wire)
        for uid, status in changes:
            self.write(uid, status)
        added = [self.wire.pop() for _ in range(len(self.wire) - before)][::-1]
        parts = [each for each in added if isinstance(each, ShardChanges)]
        self.wire.extend(each for each in added if not isinstance(each, ShardChanges))
        if parts:
            all_changes = [change for part in parts for change in part.changes]
            self.wire.append(parts[0]._replace(last=parts[-1].last, changes=all_changes))

    def write_device(self, uid: str) -> None:
        """A device comes: of a user who is shown as offline, an invisible one's."""
        self.number += 1
        order = (self.number, 0)
        if (shown := self.shown.get(uid)) is not None:
            devices = (
                *(shown.devices or ()),
                WatchedDevice(f"d{self.number}", "online", self.number, "", ""),
            )
            state = self.shown[uid] = shown._replace(id=id_text(order), devices=devices[-2:])
            self.written[uid, state.id] = state
        else:
            state = self.left.get(uid, WatchedState("offline"))
        self._publish(UserEvent(uid, order, state, "login", is_of_device=True))

    def _publish(self, entry: UserEvent) -> None:
        self.entries.append(entry)
        previous, self.last_id = self.last_id, entry.id
        if entry.uid in self.subscribed:
            self.wire.append(entry)
        if self.followed is not None and not self.is_old:
            self.wire.append(
                ShardChanges(self.followed, previous, entry.id, [(entry.uid, packed_change(entry))])
            )

    def snapshot(self, uids: Iterable[str]) -> ShardSnapshot:
        states = {uid: self.shown.get(uid) or self.left.get(uid) or WatchedState("offline") for uid in uids}
        return ShardSnapshot(states, self.last_id)

    def replay(self, after: EntryId, uids: Container[str]) -> Replay:
        first = self.entries[0].id if self.entries else None
        if self.last_id < after or (self.last_id > after and (first is None or first > after)):
            return Replay((), after, 0, is_end=False, is_broken=True)
        page = [entry for entry in self.entries if entry.id > after][:PAGE]
        is_end = len(page) < PAGE
        position = self.last_id if is_end else page[-1].id
        return Replay([entry for entry in page if entry.uid in uids], position, len(page), is_end=is_end)


def packed_change(entry: UserEvent) -> bytes:
    """Return an event as servers publish it with all changes of its shard."""
    state = entry.state
    fields: dict[str, object] = {}
    if entry.is_hidden:
        kind = "device"
        fields |= {"at_ms": entry.id[0], "invisible": "1", "public": ""}
        if state.id:
            fields["public"] = f"1 {state.id} {state.since_ms} {state.last_seen_ms}"
    elif state.status == "offline":
        kind = "offline"
        fields |= {"at_ms": state.since_ms, "last_seen_ms": state.last_seen_ms}
    else:
        kind = "device" if entry.is_of_device else state.status
        if state.devices is not None:
            devices = [each._asdict() | {"class": each.device_class} for each in state.devices]
            fields["devices"] = json.dumps(devices)
    flat = [part for field in fields.items() for part in field]
    change = [id_text(entry.id), kind, entry.reason, state.status, state.since_ms, *flat]
    packed: bytes = msgpack.packb(change)
    return packed


class MemoryChannel:
    """The channel to a server with such a shard, which can be unreachable, mute, or a replica.

    Attributes:
        is_up: whether it answers.
        is_mute: whether what it publishes is lost.
        is_connected: whether there is a connection.
        snapshots: number of snapshots that were read.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.is_up, self.is_mute, self.is_primary, self.is_connected = True, False, True, False
        self.snapshots = 0

    def open(self) -> None:
        self.close()
        if not self.is_up:
            raise StoreUnavailable("away")
        self.is_connected = True

    def receive(self) -> list[ChannelMessage]:
        """Return the queued messages; none if there are none, because the caller waits."""
        self._check()
        messages = list(self.shard.wire)
        self.shard.wire.clear()
        return [] if self.is_mute else messages

    def join(self, shard: int, *, whole: bool) -> None:
        if whole:
            self.shard.followed = shard
            self.shard.wire.append(ShardJoined(shard))

    def leave(self, shard: int) -> None:
        self.shard.followed = None

    def update_subscriptions(self, ask: Sequence[str], leave: Sequence[str]) -> None:
        self.shard.subscribed.difference_update(leave)
        self.shard.subscribed.update(ask)
        self.shard.wire.extend([*map(Unsubscribed, leave), *map(Subscribed, ask)])

    def ping(self, number: int) -> None:
        self.shard.wire.append(Pong(number))

    def snapshot(self, shard: int, uids: Sequence[str]) -> ShardSnapshot:
        self._check()
        self.snapshots += 1
        return self.shard.snapshot(list(uids))

    def replay(self, shard: int, after: EntryId, uids: Container[str]) -> Replay:
        self._check()
        return self.shard.replay(after, uids)

    def check(self, shards: Sequence[int]) -> dict[int, EntryId | ShardLost]:
        self._check()
        if not self.is_primary:
            raise StoreUnavailable("a replica")
        return dict.fromkeys(shards, self.shard.last_id)

    def close(self) -> None:
        self.is_connected, self.shard.followed = False, None
        self.shard.subscribed.clear()
        self.shard.wire.clear()

    def _check(self) -> None:
        if not (self.is_up and self.is_connected):
            raise StoreUnavailable("lost")


class MemoryServers:
    """A server of its own for each shard, or one for all.

    Args:
        channel: returns the channel of a server.
        is_one: whether there is only one, of number 0.

    Attributes:
        homeless: shards that no server has.
        locations: number of times that shards were looked for.
    """

    def __init__(self, channel: Callable[[int], ServerChannel], *, is_one: bool = False) -> None:
        self._channel = channel
        self._is_one = is_one
        self.homeless: set[int] = set()
        self.locations = 0

    def locate(self, shards: Sequence[int], *, anew: bool) -> dict[int, str]:
        self.locations += 1
        return {shard: "0" if self._is_one else str(shard) for shard in shards if shard not in self.homeless}

    def channel(self, server: str) -> ServerChannel:
        return self._channel(int(server))
