"""Tokens that somebody has tampered with, by the hundred thousand: none is taken, all are refused alike."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import msgpack

import protocol
from loadtest.hostile.stage import Stage, drop, rest
from loadtest.links import LOGIN_ID
from loadtest.nodes.outcome import Outcome
from loadtest.security.credentials import Issuer, login, write_keys
from loadtest.security.guarded import UNBOUNDED, Guarded, guarded
from loadtest.security.mutations import mutations
from presence.auth.gate import from_settings
from presence.auth.verdicts import Denied, Gate, Granted
from presence.clock import Clock
from presence.settings import Settings
from protocol import Code, Kind

ALGORITHMS = ("HS256", "RS256", "EdDSA")
UID = "ann"
STEP_S = 0.1  # between two tries, by the gate's own clock: it has time for each
GOOD_EVERY = 1000  # tries: in between a good token is taken, or nothing was shown
SEED = 7


class Stepping:
    """A monotonic clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        """Return its time."""
        return self.at


@dataclass
class Tries:
    """What came of tampered tokens, by what was changed.

    Attributes:
        refused: as tokens that do not hold.
        accepted: as if they did.
        unchecked: for other reasons; these show nothing.
        good: untouched tokens, in between, that were taken.
        words: what refusals said.
    """

    refused: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    unchecked: int = 0
    good: int = 0
    words: set[object] = field(default_factory=set)


def tampered(issuers: Sequence[Issuer], count: int) -> Iterable[tuple[str, str]]:
    """Return what was changed, and the token, of each issuer in turn."""
    entries = [issuer.entry for issuer in issuers]
    turns = [mutations(entry, UID, seed=SEED + n, others=entries) for n, entry in enumerate(entries)]
    return islice(chain.from_iterable(zip(*turns, strict=True)), count)


def try_at_gate(gate: Gate, clock: Stepping, issuers: Sequence[Issuer], count: int) -> Tries:
    """Show so many to the gate itself; it is asked as a session asks."""
    tries = Tries()
    for number, (change, token) in enumerate(tampered(issuers, count)):
        clock.at += STEP_S
        verdict = gate.login(
            token, None if number % 2 else UID, f"10.0.{number >> 8 & 255}.{number & 255}", clock.at
        )
        if isinstance(verdict, Granted):
            tries.accepted[change] += 1
        elif verdict.code == Code.AUTH_FAILED:
            tries.refused[change] += 1
            tries.words.add((verdict.code, verdict.message))
        else:
            tries.unchecked += 1
        if number % GOOD_EVERY == 0:
            good = issuers[number // GOOD_EVERY % len(issuers)].token(UID)
            tries.good += not isinstance(gate.login(good, UID, "10.1.0.1", clock.at), Denied)
    return tries


def try_over_wire(stage: Stage, issuers: Sequence[Issuer], count: int) -> Tries:
    """Log in with so many."""
    tries = Tries()
    for number, (change, token) in enumerate(tampered(issuers, count)):
        client = stage.connect()
        client.sendall(_login({"token": token} if number % 2 else {"token": token, "uid": UID}))
        packets = rest(client)
        drop(client)
        if not packets or packets[0].kind == Kind.OK:
            tries.accepted[change] += 1
        else:
            tries.refused[change] += 1
            # What no token can be is refused before anybody looks whether it holds.
            if packets[0].payload["code"] == Code.AUTH_FAILED:
                tries.words.add(repr(packets))
    return tries


def _login(payload: Mapping[str, str]) -> bytes:
    """Return the frame of a login, whether it is a valid one or not."""
    body = msgpack.packb([Kind.LOGIN, LOGIN_ID, payload])
    return len(body).to_bytes(protocol.HEADER_BYTES, "big") + body


def as_another(stage: Stage, issuers: Sequence[Issuer]) -> bool:
    """Log in with each issuer's token of one user as another; return whether each is told 303, and closed."""
    told = []
    for issuer in issuers:
        client = stage.connect()
        client.sendall(login("mallory", issuer.token(UID)))
        told.append([(packet.kind, packet.payload.get("code")) for packet in rest(client)])
        drop(client)
    return told == [[(Kind.ERROR, Code.AUTH_FAILED)]] * len(issuers)


def tokens(count: int, over_wire: int) -> Outcome:
    """Try so many at the gate, and so many of the same over connections."""
    issuers = [Issuer.fresh(f"key-{alg.lower()}", alg) for alg in ALGORITHMS]
    with tempfile.TemporaryDirectory(prefix="security-") as folder:
        path = Path(folder) / "keys.json"
        write_keys(path, issuers)
        clock = Stepping()
        gate = from_settings(Settings(token_keys=path), Clock(clock), time.time)
    assert gate is not None
    at_gate = try_at_gate(gate, clock, issuers, count)
    with guarded(*UNBOUNDED, algorithms=ALGORITHMS) as on:
        return judge(at_gate, *_played(on, over_wire))


def _played(on: Guarded, count: int) -> tuple[Tries, bool, list[str]]:
    wire = try_over_wire(on.stage, on.issuers, count)
    return wire, as_another(on.stage, on.issuers), on.stage.others_hurt()


def judge(at_gate: Tries, wire: Tries, other_is_told: bool, broken: list[str]) -> Outcome:
    """Hold what came of them against what is promised."""
    accepted = at_gate.accepted + wire.accepted
    tried = at_gate.refused.total() + at_gate.accepted.total()
    sent = wire.refused.total() + wire.accepted.total()
    if accepted:
        broken.append(f"{accepted.total()} tampered tokens were taken: {dict(accepted)}")
    if at_gate.unchecked:
        broken.append(f"{at_gate.unchecked} tokens were not checked")
    if max(len(at_gate.words), len(wire.words)) > 1:
        broken.append(f"refusals differ: {sorted(map(str, at_gate.words | wire.words))[:3]}")
    if not other_is_told:
        broken.append("a login as another user than the token's was not refused with 303")
    changes = at_gate.refused + at_gate.accepted
    measured = (
        f"accepted {accepted.total()} of {tried:,} at the gate ({len(changes)} changes, each at least "
        f"{min(changes.values(), default=0):,} times) and {sent:,} over the wire; refusals of "
        f"{len(wire.words)} wording; untouched tokens taken in between {at_gate.good}; as another user: "
        f"{'303' if other_is_told else 'not refused'}"
    )
    return Outcome(
        "tokens",
        f"{tried + sent:,} tampered tokens" if sent and at_gate.good >= tried // GOOD_EVERY else "",
        measured,
        broken,
    )
