"""Pushes of changes to the clients that watch a user: in order, at most as fast as each client reads.

Changes wait in one queue and are sent in slices, with a turn for other tasks in between, so a user with
10,000 watchers stalls nothing. At its turn a change is encoded once for all watchers that take the same form:
a packet of its own, or one of a row, with or without devices. What a slice has for one connection goes out in
one write; of rows that is one packet. A connection that has not taken earlier packets gets nothing more until
it has; meanwhile only the newest change of each user is deferred, so a slow client costs at most an entry per
watched user (some 100 bytes; the packets are shared).

Queued states and deferred packets are bounded by their bytes. Beyond that a change has its place only: it is
encoded from the state of the user at its turn. So it costs some 200 bytes and its user's name, and there is
one for each watched user at most, because a new change replaces a queued one without a state. The same
applies beyond `MAX_QUEUED_CHANGES` changes.

Changes for a quiet session (`presence.core.quiet_sessions`) are deferred in the same way, until its client
sends a packet: they are *held*. They also go out when it takes bytes that were unsent, because it is awake.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from sys import getsizeof
from typing import Final, NamedTuple, TypeAlias

import trio

from presence import protocol
from presence.common.faults import Faults
from presence.core.quiet_sessions import QuietSessions
from presence.core.registry import Session
from presence.protocol import UID_MAX_BYTES, UIDS_MAX, Code
from presence.protocol.constants import SERVER_FRAME_LIMIT_BYTES
from presence.protocol.prepacked import STATE_MAX_BYTES, change_packet, is_plain, join_changes, pack_row
from presence.watching.client_answers import pack_most
from presence.watching.user_states import REASON_CHARS, UserEvent, WatchedState, reason_for, reason_shown
from presence.watching.watch_index import Watches

MAX_PACKETS_PER_SLICE: Final = 256  # packets sent without a turn for other tasks: a millisecond or two
MAX_QUEUED_CHANGES: Final = 20_000  # with states: some 10 MB with ordinary names
MAX_QUEUED_BYTES: Final = 24 * 1024**2  # of changes with states: those with many devices have 100 KB each
MAX_DEFERRED_BYTES: Final = 32 * 1024**2  # of packets; one that several connections wait for counts for each
CHANGE_BYTES: Final = 400  # memory of a change beside its state and the user's name: 330 were measured
MAX_JOINED_BYTES: Final = 16_384  # of changes offered in one write, unless one alone has more
MAX_FRAME_BYTES: Final = STATE_MAX_BYTES + UID_MAX_BYTES + REASON_CHARS + 64
# Forms of a packet are sums of these.
_ROWS: Final = 1
_DEVICES: Final = 2
_FORMS: Final = 4  # how many there are


@dataclass(slots=True)
class PushStatistics:
    """Counters since the start, and gauges."""

    queued: int = 0  # changes in the queue
    changes: int = 0  # of watched users
    sent: int = 0  # changes that connections took
    put_off: int = 0  # changes deferred, because the connection had not taken earlier ones
    held: int = 0  # changes deferred, because the session is quiet
    replaced: int = 0  # changes replaced by a newer one of the same user
    late: int = 0  # changes to be encoded at their turn, for lack of room
    damaged: int = 0  # changes that cannot be encoded as they are
    slow: int = 0  # connections with deferred changes that are not held
    holding: int = 0  # quiet sessions for which changes are held
    released: int = 0  # sessions whose changes were held, and go out next
    queued_bytes: int = 0  # memory of the changes with states in the queue
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
    state: WatchedState | None = None  # None: it is late, and will have that of its turn
    size_bytes: int = 0  # memory, if it is not late


class _Turn(NamedTuple):
    """A change whose turn it is."""

    change: _Change
    sessions: list[Session]  # the watchers still to send to, last first
    packets: list[bytes | None]  # by form; None: not encoded yet


def _packed(uid: str, state: WatchedState, reason: str, *, rows: bool) -> bytes:
    """Return a change as a packet of its own, or, with `rows`, as a packet of one row."""
    if rows:
        packet = change_packet(pack_row(state.row(uid, reason_shown(reason))))
    else:
        shown = state.shown()
        encode = protocol.encode_unchecked if is_plain(shown) else protocol.encode
        packet = encode(protocol.presence(uid, shown, reason_shown(reason)))
    if len(packet) > (MAX_FRAME_BYTES if state.devices is None else SERVER_FRAME_LIMIT_BYTES):
        raise protocol.EncodeError(f"a change takes {len(packet)} bytes")
    return packet


class PushQueue:
    """Sends changes to watchers; a connection that cannot be written to is closed.

    Args:
        watches: who watches whom.
        faults: contains errors.
        latest: returns the last known state of a watched user; None if there is none.
        quiet: the sessions that are quiet; this class keeps its `holding`, with others that add to it.

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
        self._turn: _Turn | None = None
        self._number = 0  # of the latest change
        # Of users with queued changes, the sessions that were sent a state later than one of these, and the
        # number of the latest change then: it and those before it are no news for them.
        self._sent_later: dict[str, dict[Session, int]] = {}
        self._deferred: dict[Session, dict[str, bytes]] = {}
        self._released: dict[Session, None] = {}  # sessions whose deferred changes go out next, in order
        self._filled = trio.Event()
        self._queued_bytes = 0  # memory of the queued changes with states
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
        if queued is not None and (is_full or queued.state is None):
            self._replace(queued, change)
            return
        queued = _Change(uid, self._number, change.reason, change.is_of_device)
        if is_full:
            self._statistics.late += 1
        else:
            queued.state = change.state
            queued.size_bytes = CHANGE_BYTES + getsizeof(uid) + change.state.memory_bytes()
            self._queued_bytes += queued.size_bytes
        self._last[uid] = queued
        self._queue.append(queued)
        self._filled.set()

    def _replace(self, queued: _Change, change: UserEvent) -> None:
        """Let a queued change stand for a newer one too: it is late from now on."""
        self._statistics.replaced += 1
        self._statistics.late += queued.state is not None
        self._queued_bytes -= queued.size_bytes
        queued.state, queued.size_bytes, queued.number = None, 0, self._number
        if queued.is_of_device or not change.is_of_device:
            queued.reason, queued.is_of_device = change.reason, change.is_of_device

    def _packet(self, change: _Change, form: int) -> bytes:
        """Return the packet of a change in one form; b"" if there is none."""
        state = change.state
        if state is not None and not form & _DEVICES:
            state = state.without_devices()
        if state is None or (change.is_of_device and state.devices is None):
            return b""
        return self._encoded(change.uid, state, change.reason, rows=bool(form & _ROWS))

    def _encoded(self, uid: str, state: WatchedState, reason: str, *, rows: bool) -> bytes:
        try:
            return _packed(uid, state, reason, rows=rows)
        except protocol.EncodeError:
            self._statistics.damaged += 1
            return pack_most(state, lambda each: _packed(uid, each, reason, rows=rows))

    async def run(self) -> None:
        """Send changes until cancelled."""
        while True:
            if not self._queue and self._turn is None and not self._released:
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
        with_devices = self.with_devices
        left = MAX_PACKETS_PER_SLICE
        listed_before = self._turn
        while left > 0 and (turn := self._next()) is not None:
            change, sessions, packets = turn
            due = sessions[-left:]
            del sessions[-left:]
            left -= max(1, len(due))
            sent_later = self._sent_later.get(change.uid)
            for session in due:
                # The session may have ended, or its watch been answered anew, since it was listed.
                if turn is listed_before and not self._watches.has(session, change.uid):
                    continue
                if sent_later is None or sent_later.get(session, 0) < change.number:
                    form = _ROWS * session.features.batch + _DEVICES * (session in with_devices)
                    packet = packets[form]
                    if packet is None:
                        packet = packets[form] = self._packet(change, form)
                    if packet:
                        gathered.setdefault(session, []).append((change.uid, packet))
        for session, frames in gathered.items():
            # A lost change would leave a wrong view, so the client is disconnected, and asks anew.
            with self._faults.contained("push", partial(self._faults.disconnect, session)):
                self._send_to(session, frames)

    def _next(self) -> _Turn | None:
        if self._turn is None or not self._turn.sessions:
            if self._turn is not None and self._turn.change.uid not in self._last:
                self._sent_later.pop(self._turn.change.uid, None)
            self._turn = None
            if self._queue:
                change = self._queue.popleft()
                if self._last[change.uid] is change:
                    del self._last[change.uid]
                self._queued_bytes -= change.size_bytes
                if change.state is None:
                    change.state = self._latest(change.uid)
                self._turn = _Turn(change, self._watches.watchers(change.uid), [None] * _FORMS)
        return self._turn

    def _send_to(self, session: Session, frames: _Frames) -> None:
        deferred = self._deferred.get(session)
        is_held = session in self._quiet.sessions
        taken = 0 if deferred is not None or is_held else self._offer_frames(session, frames)
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

    def offer(self, session: Session, changes: Iterable[tuple[str, WatchedState, Code]]) -> int:
        """Offer a session changes that concern no other; return how many it took: they are not deferred."""
        frames: _Frames = []
        for uid, state, code in changes:
            shown = state if session in self.with_devices else state.without_devices()
            frames.append((uid, self._encoded(uid, shown, code.reason, rows=session.features.batch)))
        return self._offer_frames(session, frames)

    def all_sent(self, session: Session) -> None:
        """Send deferred changes to a connection that has taken everything sent before."""
        self._quiet.holding.discard(session)
        deferred = self._deferred.pop(session, None)
        if deferred is None:
            return
        frames = list(deferred.items())
        taken = self._offer_frames(session, frames)
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

    def _offer_frames(self, session: Session, frames: _Frames) -> int:
        """Offer packets to a connection, several per write; return how many it took."""
        if len(frames) == 1 and frames[0][1] and session.transport is not None:
            taken = int(session.transport.try_send(session.handle, frames[0][1]))
            self._statistics.sent += taken
            return taken
        taken = 0
        join = join_changes if session.features.batch else b"".join
        while taken < len(frames) and session.transport is not None:
            joined: list[bytes] = []
            end, size = taken, 0
            while end < len(frames) and len(joined) < UIDS_MAX:
                uid, frame = frames[end]
                packet = frame or self._late_packet(session, uid)
                size += len(packet)
                if joined and size > MAX_JOINED_BYTES:
                    break
                if packet:
                    joined.append(packet)
                end += 1
            if joined and not session.transport.try_send(session.handle, join(joined)):
                break
            taken = end
        self._statistics.sent += taken
        return taken

    def _late_packet(self, session: Session, uid: str) -> bytes:
        """Return the packet of a deferred change that has none; b"" if the user is no longer known."""
        state = self._latest(uid)
        if state is None:
            return b""
        self._note_sent(session, uid)  # or a change that is still queued would follow it
        if session not in self.with_devices:
            state = state.without_devices()
        reason = state.reason or reason_for(state)
        return self._encoded(uid, state, reason, rows=session.features.batch)

    def answered(self, session: Session, uids: Collection[str]) -> None:
        """Note that a session is sent the states of users now: changes until now are no news for it."""
        self.discard(session, uids)
        for uid in uids:
            self._note_sent(session, uid)

    def _note_sent(self, session: Session, uid: str) -> None:
        if uid in self._last or (self._turn is not None and self._turn.change.uid == uid):
            self._sent_later.setdefault(uid, {})[session] = self._number

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
        self._statistics.queued = len(self._queue) + (self._turn is not None)
        self._statistics.slow = len(self._deferred.keys() - self._quiet.holding)
        self._statistics.holding = len(self._quiet.holding)
        self._statistics.released = len(self._released)
        self._statistics.queued_bytes = self._queued_bytes
        self._statistics.deferred_bytes = self._deferred_bytes
        return self._statistics
