"""Whether the time of a refusal tells what was wrong: of a user whom nobody knows, of a bad token.

Each way to be refused is tried as often as the others, in random order, one after the other, each on a
connection of its own; the time is from the login's last byte to the first of the answer. Samples are
compared by the test of Mann and Whitney. The control is a login without a token, for which there is nothing
to check: if that cannot be told from the others, nothing can be seen here.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence

from loadtest.hostile.stage import OTHERS, Stage, drop
from loadtest.nodes.outcome import Outcome, say
from loadtest.security.credentials import Issuer, login, spoilt
from loadtest.security.guarded import Guarded
from loadtest.security.samples import Spread, holm, mann_whitney
from protocol import Code, Kind

P_MIN = 0.01
UNKNOWN, KNOWN, CONTROL = "unknown user", "bad token", "no token"
PREPARED = 500  # tokens of each kind; they are used by turns
SEED = 11
ANSWER_BYTES = 4096

Ways = Mapping[str, Sequence[bytes]]


def ways(issuer: Issuer, online: Sequence[str]) -> Ways:
    """Return the logins of each way to be refused; who is `online` is known to the server."""
    known = [online[number % len(online)] for number in range(PREPARED)]
    unknown = [f"nobody-{number}" for number in range(PREPARED)]
    # Names of one length, in turn: nothing else is to differ.
    unknown = [name[: len(uid)].ljust(len(uid), "x") for name, uid in zip(unknown, known, strict=True)]
    return {
        UNKNOWN: [login(uid, spoilt(issuer.token(uid))) for uid in unknown],
        KNOWN: [login(uid, spoilt(issuer.token(uid))) for uid in known],
        "another user's": [
            login(uid, issuer.token(other)) for uid, other in zip(known, unknown, strict=True)
        ],
        "expired": [login(uid, issuer.token(uid, exp=int(time.time()) - 60)) for uid in known],
        CONTROL: [login(uid, None) for uid in known],
    }


def timing(on: Guarded, tries: int) -> Outcome:
    """Try each way so often."""
    online = [on.stage.others.uid(number) for number in range(OTHERS)]
    every = ways(on.issuers[0], online)
    chance = random.Random(SEED)
    times: dict[str, list[float]] = {way: [] for way in every}
    order = [way for way in every for _ in range(tries)]
    chance.shuffle(order)
    wrong = 0
    for number, way in enumerate(order):
        took_s, code = try_once(on.stage, every[way][number % PREPARED])
        wrong += code != Code.AUTH_FAILED
        times[way].append(took_s)
        if number % 10_000 == 0:
            say(f"try {number:,} of {len(order):,}")
    return judge(times, wrong, on.stage.others_hurt())


def try_once(stage: Stage, frame: bytes, clock: Callable[[], float] = time.perf_counter) -> tuple[float, int]:
    """Log in; return the seconds until the first byte of the answer, and its code."""
    client = stage.connect()
    begun = clock()
    client.sendall(frame)
    data = client.recv(ANSWER_BYTES)
    took_s = clock() - begun
    drop(client)
    is_error = len(data) > 5 and data[5] == Kind.ERROR
    return took_s, _code(data) if is_error else 0


def _code(data: bytes) -> int:
    # `["code"]` is the first of the payload: 0xa4 "code" 0xcd and two bytes.
    at = data.find(b"\xa4code\xcd")
    return int.from_bytes(data[at + 6 : at + 8], "big") if at > 0 else 0


def judge(times: Mapping[str, Sequence[float]], wrong: int, broken: list[str]) -> Outcome:
    """Compare each way with a bad token; the promise is about the user whom nobody knows."""
    bad = times[KNOWN]
    found = {way: mann_whitney(sample, bad) for way, sample in times.items() if way != KNOWN}
    promised, control = found[UNKNOWN], found.pop(CONTROL)
    if promised.p < P_MIN:
        broken.append(f"an unknown user is told from a bad token: p {promised.p:.2g}")
    if wrong:
        broken.append(f"{wrong} tries were not refused with 303")
    others = {way: each for way, each in found.items() if way != UNKNOWN}
    smallest = holm([each.p for each in others.values()])
    told = "; ".join(f"{way} p {each.p:.3g}, effect {each.effect:.3f}" for way, each in others.items())
    medians = ", ".join(f"{way} {Spread.of(sample).p50 * 1e6:.0f}" for way, sample in times.items())
    measured = (
        f"Mann-Whitney: {UNKNOWN} against {KNOWN} p {promised.p:.3g}, effect {promised.effect:.3f}; {told} "
        f"(the smallest of these {len(others)}, after Holm: {smallest:.3g}); "
        f"control, {CONTROL}: p {control.p:.2g}; medians in µs: {medians}"
    )
    seen = f"{len(bad):,} tries of each of {len(times)} ways to be refused" if control.p < P_MIN else ""
    return Outcome("timing", seen, measured, broken)
