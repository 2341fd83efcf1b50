"""Drives a client's machine: a clock that tests move, chosen random numbers, a scripted server."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from presence import protocol
from presence.client.lifecycle import State
from presence.client.pending import RequestResult
from presence.client.pushes import PresenceChanged, Push
from presence.client.reconnect import ReconnectPolicy
from presence.client.state_machine import ClientMachine
from presence.protocol import Kind, Packet

T = 30.0
KEEPALIVE = 12.0
SERVER_TIME_S = 1_700_000_000


def token(expires_s: Any, number: int = 0, **claims: Any) -> str:
    """Return an unsigned JSON Web Token; `expires_s`: Unix seconds."""
    parts = ({"alg": "none"}, {"exp": expires_s, "jti": number, **claims}, {"signed": False})
    texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join(texts)


def login_ok(keepalive: float = KEEPALIVE, idle_timeout: float = T) -> Packet:
    return protocol.ok(
        1, session="s-1", idle_timeout=idle_timeout, keepalive=keepalive, time_ms=SERVER_TIME_S * 1000, v=1
    )


class Driven:
    """A machine with its clock.

    Attributes:
        now: moved by `run`.
        sent: packets that the machine has sent so far.
        pushes, answers: what it has returned so far.
    """

    def __init__(
        self,
        *,
        persistent: bool = True,
        fetches: bool = False,
        ask_every: int = 3,
        watch_devices: bool = False,
        chance: float = 1.0,
    ) -> None:
        self.now = 1000.0
        self.chance = chance
        self.machine = ClientMachine(
            protocol.login("ann", device="phone"),
            self.now,
            reconnect_policy=ReconnectPolicy(persistent=persistent, chance=lambda: self.chance),
            fetches=fetches,
            ask_every=ask_every,
            watch_devices=watch_devices,
            chance=lambda: self.chance,
        )
        self.sent: list[Packet] = []
        self.sent_at: list[float] = []
        self.pushes: list[Push] = []
        self.answers: dict[int, object] = {}
        self._decoder = protocol.Decoder()

    def note(self, effects: list[Push | RequestResult]) -> None:
        for each in effects:
            if isinstance(each, RequestResult):
                assert each.id not in self.answers, "one answer each"
                self.answers[each.id] = each.result
            else:
                self.pushes.append(each)
        self._decoder.feed(self.machine.take_outgoing())
        self.machine.written(self.now)
        while (packet := self._decoder.next()) is not None:
            self.sent.append(packet)
            self.sent_at.append(self.now)

    def establish(self) -> None:
        self._decoder = protocol.Decoder()
        self.machine.established(self.now)
        self.note([])

    def log_in(self, keepalive: float = KEEPALIVE) -> None:
        self.establish()
        self.receive(login_ok(keepalive))
        assert self.machine.state is State.ONLINE

    def receive(self, *packets: Packet) -> None:
        self.note(self.machine.received(b"".join(map(protocol.encode, packets)), self.now))

    def provide_token(self, given: str | Exception) -> None:
        """The program returns a token, or fails."""
        self.note(self.machine.token_fetched(given, self.now))

    def lose(self) -> None:
        self.note(self.machine.disconnected("broken", self.now))

    def run(self, seconds: float, *, answering: bool = False) -> None:
        """Let time pass, tick by tick; `answering`: the server answers each keepalive that requests it."""
        end = self.now + seconds
        while self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            before = len(self.sent)
            self.note(self.machine.tick(self.now))
            for packet in self.sent[before:]:
                if answering and packet.kind == Kind.KEEPALIVE and packet.id is not None:
                    self.receive(protocol.ok(packet.id))
        self.now = end

    def ask(self, packet: Packet, timeout_s: float = 10.0, *, retries: bool = False) -> int:
        id = self.machine.request(packet, timeout_s, self.now, retries=retries)
        self.note([])
        return id

    def watch(self, **states: Mapping[str, Any]) -> None:
        """Watch some users; the server answers with these states."""
        self.receive(protocol.ok(self.ask(protocol.watch(states)), presence=states))

    def reconnect(self) -> list[Packet]:
        """Lose the connection, wait, and log in again; return what the client then sent by itself."""
        self.lose()
        assert self.machine.state is State.WAITING
        self.run(self.machine.deadline - self.now)
        before = len(self.sent)
        self.log_in()
        return self.sent[before + 1 :]

    def changes(self) -> list[tuple[str, str, str | None, str]]:
        """Return the changes of presence that the program got: uid, status, id, reason."""
        changed = [push for push in self.pushes if isinstance(push, PresenceChanged)]
        return [(push.uid, push.state.status, push.state.id, push.reason) for push in changed]


def keepalives(driven: Driven) -> list[Packet]:
    return [packet for packet in driven.sent if packet.kind == Kind.KEEPALIVE]


def most(_: object = None) -> float:
    """Return the highest number that chance can be."""
    return 1.0
