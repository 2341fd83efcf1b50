"""The authenticator: valid tokens, one answer to all others, and the budget of checks."""

import pytest

from presence.auth.signing_keys import Keyring
from presence.auth.token_authenticator import BAD_TOKENS_BURST, BURST_S, CallerTrust, budget_of
from presence.common.rate_limit import TokenBucket
from presence.core.authenticator import Granted, Refusal
from presence.protocol import Code
from tests.auth.gates import ALGORITHMS, WALL, TimedAuthenticator, entry, keyring, signer, token

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
def test_a_valid_token_is_granted(alg: str, uid: str | None) -> None:
    assert TimedAuthenticator().login(token(alg=alg), uid) == Granted("ann", 50.0 + 60.0)


@pytest.mark.parametrize("slept_s", [3600.0, -3600.0])
def test_a_token_is_judged_by_the_current_system_time(slept_s: float) -> None:
    """It was set since the start, or continued while the machine slept and monotonic time stood still."""
    timed = TimedAuthenticator()
    timed.step_s = slept_s
    made = WALL + slept_s
    fresh = token(exp=made + 60, nbf=made)
    assert timed.login(fresh) == Granted("ann", 50.0 + 60.0)
    assert timed.renewal(fresh) == Granted("ann", 50.0 + 60.0)
    for dead in (token(exp=made), token(exp=made + 60, nbf=made + 1)):
        assert timed.refused(dead).code is Code.AUTH_FAILED
        assert isinstance(timed.renewal(dead), Refusal)
    assert timed.authenticator.statistics().refused == {"expired": 1, "not_yet": 1}


@pytest.mark.parametrize("bad", BAD)
def test_every_refusal_is_the_same(bad: object) -> None:
    missing, refusal = TimedAuthenticator().refused(None), TimedAuthenticator().refused("no token at all")
    assert TimedAuthenticator().refused(bad, "ann") == refusal
    assert missing.message.startswith("no token was given")
    assert missing.code is refusal.code is Code.AUTH_FAILED


def test_a_renewal_extends_the_expiry() -> None:
    timed = TimedAuthenticator()
    timed.now += 30
    assert timed.renewal(token(ttl_s=90)) == Granted("ann", 50.0 + 90)
    for bad in (token("bob"), "x", token(exp=1)) * 5:
        assert timed.renewal(bad) == Refusal(Code.AUTH_FAILED, timed.refused("x", None, "").message)
    figures = timed.authenticator.statistics()
    assert figures.renewed == 1
    assert figures.renewals_refused == {"other_uid": 5, "malformed": 5, "expired": 5}


def test_beyond_the_budget_no_token_is_checked() -> None:
    timed = TimedAuthenticator(share=0.01, ring=costly(0.5))
    bad = token()[:-8] + "AAAAAAAA"
    while (result := timed.refused(bad)).code is Code.AUTH_FAILED:
        pass
    assert result.code is Code.BUSY
    assert result.retry_after is not None
    assert result.retry_after >= 1.0
    assert timed.refused(token()).code is Code.BUSY, "not even a valid one"
    assert timed.renewal(token()) == Granted("ann", 110.0), "renewals of connected clients are"
    assert timed.authenticator.statistics().unchecked == 2


def test_forgeries_from_some_addresses_leave_budget_for_others() -> None:
    timed = TimedAuthenticator(share=0.01, ring=costly(0.06))
    for _ in range(100):
        timed.refused(token()[:-8] + "AAAAAAAA", "bob")
    assert timed.refused(token("bob"), "bob").code is Code.BUSY
    assert timed.login(token(), None, "192.0.2.2") == Granted("ann", 110.0)
    assert timed.authenticator.statistics().addresses_kept == 1
    timed.now += 3 * BAD_TOKENS_BURST
    assert timed.login(token(exp=WALL + 300)) == Granted("ann", 50.0 + 300.0), "the address is forgiven"


COST_S = 0.001


def spend(budget: TokenBucket, caller: CallerTrust, now: float) -> int:
    """Return how many checks a caller gets at a time."""
    count = 0
    while budget.take(now, COST_S, reserve=BURST_S * caller.value):
        count += 1
    return count


@pytest.mark.parametrize("caller", CallerTrust)
def test_each_trust_level_has_its_share_of_the_burst_and_of_the_cpu(caller: CallerTrust) -> None:
    budget = budget_of(0.25, 0.0)
    assert spend(budget, caller, 0.0) == pytest.approx(BURST_S * (1 - caller.value) / COST_S, abs=2)
    granted = sum(spend(budget, caller, now / 10) for now in range(1, 1001))
    assert granted * COST_S == pytest.approx(0.25 * 100, rel=0.01)


@pytest.mark.parametrize(
    ("caller", "flood"),
    [
        (CallerTrust.CONNECTED, (CallerTrust.SUSPECT, CallerTrust.PASS, CallerTrust.ANONYMOUS)),
        (CallerTrust.ANONYMOUS, (CallerTrust.SUSPECT, CallerTrust.PASS)),
        (CallerTrust.PASS, (CallerTrust.SUSPECT,)),
    ],
)
def test_a_more_trusted_caller_is_checked_despite_a_flood(
    caller: CallerTrust, flood: tuple[CallerTrust, ...]
) -> None:
    budget = budget_of(0.5, 0.0)
    checked = 0
    for now in range(100):
        for each in flood:
            spend(budget, each, float(now))
        reserve = BURST_S * caller.value
        checked += sum(budget.take(now + 0.5, COST_S, reserve=reserve) for _ in range(400))
    assert checked == 100 * 400


def test_passes_leave_budget_for_logins_and_renewals() -> None:
    timed = TimedAuthenticator(share=0.01, ring=costly(0.1))
    bad = token("bob")
    while (result := timed.check_pass(bad)) != timed.refused("x"):
        assert isinstance(result, Refusal)
        if result.code is Code.BUSY:
            break
    assert timed.login(token(), None, "192.0.2.2") == Granted("ann", 110.0)


def test_fresh_tokens_of_one_user_leave_budget_for_those_of_others() -> None:
    timed = TimedAuthenticator(share=0.01, ring=costly(0.05))
    for _ in range(1000):
        timed.renewal(token()[:-8] + "AAAAAAAA", "bob")
    assert timed.login(token(), None, "192.0.2.2") == Granted("ann", 110.0)
    assert timed.renewal(token()) == Granted("ann", 110.0)


def test_malformed_tokens_cost_no_budget() -> None:
    timed = TimedAuthenticator(share=0.01, ring=costly(1.0))
    for _ in range(100):
        assert timed.refused("x").code is Code.AUTH_FAILED
    assert timed.login(token(), None, "192.0.2.2") == Granted("ann", 110.0)


def costly(cost_s: float) -> Keyring:
    """Return a key whose checks have this declared cost."""
    ring = keyring(entry("HS256"))
    for key in ring._keys.values():
        key.cost_s = cost_s
    return ring
