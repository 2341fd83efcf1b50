"""Whole sessions under fuzzing: the bytes are actions of clients, time, other nodes and an operator.

The first bytes select the server's settings, each further one the next action, with a few after it for its
parameters. After each step the answers have been compared with the specification, and the engine's parts with
each other. An exception from `run` is a finding.
"""

from collections.abc import Callable
from typing import Final

from presence.core import requests
from presence.core.changes import Op
from presence.core.login import NO_LIMIT, SessionQuota
from presence.core.registry import Session, SessionKey
from presence.protocol import Code, goodbye
from presence.protocol import encode as encode_packet
from tests.fuzz import frames, invariants
from tests.fuzz.choices import Choices
from tests.fuzz.gate import KEYRINGS
from tests.fuzz.stage import IDLE_TIMEOUT_S, MAX_IDLE_TIMEOUT_S, SLOT_S, Scene, ServerUnderTest

STEPS_MAX: Final = 60  # of one input; more would only be slower
CONNECTIONS_MAX: Final = 8  # open together
LIMITS: Final = (NO_LIMIT, SessionQuota(1), SessionQuota(2), SessionQuota(2, refuse_new=True))
_GOODBYE: Final = encode_packet(goodbye(Code.SERVER_DRAIN))


def run(data: bytes) -> None:
    """Run one input.

    Raises:
        Exception: any; the server or a check is wrong.
    """
    choices = Choices(data)
    scripted = ScriptedRun(choices)
    try:
        for _ in range(STEPS_MAX):
            if not choices:
                break
            choices.of(STEPS)(scripted)
            invariants.check(scripted.stage)
        scripted.end()
    finally:
        scripted.stage.leave()


class ScriptedRun:
    """The actions on a stage, chosen by the bytes."""

    def __init__(self, choices: Choices) -> None:
        flags = choices.below(256)
        self.choices = choices
        self.stage = ServerUnderTest(
            Scene(
                grace=not flags & 1,
                away=bool(flags & 2),
                limit=LIMITS[flags >> 2 & 3],
                returns=flags >> 4 & 1,
                served=not flags & 32,
                is_tight=bool(flags & 64),
                authenticator=bool(flags & 128),
            )
        )
        self.registering = self.stage.engine.registration.registrations([*self.stage.registry])

    # Clients

    def connection(self) -> int:
        """Return one of the open connections, or a new one if there is none or the bytes say so."""
        handles = list(self.stage.peers)
        number = self.choices.below(CONNECTIONS_MAX)
        return handles[number % len(handles)] if handles and number < CONNECTIONS_MAX - 1 else self.fresh()

    def fresh(self) -> int:
        """Return a new connection, which replaces the oldest if there are many."""
        if len(self.stage.peers) >= CONNECTIONS_MAX:
            self.stage.lose(next(iter(self.stage.peers)))
        return self.stage.connect()

    def log_in(self) -> None:
        """A client connects and logs in."""
        self.arrives(self.fresh(), frames.login(self.choices))

    def send(self) -> None:
        """A client sends a packet."""
        self.arrives(self.connection(), self.choices.of(frames.PACKETS))

    def send_login(self) -> None:
        """A client logs in on an existing connection."""
        self.arrives(self.connection(), frames.login(self.choices))

    def send_damaged(self) -> None:
        """A client sends a damaged packet."""
        is_login = self.choices.below(2)
        frame = frames.login(self.choices) if is_login else self.choices.of(frames.PACKETS)
        self.arrives(self.connection(), frames.damaged(frame, self.choices))

    def send_bytes(self) -> None:
        """A client sends bytes of the input."""
        self.arrives(self.connection(), self.choices.take(self.choices.below(64)))

    def send_some(self) -> None:
        """A client sends several packets together, the last one incomplete."""
        count = self.choices.below(5)
        data = b"".join(self.choices.of(frames.PACKETS) for _ in range(count))
        self.arrives(self.connection(), data[: len(data) - self.choices.below(8)])

    def send_large(self) -> None:
        """A client begins a frame of maximum length, and continues with zeros."""
        length = self.choices.of((1024, 16_384, 16_385, 1025, 2000))
        self.arrives(self.connection(), length.to_bytes(4, "big") + bytes(self.choices.below(256) * 64))

    def arrives(self, handle: int, data: bytes) -> None:
        """Bytes reach the server and are usually read immediately; or only some of them, or none."""
        arrived, how = self.stage.arrived, self.choices.below(8)
        if how == 7:
            arrived[handle] += data
            return
        cut = self.choices.below(256) % (len(data) + 1) if how == 6 else 0
        if cut:
            arrived[handle] += data[:cut]
            self.stage.read(handle)
        if handle in arrived:
            arrived[handle] += data[cut:]
            self.stage.read(handle)

    def read(self) -> None:
        """The server reads what has arrived."""
        for handle in list(self.stage.peers):
            if handle in self.stage.peers:
                self.stage.read(handle)

    def beat(self) -> None:
        """Some clients send keepalives, in one batch."""
        chosen = self.choices.below(256)
        able = [handle for handle, peer in self.stage.peers.items() if isinstance(peer, Session)]
        self.stage.beat([handle for n, handle in enumerate(able) if not chosen >> n & 1])

    def lose(self) -> None:
        """A connection ends."""
        self.stage.lose(self.connection())

    # Time

    def wait(self) -> None:
        """Time passes, without a tick."""
        self.stage.now += self.choices.below(64) / 8

    def tick(self) -> None:
        """The ticker ticks, late or in time."""
        self.stage.run_tick()
        invariants.check_after_tick(self.stage)

    def live(self) -> None:
        """Time passes, with all its ticks."""
        for _ in range(1 + self.choices.below(12)):
            self.stage.now += SLOT_S
            self.stage.run_tick()
        invariants.check_after_tick(self.stage)

    def interrupted_tick(self) -> None:
        """Something else happens between the poll and the expiry."""
        self.stage.begin_tick()
        if self.stage.collect_expired():
            self.choices.of(INTERRUPTIONS)(self)
            self.stage.engine.expire_idle(self.stage.now)
        self.stage.run_tick()
        invariants.check_after_tick(self.stage)

    def lag(self) -> None:
        """The next reads find bytes that arrived long ago; a poll finds a reader that needs a turn."""
        self.stage.lain_s = self.choices.of((0.0, 0.01, 0.5, 3.0, 6.0))
        self.stage.needs_a_turn = bool(self.choices.below(2))

    # Other nodes, Redis, the operator

    def session(self) -> tuple[SessionKey, str] | None:
        """Return a session's key and id, or that key with another session's id."""
        sessions = list(self.stage.registry)
        if not sessions:
            return None
        session = self.choices.of(sessions)
        wrong = self.choices.below(8) == 7
        return session.key, "boot-0" if wrong else self.stage.registry.session_id(session)

    def displace(self) -> None:
        """The device logs in on another node."""
        if (named := self.session()) is not None:
            self.stage.engine.terminator.supersede(*named, self.choices.of((Code.REPLACED, Code.CLOSED)))

    def end_for_good(self) -> None:
        """An operator or the cluster-wide quota ends a session."""
        if (named := self.session()) is not None:
            (
                self.stage.engine.terminator.kick
                if self.choices.below(2)
                else self.stage.engine.terminator.limit
            )(*named)

    def register(self) -> None:
        """A resync begins, or continues by a few registrations."""
        for _ in range(self.choices.below(4)):
            change = next(self.registering, None)
            if change is None:
                self.registering = self.stage.engine.registration.registrations([*self.stage.registry])
            else:
                assert change.op in (Op.REGISTER, Op.STALE)

    def survey(self) -> None:
        """An operator asks for statistics."""
        engine, registry = self.stage.engine, self.stage.registry
        names = {(name.uid, name.device, name.session) for name in engine.registration.registrable_sessions()}
        assert names <= {(uid, device, e.session) for (uid, device), e in self.stage.ledger.entries.items()}
        assert engine.statistics().sessions == len(registry)
        assert sum(engine.sessions.slot_sizes(64)) <= len(registry)
        engine.count_refusal(self.choices.of((Code.BUSY, Code.LOGIN_TIMEOUT)))

    def drain(self) -> None:
        """The server stops: first it refuses logins, then it hangs up."""
        if not self.choices.below(3):
            self.stage.engine.refuse_logins(lambda: 2.5)
        elif self.choices.below(2):
            self.stage.engine.terminator.say_goodbye_all(list(self.stage.registry), lambda: _GOODBYE)
            for session in self.stage.registry:
                assert session.link is None

    def rotate(self) -> None:
        """Tokens are checked with other keys from now on."""
        if self.stage.authenticator is not None:
            self.stage.authenticator.keyring = self.choices.of(KEYRINGS)

    def answer(self) -> None:
        """The request handler answers the oldest requests, or reports that a connection is drained."""
        waiting = self.stage.request_handler.waiting
        for _ in range(min(len(waiting), self.choices.below(4))):
            session, request = waiting.pop(0)
            if self.choices.below(2):
                requests.send_ok(session, request.id, {"presence": {}})
            else:
                requests.send_error(session, request.id, Code.BUSY, "busy", 1.0)
        for peer in list(self.stage.peers.values()):
            if isinstance(peer, Session):
                self.stage.engine.drained(peer)

    def end(self) -> None:
        """All connections end, and time passes: nothing is left behind."""
        stage = self.stage
        stage.needs_a_turn = False
        for handle in list(stage.peers):
            if handle in stage.peers:
                stage.lose(handle)
        # T may have been credited for the past, and is credited for this.
        stage.now += MAX_IDLE_TIMEOUT_S + 2 * IDLE_TIMEOUT_S + 2 * SLOT_S
        stage.run_tick()
        invariants.check_after_tick(stage)
        invariants.check(stage)
        assert not len(stage.registry), "a session without a connection outlives every deadline"
        assert not stage.ledger.online


Step = Callable[[ScriptedRun], None]
STEPS: Final[tuple[Step, ...]] = (
    *(
        ScriptedRun.log_in,
        ScriptedRun.log_in,
        ScriptedRun.send,
        ScriptedRun.send,
        ScriptedRun.send,
        ScriptedRun.send_login,
        ScriptedRun.send_damaged,
    ),
    *(
        ScriptedRun.send_bytes,
        ScriptedRun.send_some,
        ScriptedRun.send_large,
        ScriptedRun.read,
        ScriptedRun.beat,
        ScriptedRun.lose,
        ScriptedRun.lose,
    ),
    *(
        ScriptedRun.wait,
        ScriptedRun.wait,
        ScriptedRun.tick,
        ScriptedRun.live,
        ScriptedRun.live,
        ScriptedRun.interrupted_tick,
        ScriptedRun.lag,
    ),
    *(
        ScriptedRun.displace,
        ScriptedRun.end_for_good,
        ScriptedRun.register,
        ScriptedRun.survey,
        ScriptedRun.drain,
        ScriptedRun.answer,
        ScriptedRun.rotate,
    ),
)
INTERRUPTIONS: Final[tuple[Step, ...]] = (
    *(
        ScriptedRun.read,
        ScriptedRun.beat,
        ScriptedRun.send,
        ScriptedRun.log_in,
        ScriptedRun.lose,
        ScriptedRun.displace,
        ScriptedRun.end_for_good,
    ),
)
