"""Keys: one algorithm each, and a cost that is measured."""

import pytest

from presence.auth.keys import SignatureRefused
from tests.auth.gates import ALGORITHMS, entry, every_key, keyring, token


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_key_opens_what_it_has_signed(alg: str) -> None:
    key = every_key().find(f"key-{alg}", alg)
    assert key is not None
    assert b'"sub":"ann"' in key.open(token(alg=alg))


@pytest.mark.parametrize("alg", ALGORITHMS)
@pytest.mark.parametrize("other", ALGORITHMS)
def test_a_key_opens_nothing_else(alg: str, other: str) -> None:
    key = keyring(entry(alg, "another"), entry(other)).find("another", alg)
    assert key is not None
    with pytest.raises(SignatureRefused):
        key.open(token(alg=other))


def test_a_key_is_found_by_its_name_and_its_own_algorithm_only() -> None:
    found = [every_key().find(f"key-{alg}", other) for alg in ALGORITHMS for other in (*ALGORITHMS, "none")]
    assert sum(key is not None for key in found) == len(ALGORITHMS)
    assert every_key().find("nobody", "HS256") is None


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_check_is_measured_by_a_token_that_is_checked_to_its_end(alg: str) -> None:
    ring = keyring(entry(alg), entry("HS256", "cheap"))
    key = ring.find(f"key-{alg}", alg)
    assert key is not None
    ticks = iter(range(100))
    key.measure(lambda: float(next(ticks)))
    assert key.cost_s == 1.0
    key.measure()
    assert 0.0 < key.cost_s < 0.1
    # Ed25519 costs many times what HS256 does; a sample that is refused by its form would cost the same.
    if alg == "EdDSA":
        cheap = ring.find("cheap", "HS256")
        assert cheap is not None
        cheap.measure()
        assert key.cost_s > 1.5 * cheap.cost_s


def test_nothing_prints_a_secret() -> None:
    key = every_key().find("key-HS256", "HS256")
    secret = entry("HS256")["k"]
    assert repr(key) == "Key('key-HS256', 'HS256')"
    assert secret not in repr(every_key()) + repr(vars(every_key()))
