"""Keys: one algorithm each, a decoy for whoever names another, and a cost that is measured."""

import pytest

from presence.auth.keys import SignatureRefused
from tests.auth.gates import ALGORITHMS, entry, every_key, keyring, token


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_key_opens_what_it_has_signed(alg: str) -> None:
    key, is_known = every_key().find(f"key-{alg}", alg)
    assert key is not None
    assert is_known
    assert b'"sub":"ann"' in key.open(token(alg=alg))


@pytest.mark.parametrize("alg", ALGORITHMS)
@pytest.mark.parametrize("other", ALGORITHMS)
def test_a_key_opens_nothing_else(alg: str, other: str) -> None:
    key, is_known = keyring(entry(alg, "another"), entry(other)).find("another", alg)
    assert key is not None
    assert is_known
    with pytest.raises(SignatureRefused):
        key.open(token(alg=other))


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_who_names_no_key_gets_a_decoy_of_the_same_algorithm_and_cost(alg: str) -> None:
    known, _ = every_key().find(f"key-{alg}", alg)
    decoy, is_known = every_key().find("nobody", alg)
    assert known is not None
    assert decoy is not None
    assert not is_known
    assert (decoy.alg, decoy.bits, decoy.cost_s) == (known.alg, known.bits, known.cost_s)
    with pytest.raises(SignatureRefused):
        decoy.open(token(alg=alg))


def test_a_key_is_not_found_by_its_name_and_another_algorithm() -> None:
    found = [every_key().find(f"key-{alg}", other) for alg in ALGORITHMS for other in ALGORITHMS]
    assert sum(is_known for _, is_known in found) == len(ALGORITHMS)


def test_an_algorithm_that_no_key_has_has_no_decoy() -> None:
    assert keyring(entry("HS256")).find("key-HS256", "EdDSA") == (None, False)
    assert every_key().find("key-HS256", "HS512") == (None, False)
    assert every_key().find("key-HS256", "none") == (None, False)


def test_two_decoys_of_a_file_differ_each_time() -> None:
    first, _ = keyring(entry("HS256")).find("nobody", "HS256")
    second, _ = keyring(entry("HS256")).find("nobody", "HS256")
    assert first is not None
    assert second is not None
    assert first._jwk.key != second._jwk.key


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_check_is_measured_by_a_token_that_is_checked_to_its_end(alg: str) -> None:
    ring = keyring(entry(alg), entry("HS256", "cheap"))
    key, _ = ring.find(f"key-{alg}", alg)
    assert key is not None
    ticks = iter(range(100))
    key.measure(lambda: float(next(ticks)))
    assert key.cost_s == 1.0
    key.measure()
    assert 0.0 < key.cost_s < 0.1
    # Ed25519 costs many times what HS256 does; a sample that is refused by its form would cost the same.
    if alg == "EdDSA":
        cheap, _ = ring.find("cheap", "HS256")
        assert cheap is not None
        cheap.measure()
        assert key.cost_s > 1.5 * cheap.cost_s


def test_nothing_prints_a_secret() -> None:
    key, _ = every_key().find("key-HS256", "HS256")
    secret = entry("HS256")["k"]
    assert repr(key) == "Key('key-HS256', 'HS256')"
    assert secret not in repr(every_key()) + repr(vars(every_key()))
