"""Changed tokens: none is accepted, all are refused alike; and the changes are realistic."""

import base64
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

import pytest

from presence.auth import tokens
from presence.auth.keys import Key
from presence.core.authenticator import Granted
from tests.auth.gates import ALGORITHMS, WALL, TimedAuthenticator, entry, token
from tests.auth.mutations import mutations

RUNS = 3000
KINDS = {"signature", "alg", "kid", "aud", "exp", "sub", "header", "form", "character"}


def changed() -> Iterator[tuple[str, str]]:
    entries = [entry(alg) for alg in ALGORITHMS]
    each = [mutations(one, "ann", seed=11, others=entries, now=WALL) for one in entries]
    return islice(chain.from_iterable(zip(*each, strict=True)), RUNS)


def accepted(timed: TimedAuthenticator) -> Counter[str]:
    return Counter(kind for kind, text in changed() if isinstance(timed.login(text), Granted))


def test_no_changed_token_is_taken_and_all_are_refused_alike() -> None:
    timed = TimedAuthenticator()
    refusal = timed.refused("no token at all")
    kinds: Counter[str] = Counter()
    for kind, text in changed():
        assert timed.login(text, None if kinds[kind] % 2 else "ann") == refusal, (kind, text)
        kinds[kind] += 1
    assert isinstance(timed.login(token()), Granted), "good ones are"
    print(f"test_no_changed_token_is_taken: {RUNS} tries, {timed.authenticator.statistics().refused}")
    assert kinds.keys() == KINDS
    assert min(kinds.values()) > RUNS / 10


def test_without_the_check_of_signatures_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def blindly(_key: Key, text: str) -> bytes:
        return base64.urlsafe_b64decode(text.split(".")[1] + "==")

    timed = TimedAuthenticator()  # its keys are measured with the check that they have
    monkeypatch.setattr(Key, "verify", blindly)
    assert {"signature", "sub"} <= accepted(timed).keys()


def test_without_the_check_of_claims_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    good = tokens._claims

    def anybodys(claims: dict[str, object], terms: tokens.TokenRules, wall: float) -> tokens.Claims:
        return good({**claims, "aud": terms.audience, "exp": wall + 60}, terms, wall)

    monkeypatch.setattr(tokens, "_claims", anybodys)
    assert accepted(TimedAuthenticator()).keys() == {"aud", "exp"}


def test_without_the_rule_for_the_form_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_COMPACT", re.compile(f"{tokens._COMPACT.pattern}=*", re.ASCII))
    assert accepted(TimedAuthenticator()).keys() == {"form"}
