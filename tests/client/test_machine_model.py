"""A machine with a server and a network that do anything at any time, in virtual time."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from presence import protocol
from presence.client import Connected, Disconnected, PresenceError, State
from presence.client.login_token import TOKEN_TIMEOUT_S
from presence.client.pending import Effects, RequestResult
from presence.client.reconnect import RECONNECT_MAX_S
from presence.client.state_machine import CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, LOGOUT_TIMEOUT_S, ClientMachine
from presence.protocol import Code, Kind, Packet
from tests.client.machine_driver import KEEPALIVE, SERVER_TIME_S, login_ok, token

RETRY_AFTER_MAX_S = 30.0


class AnythingHappens(RuleBasedStateMachine):
    """Only the shell's contract is kept; everything else is random."""

    fetches = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.random = 0.5
        self.machine = ClientMachine(
            protocol.login("ann"), self.now, fetches=self.fetches, chance=lambda: self.random
        )
        self.due: dict[int, float] = {}
        self.held = False
        self.online = False
        self.beat_at = 0.0
        self.to_server = protocol.Decoder()

    def note(self, effects: Effects) -> None:
        for each in effects:
            if isinstance(each, RequestResult):
                assert self.due.pop(each.id, None) is not None, "answered once, and only if requested"
            elif isinstance(each, Connected):
                assert not self.online
                self.online = True
                self.beat_at = self.now
            elif isinstance(each, Disconnected):
                self.online = False
                assert 0 <= each.retry_in <= RECONNECT_MAX_S + RETRY_AFTER_MAX_S
        if self.held and not self.machine.connected:
            self.held = False
        for packet in self.sent():
            if packet.kind == Kind.KEEPALIVE:
                assert self.now - self.beat_at <= KEEPALIVE + 1e-6, "never later than the server's interval"
                self.beat_at = self.now

    def sent(self) -> list[Packet]:
        data = self.machine.take_outgoing()
        self.machine.written(self.now)
        assert self.held or not data, "nothing is sent without a connection"
        self.to_server.feed(data)
        packets = []
        while (packet := self.to_server.next()) is not None:
            packets.append(packet)
        return packets

    @rule(seconds=st.floats(0, 30), chance=st.floats(0, 0.999))
    def time_passes(self, seconds: float, chance: float) -> None:
        self.random = chance
        end = self.now + seconds
        turns = 0
        while self.machine.deadline <= end:
            assert self.machine.deadline >= self.now, "what is due was done"
            turns = turns + 1 if self.machine.deadline == self.now else 0
            assert turns < 3, "no busy loop"
            self.now = self.machine.deadline
            self.note(self.machine.tick(self.now))
        self.now = end

    @precondition(lambda self: self.machine.wants_token)
    @rule(left_s=st.sampled_from([-10.0, 0.5, 5.0, 600.0]), number=st.integers(0, 3))
    def program_makes_a_token(self, left_s: float, number: int) -> None:
        self.note(self.machine.token_fetched(token(SERVER_TIME_S + left_s, number), self.now))
        assert not self.machine.wants_token, "else it would be requested again immediately"

    @precondition(lambda self: self.machine.wants_token)
    @rule()
    def program_makes_none(self) -> None:
        self.note(self.machine.token_fetched(OSError("no way there"), self.now))
        assert not self.machine.wants_token, "else it would be requested again immediately"

    @precondition(lambda self: self.machine.state is State.CONNECTING)
    @rule()
    def network_connects(self) -> None:
        self.held = True
        self.to_server = protocol.Decoder()
        self.machine.established(self.now)
        (login,) = self.sent()
        assert login.kind == Kind.LOGIN

    @precondition(lambda self: self.machine.state is State.CONNECTING or self.machine.connected)
    @rule()
    def network_breaks(self) -> None:
        self.held = False
        self.note(self.machine.disconnected("broken", self.now))

    @precondition(lambda self: self.machine.connected)
    @rule(
        packet=st.one_of(
            st.just(login_ok()),
            st.builds(protocol.ok, st.integers(0, 30)),
            st.builds(
                protocol.error,
                st.one_of(st.none(), st.integers(0, 30)),
                st.sampled_from([code for code in Code if code.reconnect]),
                st.just("no"),
                st.one_of(st.none(), st.floats(0, RETRY_AFTER_MAX_S)),
            ),
            st.builds(
                protocol.goodbye,
                st.sampled_from([code for code in Code if code.reconnect]),
                st.none(),
                st.one_of(st.none(), st.floats(0, RETRY_AFTER_MAX_S)),
            ),
            st.just(protocol.deliver("bob", "hi", 1)),
            st.just(Packet(99)),
        )
    )
    def server_says(self, packet: Packet) -> None:
        self.note(self.machine.received(protocol.encode(packet), self.now))

    @precondition(lambda self: self.machine.connected)
    @rule(data=st.binary(min_size=1, max_size=12))
    def server_babbles(self, data: bytes) -> None:
        self.note(self.machine.received(data, self.now))

    @rule(timeout_s=st.floats(0.01, 20))
    def program_asks(self, timeout_s: float) -> None:
        try:
            id = self.machine.request(protocol.query(["bob"]), timeout_s, self.now)
        except PresenceError:
            assert self.machine.state is not State.ONLINE
        else:
            self.due[id] = self.now + timeout_s
            self.note([])

    @invariant()
    def what_is_due_is_due_in_time(self) -> None:
        assert all(self.now <= deadline for deadline in self.due.values())

    @invariant()
    def a_client_that_may_reconnect_never_ends_nor_waits_forever(self) -> None:
        bound = max(
            *(KEEPALIVE, CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, LOGOUT_TIMEOUT_S, TOKEN_TIMEOUT_S),
            RECONNECT_MAX_S + RETRY_AFTER_MAX_S,
        )
        assert self.machine.state is not State.ENDED
        assert self.machine.deadline - self.now <= bound

    def teardown(self) -> None:
        self.note(self.machine.close())
        assert not self.due, "the end answers everything"
        assert self.machine.deadline == math.inf


class WithTokens(AnythingHappens):
    """The same with a program that makes tokens."""

    fetches = True


TestAnythingHappens = AnythingHappens.TestCase
TestAnythingHappens.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=60, deadline=None
)
TestWithTokens = WithTokens.TestCase
TestWithTokens.settings = TestAnythingHappens.settings
