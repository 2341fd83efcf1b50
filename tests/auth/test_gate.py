"""The gate: who gets in, one answer for everybody else, and what that costs."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter, time

import pytest
from jwt.utils import base64url_encode

from presence.auth.gate import HOLDING_SHARE, from_settings
from presence.auth.key_file import KeyFileError
from presence.auth.keys import Key, Keyring
from presence.auth.making import key_set
from presence.auth.verdicts import Denied, Granted
from presence.clock import Clock
from presence.settings import Settings
from protocol import Code
from tests.auth.gates import ADDRESS, ALGORITHMS, WALL, Gated, entry, keyring, signer, token

BAD = [
    "x",
    token()[:-8] + "AAAAAAAA",
    token(exp=1),
    token(aud="other"),
    token("bob"),
    token(alg="EdDSA").replace(token(alg="EdDSA").split(".")[0], token().split(".")[0]),
    signer("HS256").token("ann", audience="presence", now=1, ttl_s=1),
]


@pytest.mark.parametrize("uid", ["ann", None])
@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_good_token_lets_its_bearer_in(alg: str, uid: str | None) -> None:
    assert Gated().login(token(alg=alg), uid) == Granted("ann", 50.0 + 60.0)


def test_a_token_is_good_until_its_end() -> None:
    gated = Gated()
    gated.now += 40
    assert gated.login(token()) == Granted("ann", 50.0 + 60.0)
    gated.now += 20
    assert gated.refused(token()).code is Code.AUTH_FAILED


@pytest.mark.parametrize("slept_s", [3600.0, -3600.0])
def test_a_token_is_judged_by_the_machines_clock_of_that_moment(slept_s: float) -> None:
    """Which was set since the start, or went on while the machine slept and monotonic time stood still."""
    gated = Gated()
    gated.step_s = slept_s
    made = WALL + slept_s
    fresh = token(exp=made + 60, nbf=made)
    assert gated.login(fresh) == Granted("ann", 50.0 + 60.0)
    assert gated.renewal(fresh) == Granted("ann", 50.0 + 60.0)
    for dead in (token(exp=made), token(exp=made + 60, nbf=made + 1)):
        assert gated.refused(dead).code is Code.AUTH_FAILED
        assert isinstance(gated.renewal(dead), Denied)
    assert gated.gate.statistics().refused == {"expired": 1, "not_yet": 1}


@pytest.mark.parametrize("bad", BAD)
def test_every_refusal_is_the_same(bad: object) -> None:
    assert Gated().refused(bad, "ann") == Gated().refused("no token at all")


def test_a_login_without_a_token_is_told_so() -> None:
    missing, bad = Gated().refused(None), Gated().refused("x")
    assert missing.message.startswith("no token was given")
    assert (missing.code, missing.hold_s) == (bad.code, bad.hold_s)


def test_another_users_token_is_refused() -> None:
    gated = Gated()
    assert gated.refused(token("bob"), "ann").code is Code.AUTH_FAILED
    assert gated.gate.statistics().refused == {"other_uid": 1}


def test_a_key_that_is_not_there_costs_what_one_that_is_does() -> None:
    """Of the two refusals neither is quicker: the medians of many, taken by turns."""
    wrong = token(alg="EdDSA")[:-8] + "AAAAAAAA"
    stranger = wrong.replace(wrong.split(".")[0], _header("EdDSA", "no-EdDSA!"))
    gated = Gated(delay_s=0.0)
    times: dict[str, list[float]] = {wrong: [], stranger: []}
    for _ in range(300):
        for text, taken in times.items():
            begun = perf_counter()
            gated.refused(text)
            taken.append(perf_counter() - begun)
    assert gated.gate.statistics().refused == {"signature": 300, "unknown_key": 300}
    ratio = median(times[stranger]) / median(times[wrong])
    assert 0.5 < ratio < 2.0, "without the decoy it is a tenth"


def test_a_decoy_never_lets_anybody_in() -> None:
    """Even if it opened a token."""
    gated = Gated()
    ring = keyring(entry("HS256", "real"))
    gated.gate.keyring = ring
    ring._decoys["HS256"] = Key("", "HS256", entry("HS256"))
    assert gated.refused(token()).code is Code.AUTH_FAILED
    assert gated.gate.statistics().refused == {"unknown_key": 1}


def test_who_guesses_is_answered_late_and_a_good_token_is_not() -> None:
    gated = Gated(burst=2)
    assert [gated.refused(None, "ann").hold_s for _ in range(5)] == [0, 0, 1, 2, 3]
    assert gated.login(token()) == Granted("ann", 110.0)
    assert gated.refused(None, "bob", "192.0.2.2").hold_s == 0, "another address, another user"
    assert gated.refused(None, "ann", "192.0.2.2").hold_s == 3, "the same user"
    assert gated.refused(None, "bob").hold_s == 3, "the same address"


def test_without_a_uid_the_user_whom_the_token_names_is_guarded() -> None:
    gated = Gated(burst=2)
    forged = token()[:-8] + "AAAAAAAA"
    holds = [gated.refused(forged, None, f"192.0.2.{number}").hold_s for number in range(4)]
    assert holds == [0, 0, 1, 2]


def test_a_renewal_moves_the_end_and_its_refusal_is_never_held() -> None:
    gated = Gated(burst=1)
    gated.now += 30
    assert gated.renewal(token(ttl_s=90)) == Granted("ann", 50.0 + 90)
    for bad in (token("bob"), "x", token(exp=1)) * 5:
        assert gated.renewal(bad) == Denied(Code.AUTH_FAILED, gated.refused("x", None, "").message)
    figures = gated.gate.statistics()
    assert figures.renewed == 1
    assert figures.renewals_refused == {"other_uid": 5, "malformed": 5, "expired": 5}


def test_beyond_the_budget_nothing_is_checked() -> None:
    gated = Gated(share=0.01, ring=dear(0.5))
    bad = token()[:-8] + "AAAAAAAA"
    while (verdict := gated.refused(bad)).code is Code.AUTH_FAILED:
        pass
    assert verdict.code is Code.BUSY
    assert verdict.retry_after is not None
    assert verdict.retry_after >= 1.0
    assert verdict.hold_s == 0.0
    assert gated.refused(token()).code is Code.BUSY, "a good one neither"
    assert gated.renewal(token()) == Granted("ann", 110.0), "who is logged in is"
    assert gated.gate.statistics().unchecked == 2


def test_a_flood_of_forgeries_from_some_addresses_leaves_time_for_others() -> None:
    gated = Gated(share=0.01, burst=2, ring=dear(0.1))
    for _ in range(100):
        gated.refused(token()[:-8] + "AAAAAAAA", "bob")
    assert gated.refused(token("bob"), "bob").code is Code.BUSY
    assert gated.login(token(), None, "192.0.2.2") == Granted("ann", 110.0)


def test_what_is_no_token_costs_nothing() -> None:
    gated = Gated(share=0.01, ring=dear(1.0))
    for _ in range(100):
        assert gated.refused("x").code is Code.AUTH_FAILED
    assert gated.login(token(), None, "192.0.2.2") == Granted("ann", 110.0)


def test_fresh_keys_count_from_the_next_token_on() -> None:
    gated = Gated()
    gated.gate.keyring = keyring(entry("HS256", "next"))
    assert gated.refused(token()).code is Code.AUTH_FAILED
    assert gated.gate.statistics().keys == 1


def test_the_settings_say_whether_there_is_a_gate(tmp_path: Path) -> None:
    clock = Clock()
    assert from_settings(Settings(), clock, time, 100) is None
    path = tmp_path / "keys.json"
    path.write_text(key_set([entry("HS256")]))
    path.chmod(0o600)
    settings = Settings(token_keys=path, token_audience="app", token_leeway=10.0, guess_burst=1)
    gate = from_settings(settings, clock, time, 2 * HOLDING_SHARE)
    assert gate is not None
    now = clock.now()
    good = signer("HS256").token("ann", audience="app", now=time() - 65, ttl_s=60)
    assert isinstance(gate.login(good, None, ADDRESS, now), Granted)
    for _ in range(10):
        gate.login(None, None, ADDRESS, now)
    assert gate.statistics().guesses.held == 2
    os.truncate(path, 10)
    with pytest.raises(KeyFileError):
        from_settings(settings, clock, time, 100)


def test_the_figures_are_plain_data_without_secrets() -> None:
    gated = Gated()
    gated.login(token())
    gated.refused(token("bob"), "ann")
    text = json.dumps(asdict(gated.gate.statistics()))
    assert token().split(".")[2] not in text
    assert entry("HS256")["k"] not in text


def dear(cost_s: float) -> Keyring:
    """Return a key whose checks are said to cost so much."""
    ring = keyring(entry("HS256"))
    for key in (*ring._keys.values(), *ring._decoys.values()):
        key.cost_s = cost_s
    return ring


def _header(alg: str, kid: str) -> str:
    return base64url_encode(json.dumps({"alg": alg, "kid": kid, "typ": "JWT"}).encode()).decode()
