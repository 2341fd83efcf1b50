"""Tokens that somebody has tampered with, shown to a running server."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import msgpack

import protocol
from loadtest.client_loop import LOGIN_ID
from loadtest.outcome import Outcome, faults
from loadtest.security.credentials import Issuer, login
from loadtest.security.mutations import mutations
from loadtest.security.stage import UNBOUNDED, Stage, staged
from protocol import Code, Kind

ALGORITHMS = ("HS256", "RS256", "EdDSA")
UID = "ann"
GOOD_EVERY = 100  # tries: in between a good token is taken, or nothing was shown
SEED = 7


@dataclass
class Tries:
    """What came of tampered tokens, by what was changed.

    Attributes:
        refused, accepted: by the kind of change.
        good: untouched tokens, in between, that were taken.
        words: what refusals said.
        as_another: what logins with another user's good token were answered: codes, 0 if they were granted.
    """

    refused: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    good: int = 0
    words: set[str] = field(default_factory=set)
    as_another: set[int] = field(default_factory=set)


def tampered(issuers: Sequence[Issuer], count: int) -> Iterator[tuple[str, str]]:
    """Return what was changed, and the token, of each issuer in turn."""
    entries = [issuer.entry for issuer in issuers]
    turns = [mutations(entry, UID, seed=SEED + n, others=entries) for n, entry in enumerate(entries)]
    return islice(chain.from_iterable(zip(*turns, strict=True)), count)


def try_all(stage: Stage, count: int) -> Tries:
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
        if number % GOOD_EVERY == 0:
            issuer = stage.issuers[number // GOOD_EVERY % len(stage.issuers)]
            tries.good += stage.answer(issuer.login(f"good-{number}")).kind == Kind.OK
    answers = [stage.answer(login("mallory", issuer.token(UID))) for issuer in stage.issuers]
    tries.as_another = {answer.payload.get("code", 0) for answer in answers}
    return tries


def tokens(count: int) -> Outcome:
    """Log in with so many tokens that were tampered with; none is taken, all are refused alike."""
    with staged(*UNBOUNDED, algorithms=ALGORITHMS) as stage:
        return judge_tokens(try_all(stage, count), stage.others_hurt())


def judge_tokens(tries: Tries, hurt: list[str]) -> Outcome:
    """Hold what came of them against what is promised."""
    accepted, words = tries.accepted, tries.words
    tried = tries.refused.total() + accepted.total()
    broken = hurt + faults(
        (accepted, f"{accepted.total()} tampered tokens were taken: {dict(accepted)}"),
        (len(words) > 1, f"refusals differ: {sorted(words)[:3]}"),
        (
            tries.as_another != {Code.AUTH_FAILED},
            f"a login with another user's token was answered {tries.as_another}",
        ),
    )
    measured = f"accepted {accepted.total()} of {tried:,}; wordings of refusals {len(words)}"
    is_shown = tried and tries.good >= tried // GOOD_EVERY
    return Outcome("tokens", f"{tried:,} tampered tokens" if is_shown else "", measured, broken)
