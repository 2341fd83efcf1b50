"""Pushes of changes to the clients that watch a user: in order, at most as fast as each client reads.

A change is encoded once for all watchers. Changes wait in one queue and are sent in slices, with a turn for
other tasks in between, so a user with 10,000 watchers stalls nothing; what a slice has for one connection
goes out in one write. A connection that has not taken earlier packets gets nothing more until it has;
meanwhile only the newest change of each user is deferred, so a slow client costs at most an entry per watched
user (some 100 bytes; the packets are shared).

Packets are bounded by their bytes, those in the queue and those that are deferred. Beyond that a change has
its place and no packet: it is encoded at its turn, from the state of the user at that time. So it costs some
200 bytes and its user's name, and there is one for each watched user at most, because a new change replaces
a queued one without a packet. The same applies beyond `MAX_QUEUED_CHANGES` changes.

Changes for a quiet session (`presence.core.quiet_sessions`) are deferred in the same way, until its client
sends a packet: they are *held*. They also go out when it takes bytes that were unsent, because it is awake.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from sys import getsizeof
from typing import Final, TypeAlias

import trio

from presence import protocol
from presence.common.faults import Faults
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.protocol import UID_MAX_BYTES
from presence.protocol.constants import SERVER_FRAME_LIMIT_BYTES
from presence.protocol.prepacked import STATE_MAX_BYTES
from presence.watching.client_answers import encodable
from presence.watching.user_states import REASON_CHARS, UserEvent, WatchedState, reason_for, reason_shown
from presence.watching.watch_index import Watches

MAX_PACKETS_PER_SLICE: Final = 256  # packets sent without a turn for other tasks: a millisecond or two
MAX_QUEUED_CHANGES: Final = 20_000  # with packets: some 10 MB with ordinary names
MAX_QUEUED_BYTES: Final = 24 * 1024**2  # of changes with packets: those with devices have up to 256 KiB each
MAX_DEFERRED_BYTES: Final = 32 * 1024**2  # of packets; one that several connections wait for counts for each
CHANGE_BYTES: Final = 400  # memory of a change beside its texts and packets: 330 were measured
MAX_JOINED_BYTES: Final = 16_384  # of deferred changes, offered in one write
MAX_FRAME_BYTES: Final = STATE_MAX_BYTES + UID_MAX_BYTES + REASON_CHARS + 64


@dataclass(slots=True)
class PushStatistics:
    """Counters since the start, and gauges."""

    queued: int = 0  # changes in the queue
    changes: int = 0  # of watched users
    sent: int = 0  # packets that connections took
    put_off: int = 0  # packets deferred, because the connection had not taken earlier ones
    held: int = 0  # packets deferred, because the session is quiet
    replaced: int = 0  # changes replaced by a newer one of the same user
    late: int = 0  # changes to be encoded at their turn, for lack of room
    damaged: int = 0  # changes that cannot be encoded as they are
    slow: int = 0  # connections with deferred changes that are not held
    holding: int = 0  # quiet sessions for which changes are held
    released: int = 0  # sessions whose changes were held, and go out next
    queued_bytes: int = 0  # memory of the changes with packets in the queue
    deferred_bytes: int = 0  # of packets


_Frames: TypeAlias = list[tuple[str, bytes]]
"""Packets of one connection, in order, each with its user; b"": to be encoded when it is sent."""


@dataclass(slots=True)
class _Change:
    """A queued change."""

    uid: str
    number: int  # of changes, it is the so many-th
    reason: str
    is_of_device: bool  # only devices have changed
    size_bytes: int = 0  # memory, if it has packets; 0: it is late, to be encoded at its turn
    frame: bytes = b""  # b"": only devices have changed
    detailed: bytes = b""  # with the devices; b"": they are not known, or no watcher has asked for them


def _packed(uid: str, state: WatchedState, reason: str) -> bytes:
    frame = protocol.encode(protocol.presence(uid, state.shown(), reason_shown(reason)))
    if len(frame) > (MAX_FRAME_BYTES if state.devices is None else SERVER_FRAME_LIMIT_BYTES):
        raise protocol.EncodeError(f"a change takes {len(frame)} bytes")
    return frame


class PushQueue:
    """Sends changes to watchers; a connection that cannot be written to is closed.

    Args:
        watches: who watches whom.
        faults: contains errors.
        latest: returns the last known state of a watched user; None if there is none.
        quiet: the sessions that are quiet; this class keeps its `holding`.

    Attributes:
        with_devices: the sessions whose packets have the devices of a user.
    """

    def __init__(
        self,
        watches: Watches,
        faults: Faults,
        latest: Callable[[str], WatchedState | None],
        quiet: QuietSessions,
    ) -> None:
        self._watches = watches
        self._faults = faults
        self._latest = latest
        self._quiet = quiet
        self._queue: deque[_Change] = deque()
        self._last: dict[str, _Change] = {}  # the queued change of each user
        # With the watchers still to send to, last first.
        self._current: tuple[_Change, list[Session]] | None = None
        self._number = 0  # of the latest change
        # Of users with queued changes, the sessions that were told a state later than one of these, and the
        # number of the latest change then: it and those before it are no news for them.
        self._told: dict[str, dict[Session, int]] = {}
        self._deferred: dict[Session, dict[str, bytes]] = {}
        self._released: dict[Session, None] = {}  # sessions whose deferred changes go out next, in order
        self._filled = trio.Event()
        self._queued_bytes = 0  # memory of the queued changes with packets
        self._deferred_bytes = 0  # of packets
        self._statistics = PushStatistics()
        self.with_devices: set[Session] = set()

    def push(self, change: UserEvent) -> None:
        """Queue a change for all clients that watch the user now."""
        uid = change.uid
        if not self._watches.is_watched(uid):
            return
        if change.is_of_device and not self.with_devices:
            return
        self._statistics.changes += 1
        self._number += 1
        queued = self._last.get(uid)
        is_full = len(self._queue) >= MAX_QUEUED_CHANGES or self._queued_bytes >= MAX_QUEUED_BYTES
        if queued is not None and (is_full or not queued.size_bytes):
            self._replace(queued, change)
            return
        queued = _Change(uid, self._number, change.reason, change.is_of_device)
        if is_full:
            self._statistics.late += 1
        else:
            self._encode(queued, change.state)
            shared = queued.frame is queued.detailed
            packets = len(queued.frame) + (0 if shared else len(queued.detailed))
            queued.size_bytes = CHANGE_BYTES + getsizeof(uid) + packets
            self._queued_bytes += queued.size_bytes
        self._last[uid] = queued
        self._queue.append(queued)
        self._filled.set()

    def _replace(self, queued: _Change, change: UserEvent) -> None:
        """Let a queued change stand for a newer one too: it is late from now on."""
        self._statistics.replaced += 1
        self._statistics.late += queued.size_bytes > 0
        self._queued_bytes -= queued.size_bytes
        queued.frame, queued.detailed, queued.size_bytes, queued.number = b"", b"", 0, self._number
        if queued.is_of_device or not change.is_of_device:
            queued.reason, queued.is_of_device = change.reason, change.is_of_device

    def _encode(self, change: _Change, state: WatchedState) -> None:
        if not change.is_of_device:
            plain = state if state.devices is None else state._replace(devices=None)
            change.frame = self._frame(change.uid, plain, change.reason)
        if state.devices is None:
            change.detailed = change.frame
        elif self.with_devices:
            change.detailed = self._frame(change.uid, state, change.reason)

    def _frame(self, uid: str, state: WatchedState, reason: str) -> bytes:
        try:
            return _packed(uid, state, reason)
        except protocol.EncodeError:
            self._statistics.damaged += 1
            return _packed(uid, encodable(state), reason)

    async def run(self) -> None:
        """Send changes until cancelled."""
        while True:
            if not self._queue and self._current is None and not self._released:
                self._filled = trio.Event()
                await self._filled.wait()
            if self._released:
                self.send_released_slice()
                await trio.lowlevel.checkpoint()
            with self._faults.contained("push"):
                self.send_slice()
            await trio.lowlevel.checkpoint()

    def send_slice(self) -> None:
        gathered: dict[Session, _Frames] = {}
        left = MAX_PACKETS_PER_SLICE
        listed_before = self._current
        while left > 0 and (current := self._next()) is not None:
            change, sessions = current
            turn = sessions[-left:]
            del sessions[-left:]
            left -= max(1, len(turn))
            told = self._told.get(change.uid)
            for session in turn:
                # The session may have ended, or its watch been answered anew, since it was listed.
                if current is listed_before and not self._watches.has(session, change.uid):
                    continue
                if told is None or told.get(session, 0) < change.number:
                    frame = change.detailed if session in self.with_devices else b""
                    frame = frame or change.frame
                    if frame:
                        gathered.setdefault(session, []).append((change.uid, frame))
        for session, frames in gathered.items():
            # A lost change would leave a wrong view, so the client is disconnected, and asks anew.
            with self._faults.contained("push", partial(self._faults.disconnect, session)):
                self._send_to(session, frames)

    def _next(self) -> tuple[_Change, list[Session]] | None:
        if self._current is None or not self._current[1]:
            if self._current is not None and self._current[0].uid not in self._last:
                self._told.pop(self._current[0].uid, None)
            self._current = None
            if self._queue:
                change = self._queue.popleft()
                if self._last[change.uid] is change:
                    del self._last[change.uid]
                self._queued_bytes -= change.size_bytes
                state = None if change.size_bytes else self._latest(change.uid)
                if state is not None:
                    self._encode(change, state)
                self._current = change, self._watches.watchers(change.uid)
        return self._current

    def _send_to(self, session: Session, frames: _Frames) -> None:
        deferred = self._deferred.get(session)
        is_held = session in self._quiet.sessions
        taken = 0 if deferred is not None or is_held else self._offer(session, frames)
        if taken == len(frames) or session.transport is None:
            return
        if deferred is None:
            deferred = self._deferred[session] = {}
        if is_held:
            self._quiet.holding.add(session)
            self._statistics.held += len(frames)
        else:
            self._statistics.put_off += len(frames) - taken
        for uid, frame in frames[taken:]:
            self._statistics.replaced += uid in deferred
            self._defer(deferred, uid, frame)

    def _defer(self, deferred: dict[str, bytes], uid: str, frame: bytes) -> None:
        room = MAX_DEFERRED_BYTES - self._deferred_bytes + len(deferred.get(uid, b""))
        if len(frame) > room:
            self._statistics.late += 1
            frame = b""
        self._deferred_bytes += len(frame) - len(deferred.get(uid, b""))
        deferred[uid] = frame

    def all_sent(self, session: Session) -> None:
        """Send deferred changes to a connection that has taken everything sent before."""
        self._quiet.holding.discard(session)
        deferred = self._deferred.pop(session, None)
        if deferred is None:
            return
        frames = list(deferred.items())
        taken = self._offer(session, frames)
        is_left = taken < len(frames) and session.transport is not None
        gone = frames[:taken] if is_left else frames
        self._deferred_bytes -= sum(len(frame) for _, frame in gone)
        if is_left:
            self._deferred[session] = dict(frames[taken:])

    def release(self, session: Session) -> None:
        """Send soon what is held for a session."""
        self._quiet.holding.discard(session)
        self._released[session] = None
        self._filled.set()

    def send_released_slice(self) -> None:
        """Send what was held for some sessions; of each all, at most a change of each watched user."""
        left = MAX_PACKETS_PER_SLICE
        while left > 0 and self._released:
            session = next(iter(self._released))
            del self._released[session]
            left -= max(1, len(self._deferred.get(session, ())))
            with self._faults.contained("push", partial(self._faults.disconnect, session)):
                self.all_sent(session)

    def _offer(self, session: Session, frames: _Frames) -> int:
        """Offer packets to a connection, several per write; return how many it took."""
        taken = 0
        while taken < len(frames) and session.transport is not None:
            joined: list[bytes] = []
            end, size = taken, 0
            while end < len(frames) and size < MAX_JOINED_BYTES:
                uid, frame = frames[end]
                joined.append(frame or self._late_frame(session, uid))
                size += len(joined[-1])
                end += 1
            if not session.transport.try_send(session.handle, b"".join(joined)):
                break
            taken = end
        self._statistics.sent += taken
        return taken

    def _late_frame(self, session: Session, uid: str) -> bytes:
        """Return the packet of a deferred change that has none; b"" if the user is no longer known."""
        state = self._latest(uid)
        if state is None:
            return b""
        self._note_told(session, uid)  # or a change that is still queued would follow it
        if session not in self.with_devices:
            state = state._replace(devices=None)
        return self._frame(uid, state, state.reason or reason_for(state))

    def answered(self, session: Session, uids: Collection[str]) -> None:
        """Note that a session is told the states of users now: changes until now are no news for it."""
        self.discard(session, uids)
        for uid in uids:
            self._note_told(session, uid)

    def _note_told(self, session: Session, uid: str) -> None:
        if uid in self._last or (self._current is not None and self._current[0].uid == uid):
            self._told.setdefault(uid, {})[session] = self._number

    def discard(self, session: Session, uids: Iterable[str] | None = None) -> None:
        """Discard deferred changes of these users; None for all users."""
        deferred = self._deferred.get(session)
        if deferred is None:
            return
        for uid in list(deferred) if uids is None else uids:
            self._deferred_bytes -= len(deferred.pop(uid, b""))
        if not deferred:
            del self._deferred[session]
            self._quiet.holding.discard(session)

    def statistics(self) -> PushStatistics:
        self._statistics.queued = len(self._queue) + (self._current is not None)
        self._statistics.slow = len(self._deferred) - len(self._quiet.holding)
        self._statistics.holding = len(self._quiet.holding)
        self._statistics.released = len(self._released)
        self._statistics.queued_bytes = self._queued_bytes
        self._statistics.deferred_bytes = self._deferred_bytes
        return self._statistics
