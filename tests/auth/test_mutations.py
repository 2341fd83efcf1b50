"""Changed tokens: all are refused with the same answer, and the changes are realistic."""

import base64
import re
from collections import Counter
from functools import cache
from itertools import chain, islice

import pytest

from presence.auth import tokens
from presence.auth.signing_keys import Key
from presence.core.authenticator import Granted
from tests.auth.gates import ALGORITHMS, WALL, TimedAuthenticator, entry, token
from tests.auth.mutations import mutations

RUNS = 3000
KINDS = {"signature", "alg", "kid", "aud", "exp", "sub", "header", "form", "character"}


@cache
def changed() -> list[tuple[str, str]]:
    entries = [entry(alg) for alg in ALGORITHMS]
    each = [mutations(one, "ann", seed=11, others=entries, now=WALL) for one in entries]
    return [*islice(chain.from_iterable(zip(*each, strict=True)), RUNS)]


def accepted(timed: TimedAuthenticator) -> Counter[str]:
    return Counter(kind for kind, text in changed()[: RUNS // 3] if isinstance(timed.login(text), Granted))


def test_every_changed_token_is_refused_with_the_same_answer() -> None:
    timed = TimedAuthenticator()
    refusal = timed.refused("no token at all")
    kinds: Counter[str] = Counter()
    for kind, text in changed():
        assert timed.login(text, None if kinds[kind] % 2 else "ann") == refusal, (kind, text)
        kinds[kind] += 1
    assert isinstance(timed.login(token()), Granted), "valid ones are accepted"
    print(f"test_no_changed_token_is_taken: {RUNS} tries, {timed.authenticator.statistics().refused}")
    assert kinds.keys() == KINDS
    assert min(kinds.values()) > RUNS / 10


def test_without_the_signature_check_they_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def blindly(_key: Key, text: str) -> bytes:
        return base64.urlsafe_b64decode(text.split(".")[1] + "==")

    timed = TimedAuthenticator()  # its keys are measured with their real check
    monkeypatch.setattr(Key, "verify", blindly)
    assert {"signature", "sub"} <= accepted(timed).keys()


def test_without_the_claims_check_they_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    good = tokens._claims

    def accept_all(claims: dict[str, object], terms: tokens.TokenRules, wall: float) -> tokens.Claims:
        return good({**claims, "aud": terms.audiences[0], "exp": wall + 60}, terms, wall)

    monkeypatch.setattr(tokens, "_claims", accept_all)
    assert accepted(TimedAuthenticator()).keys() == {"aud", "exp"}


def test_without_the_form_check_they_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_COMPACT", re.compile(f"{tokens._COMPACT.pattern}=*", re.ASCII))
    assert accepted(TimedAuthenticator()).keys() == {"form"}
