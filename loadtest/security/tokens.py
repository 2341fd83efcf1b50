"""Tokens that somebody has tampered with, keys that are renewed, and what the time of a refusal tells."""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import msgpack

import protocol
from loadtest.client_loop import LOGIN_ID, ClientLoop, LoopThread
from loadtest.outcome import Outcome, percentile
from loadtest.security.credentials import Issuer, login, spoilt, write_keys
from loadtest.security.mutations import mutations
from loadtest.security.samples import mann_whitney
from loadtest.security.stage import (
    OTHERS_BEAT_S,
    TIMEOUT_S,
    UNBOUNDED,
    Resident,
    Stage,
    faults,
    staged,
)
from loadtest.servers import wait_for
from presence.auth.gate import TokenGate, from_settings
from presence.auth.verdicts import Denied, Granted
from presence.clock import Clock
from presence.settings import Settings
from protocol import Code, Kind

ALGORITHMS = ("HS256", "RS256", "EdDSA")
UID = "ann"
STEP_S = 0.1  # between two tries, by the gate's own clock: it has time for each
GOOD_EVERY = 1000  # tries: in between a good token is taken, or nothing was shown
SEED = 7


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


def try_at_gate(count: int) -> Tries:
    """Show so many to the gate itself; it is asked as a session asks."""
    issuers = [Issuer.fresh(f"key-{alg.lower()}", alg) for alg in ALGORITHMS]
    now = 0.0
    with tempfile.TemporaryDirectory(prefix="security-") as folder:
        path = Path(folder) / "keys.json"
        write_keys(path, issuers)
        gate: TokenGate | None = from_settings(Settings(token_keys=path), Clock(lambda: now), time.time)
    assert gate is not None
    tries = Tries()
    for number, (change, token) in enumerate(tampered(issuers, count)):
        now += STEP_S
        uid, address = None if number % 2 else UID, f"10.0.{number >> 8 & 255}.{number & 255}"
        verdict = gate.login(token, uid, address, now)
        if isinstance(verdict, Granted):
            tries.accepted[change] += 1
        elif verdict.code == Code.AUTH_FAILED:
            tries.refused[change] += 1
            tries.words.add((verdict.code, verdict.message))
        else:
            tries.unchecked += 1
        if number % GOOD_EVERY == 0:
            good = issuers[number // GOOD_EVERY % len(issuers)].token(UID)
            tries.good += not isinstance(gate.login(good, UID, "10.1.0.1", now), Denied)
    return tries


def try_over_wire(stage: Stage, count: int) -> Tries:
    """Log in with so many."""
    tries = Tries()
    for number, (change, token) in enumerate(tampered(stage.issuers, count)):
        wire = stage.wire()
        payload = {"token": token} if number % 2 else {"token": token, "uid": UID}
        body = msgpack.packb([Kind.LOGIN, LOGIN_ID, payload])  # whether it is a valid one or not
        wire.send(len(body).to_bytes(protocol.HEADER_BYTES, "big") + body)
        packets = wire.rest()
        wire.drop()
        if not packets or packets[0].kind == Kind.OK:
            tries.accepted[change] += 1
            continue
        tries.refused[change] += 1
        # What no token can be is refused before anybody looks whether it holds.
        if packets[0].payload["code"] == Code.AUTH_FAILED:
            tries.words.add(repr(packets))
    return tries


def tokens(count: int, over_wire: int) -> Outcome:
    """Try so many at the gate, and so many of the same over connections; none is taken, all refused alike."""
    at_gate = try_at_gate(count)
    with staged(*UNBOUNDED, algorithms=ALGORITHMS) as stage:
        wire = try_over_wire(stage, over_wire)
        answers = [stage.answer(login("mallory", issuer.token(UID))) for issuer in stage.issuers]
        as_another = {answer.payload.get("code", 0) for answer in answers}
        return judge_tokens(at_gate, wire, as_another, stage.others_hurt())


def judge_tokens(at_gate: Tries, wire: Tries, as_another: set[int], hurt: list[str]) -> Outcome:
    """Hold what came of them against what is promised; `as_another`: answers to other users' tokens."""
    accepted, words = at_gate.accepted + wire.accepted, at_gate.words | wire.words
    tried, sent = (each.refused.total() + each.accepted.total() for each in (at_gate, wire))
    broken = hurt + faults(
        (accepted, f"{accepted.total()} tampered tokens were taken: {dict(accepted)}"),
        (at_gate.unchecked, f"{at_gate.unchecked} tokens were not checked"),
        (
            max(len(at_gate.words), len(wire.words)) > 1,
            f"refusals differ: {sorted(map(str, words))[:3]}",
        ),
        (as_another != {Code.AUTH_FAILED}, f"a login with another user's token was answered {as_another}"),
    )
    measured = f"accepted {accepted.total()} of {tried:,} at the gate and {sent:,} over the wire"
    is_shown = sent and at_gate.good >= tried // GOOD_EVERY
    return Outcome("tokens", f"{tried + sent:,} tampered tokens" if is_shown else "", measured, broken)


# Keys that are renewed under connected clients

TAKEN_S = 3.0  # until a new key counts: the file is looked at each second
LOGINS = 12  # each worker is asked
STAYS_S = 5.0  # in which who is to be dropped would be
BROKEN_FILE = '{"keys": [{"kid": "half a'


def rotation(count: int) -> Outcome:
    """Renew the keys under so many: nobody is dropped, and new logins need a new key."""
    with staged("--workers", "2", *UNBOUNDED, algorithms=("EdDSA",)) as stage:
        old, new, keys = stage.issuers[0], Issuer.fresh("key-new", "RS256"), stage.folder / "keys.json"
        loop = ClientLoop(stage.server.address, beat_s=10 * OTHERS_BEAT_S)
        kept = [Resident(loop, f"kept-{number}", old.login(f"kept-{number}")) for number in range(count)]
        with LoopThread(loop) as thread:
            thread.bring(kept, 500.0, TIMEOUT_S)
            before = _granted(stage, old, "before")
            write_keys(keys, [old, new])
            added_s = _until(lambda: _granted(stage, new, "added") == LOGINS)
            write_keys(keys, [new])
            gone_s = _until(lambda: _granted(stage, old, "gone") == 0)
            keys.write_text(BROKEN_FILE)
            time.sleep(STAYS_S)
            after = _granted(stage, new, "after")
            dropped = sum(each.is_lost for each in kept)
        hurt = stage.others_hurt()
    slowest_s = max(added_s, gone_s)
    broken = hurt + faults(
        (before < LOGINS, "the old key was not good before"),
        (after < LOGINS, "with a broken file the keys from before are not good any more"),
        (dropped, f"{dropped} of {count} connected clients were dropped"),
        (not slowest_s <= TAKEN_S, f"the new keys counted after {slowest_s:.1f} s, {TAKEN_S:g} allowed"),
    )
    measured = f"dropped {dropped}; a new key good after {added_s:.2f} s, an old one bad after {gone_s:.2f} s"
    return Outcome("rotation", f"3 new files of keys under {count:,} connections", measured, broken)


def _until(condition: Callable[[], bool]) -> float:
    begun = time.monotonic()
    return time.monotonic() - begun if wait_for(condition, 2 * TAKEN_S) else float("inf")


def _granted(stage: Stage, issuer: Issuer, uid: str) -> int:
    """Log in with tokens of an issuer; return how many were granted, -1 if one was refused as busy."""
    answers = [stage.answer(issuer.login(f"{uid}-{number}")) for number in range(LOGINS)]
    codes = [answer.payload.get("code", 0) for answer in answers]
    return codes.count(0) if {*codes} <= {0, Code.AUTH_FAILED} else -1


# Whether the time of a refusal tells what was wrong

P_MIN = 0.01
UNKNOWN, KNOWN, CONTROL = "unknown user", "bad token", "no token"
PREPARED = 500  # tokens of each kind; they are used by turns


def ways(issuer: Issuer, online: Sequence[str]) -> Mapping[str, Sequence[bytes]]:
    """Return the logins of each way to be refused; who is `online` is known to the server."""
    known = [online[number % len(online)] for number in range(PREPARED)]
    # Names of one length, in turn: nothing else is to differ.
    unknown = [f"nobody-{number}"[: len(uid)].ljust(len(uid), "x") for number, uid in enumerate(known)]
    expired = int(time.time()) - 60
    return {
        UNKNOWN: [login(uid, spoilt(issuer.token(uid))) for uid in unknown],
        KNOWN: [login(uid, spoilt(issuer.token(uid))) for uid in known],
        "another user's": [login(uid, issuer.token(n)) for uid, n in zip(known, unknown, strict=True)],
        "expired": [login(uid, issuer.token(uid, exp=expired)) for uid in known],
        CONTROL: [login(uid, None) for uid in known],
    }


def timing(tries: int) -> Outcome:
    """Try each way to be refused so often: can a user whom nobody knows be told from a bad token by the time?

    Ways are tried in random order, one after the other, each on a connection of its own; the time is from the
    login's last byte to the answer. The control is a login without a token, for which there is nothing to
    check: if that cannot be told from the others, nothing can be seen here.
    """
    with staged(*UNBOUNDED, algorithms=("EdDSA",)) as stage:
        every = ways(stage.issuers[0], [each.uid for each in stage.others])
        order = [way for way in every for _ in range(tries)]
        random.Random(SEED).shuffle(order)
        times: dict[str, list[float]] = {way: [] for way in every}
        wrong = 0
        for number, way in enumerate(order):
            wire, frame = stage.wire(), every[way][number % PREPARED]
            begun = time.perf_counter()
            answer = wire.ask(frame)
            times[way].append(time.perf_counter() - begun)
            wire.drop()
            wrong += answer.payload.get("code") != Code.AUTH_FAILED
        return judge_timing(times, wrong, stage.others_hurt())


def judge_timing(times: Mapping[str, Sequence[float]], wrong: int, hurt: list[str]) -> Outcome:
    """Compare each way with a bad token; the promise is about the user whom nobody knows."""
    p = {way: mann_whitney(sample, times[KNOWN]) for way, sample in times.items() if way != KNOWN}
    broken = hurt + faults(
        (p[UNKNOWN] < P_MIN, f"an unknown user is told from a bad token: p {p[UNKNOWN]:.2g}"),
        (wrong, f"{wrong} tries were not refused with 303"),
    )
    medians = ", ".join(f"{way} {percentile(sample, 0.5) * 1e6:.0f}" for way, sample in times.items())
    told = "; ".join(f"{way} p {each:.3g}" for way, each in p.items())
    seen = f"{len(times[KNOWN]):,} tries of each of {len(times)} ways to be refused"
    measured = f"Mann-Whitney beside {KNOWN}: {told}; medians in µs: {medians}"
    return Outcome("timing", seen if p[CONTROL] < P_MIN else "", measured, broken)
