"""``python -m benchmarks.background``: what an hour in the background costs phones that watch other users.

Phones send keepalives with an id, as the client libraries do, each at moments of its own; the users that they
watch change at random. The core and the push queue are real, in virtual time, without sockets and without
Redis. Compared are the default idle time-out, a keepalive every nine minutes, and the same while quiet. A
wake-up is a packet in either direction after `RADIO_TAIL_S` without one. In the end no phone is quiet, and
the views of some are compared with what the users are.
"""

import argparse
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from loadtest.arguments import above_0, from_1
from loadtest.outcome import markdown
from presence import protocol
from presence.common.clock import Clock
from presence.common.faults import Faults
from presence.core.admission import Admission, AdmissionLimits
from presence.core.changes import Change
from presence.core.engine import KEEPALIVE_SHARE, Engine
from presence.core.flap_damping import FlapDamping
from presence.core.login_policy import LoginPolicy
from presence.core.registry import Registry, Session
from presence.core.server_protocol import ServerProtocol
from presence.core.service_requests import Request
from presence.core.sessions import Sessions
from presence.core.slots import SlotClock
from presence.core.stall_guard import StallGuard
from presence.watching.push_queue import PushQueue
from presence.watching.user_states import UserEvent, WatchedState, id_text
from presence.watching.user_table import UserTable
from presence.watching.watch_index import Watches

RADIO_TAIL_S: Final = 10.0  # for about so long a phone's radio stays awake after a packet
STEP_S: Final = 0.1  # of virtual time: the server reads keepalives in batches
TICK_S: Final = 1.0
CHECKED_PHONES: Final = 100  # whose packets are decoded
BEGUN_MS: Final = 1_700_000_000_000
STATUSES: Final = ("online", "offline")


@dataclass(frozen=True)
class Habit:
    """How phones behave in the background."""

    name: str
    idle_timeout: float  # seconds
    quiet: bool = False


HABITS: Final = (
    Habit("idle time-out 30 s", 30.0),
    Habit("1,350 s", 1350.0),
    Habit("1,350 s, quiet", 1350.0, quiet=True),
)


@dataclass(frozen=True)
class BackgroundPlan:
    """What is played."""

    phones: int = 10_000
    watched: int = 50  # users by each
    changes_per_hour: float = 2.0  # of each user
    hours: float = 1.0
    seed: int = 1


class _PhoneLines:
    """The `Transport` of all phones: counts what each is sent, and when it wakes."""

    def __init__(self, phones: int) -> None:
        self.now = 0.0
        self.writes = self.wake_ups = 0
        self.received = [b""] * min(phones, CHECKED_PHONES)  # since `views`
        self._last_at = [-RADIO_TAIL_S] * phones

    def touch(self, handle: int) -> None:
        """Note a packet of a phone, in either direction."""
        self.wake_ups += self.now - self._last_at[handle] >= RADIO_TAIL_S
        self._last_at[handle] = self.now

    def send(self, handle: int, data: bytes | bytearray) -> None:
        self.writes += 1
        self.touch(handle)
        if handle < len(self.received):
            self.received[handle] += data

    def try_send(self, handle: int, data: bytes) -> bool:
        self.send(handle, data)
        return True

    def views(self) -> list[dict[str, tuple[str, str]]]:
        """Return status and id of each user as the checked phones were last told."""
        found = []
        for data in self.received:
            decoder, view = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES), {}
            decoder.feed(data)
            while (packet := decoder.next()) is not None:
                if "uid" in packet.payload:
                    view[packet.payload["uid"]] = packet.payload["status"], packet.payload["id"]
            found.append(view)
        return found

    def acknowledged_bytes(self, handle: int) -> tuple[int, int] | None:
        return None

    def disconnect(self, handle: int, _goodbye: bytes) -> None:
        raise AssertionError(f"phone {handle} was disconnected")

    def poll_now(self, _handle: int) -> bool:
        return True

    def receive_queue_age_s(self, _handle: int, _now: float) -> float:
        return 0.0

    def certificate(self, _handle: int) -> None:
        return None


class _BackgroundServer:
    """The core and the push queue of one worker."""

    def __init__(self, phones: _PhoneLines, idle_timeout: float) -> None:
        clock, slots = Clock(lambda: phones.now, lambda: 0.0), SlotClock(TICK_S / 2, 0.0)
        registry = Registry("bench", clock)
        self.engine = Engine(
            Sessions(registry, slots, 0.0, idle_timeout=30.0, max_idle_timeout=idle_timeout),
            LoginPolicy(registry, lambda wish: wish or 30.0, 5.0, Admission(AdmissionLimits(), clock)),
            ServerProtocol(handles_requests=True),
            self,
            guard=StallGuard(TICK_S, 30.0, 0.0),
            clock=clock,
            disconnect_grace=5.0,
            flap_damping=FlapDamping(5.0),
        )
        self.watches = Watches(UserTable())
        self.states: dict[str, WatchedState] = {}
        self.pushes = PushQueue(self.watches, Faults(), self.states.get, self.engine.quiet)
        self.engine.request_handler = self
        self._phones = phones

    def append(self, change: Change) -> None:
        """Drop a change: there is no Redis."""

    # RequestHandler

    def handle(self, session: Session, request: Request) -> None:
        raise AssertionError("no phone requests anything")

    def all_sent(self, session: Session) -> None:
        self.pushes.all_sent(session)

    def release_held(self, session: Session) -> None:
        self.pushes.release(session)

    def sight_changed(self, session: Session) -> None:
        pass

    def session_disconnected(self, session: Session) -> None:
        pass

    def receive(self, client: Any, packet: protocol.Packet) -> Any:
        """Handle a packet of one phone; return its client from then on."""
        self._phones.touch(client.handle)
        outcome = self.engine.received(client, protocol.encode(packet))
        self._phones.send(client.handle, outcome.reply)
        return outcome.client

    def change(self, uid: str, number: int) -> None:
        """A user comes or goes: the event arrives from Redis."""
        entry = BEGUN_MS + number, 0
        status = STATUSES[number % len(STATUSES)]
        state = WatchedState(status, entry[0], entry[0] if status == "offline" else None, id_text(entry))
        self.states[uid] = state
        self.pushes.push(UserEvent(uid, entry, state, "login" if status == "online" else "logout"))

    def keepalives(self, sessions: Iterable[Session]) -> None:
        """Handle a batch of keepalives with an id, as a transport does."""
        batch = list(sessions)
        for session in batch:
            self._phones.touch(session.handle)
            self._phones.send(session.handle, _ANSWER)
        self.engine.connections_read(batch)

    def send_pushes(self) -> None:
        """Take the turns of the push queue that are due."""
        while self.pushes.statistics().queued:
            self.pushes.send_slice()
        while self.pushes.statistics().released:
            self.pushes.send_released_slice()


_ANSWER: Final = protocol.encode(protocol.ok(1))


@dataclass(frozen=True)
class BackgroundResult:
    """What one habit costs each phone in an hour."""

    habit: Habit
    keepalives: float  # with an answer each
    changes: float  # packets
    writes: float  # of the server, with one or more packets each
    wake_ups: float
    wrong: int  # states in the views of the checked phones that differ from the users' own
    checked: int

    @property
    def row(self) -> list[str]:
        counts = (self.keepalives, self.keepalives + self.changes, self.writes, self.wake_ups)
        return [self.habit.name, *(f"{count:.1f}" for count in counts), f"{self.wrong} of {self.checked:,}"]


def play(plan: BackgroundPlan, habit: Habit) -> BackgroundResult:
    """Let phones with one habit be in the background for some hours of virtual time."""
    random, phones = Random(plan.seed), _PhoneLines(plan.phones)
    server = _BackgroundServer(phones, habit.idle_timeout)
    sessions = [_log_in(server, phones, number, habit) for number in range(plan.phones)]
    users = [f"user-{number}" for number in range(plan.phones)]
    for number, session in enumerate(sessions):  # each is watched by as many as each watches
        watched = [users[(number + step) % len(users)] for step in range(min(plan.watched, len(users)))]
        server.watches.add(session, watched)
    interval_s, end_s = KEEPALIVE_SHARE * habit.idle_timeout, 3600 * plan.hours
    beats = deque(sorted((random.uniform(0, interval_s), number) for number in range(plan.phones)))
    count = round(len(users) * plan.changes_per_hour * plan.hours)
    changes = deque(sorted((random.uniform(0, end_s), random.choice(users)) for _ in range(count)))
    phones.writes = phones.wake_ups = number = keepalives = 0
    while phones.now < end_s:
        phones.now += STEP_S
        while changes and changes[0][0] <= phones.now:
            number += 1
            server.change(changes.popleft()[1], number)
        batch = []
        while beats[0][0] <= phones.now:
            due, phone = beats.popleft()
            beats.append((due + interval_s, phone))
            batch.append(sessions[phone])
        keepalives += len(batch)
        server.send_pushes()
        server.keepalives(batch)
        server.send_pushes()
    sent, writes, wake_ups = server.pushes.statistics().sent, phones.writes, phones.wake_ups
    for session in sessions if habit.quiet else ():
        server.receive(session, protocol.update(quiet=False, id=2))
    server.send_pushes()
    states = {uid: (state.status, state.id) for uid, state in server.states.items()}
    wrong = checked = 0
    for session, view in zip(sessions, phones.views(), strict=False):
        truth = {uid: states[uid] for uid in states.keys() & server.watches.watched_by(session)}
        checked += len(truth)
        wrong += len(dict(view.items() ^ truth.items()))
    hours = plan.phones * plan.hours
    figures = (keepalives / hours, sent / hours, writes / hours, wake_ups / hours)
    return BackgroundResult(habit, *figures, wrong, checked)


def _log_in(server: _BackgroundServer, phones: _PhoneLines, number: int, habit: Habit) -> Session:
    guest = server.engine.opened(phones, number)
    login = protocol.login(f"phone-{number}", idle_timeout=habit.idle_timeout, quiet=habit.quiet or None)
    session = server.receive(guest, login)
    if not isinstance(session, Session):
        raise TypeError("a login was refused")
    return session


def table(results: Iterable[BackgroundResult]) -> str:
    head = "each phone, in an hour | packets from it | to it | in writes | wake-ups | wrong in the end"
    return markdown(head, (each.row for each in results))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.background", description=__doc__)
    parser.add_argument("--phones", type=from_1, default=10_000, help="how many (default 10,000)")
    parser.add_argument("--watched", type=from_1, default=50, help="users that each watches (default 50)")
    parser.add_argument("--changes", type=above_0, default=2.0, help="of each user in an hour (default 2)")
    parser.add_argument("--hours", type=above_0, default=1.0, help="of virtual time (default 1)")
    arguments = parser.parse_args()
    plan = BackgroundPlan(arguments.phones, arguments.watched, arguments.changes, arguments.hours)
    results = [play(plan, habit) for habit in HABITS]
    print(table(results))
    if any(each.wrong or not each.checked for each in results):
        raise SystemExit("views are wrong")


if __name__ == "__main__":
    main()
