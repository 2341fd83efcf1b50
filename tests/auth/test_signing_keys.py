"""Keys and tokens of an issuer: one algorithm each, a measured cost, and no secret shown."""

import json

import pytest

from presence.auth.signing_keys import PUBLIC, InvalidKey, Key
from presence.auth.token_signer import CannotSign, Signer, make_key, make_token, public_entry
from tests.auth.gates import ALGORITHMS, entry, every_key, keyring


def key_of(alg: str, *entries: object, kid: str = "") -> Key:
    ring = keyring(*entries) if entries else every_key()  # type: ignore[arg-type]  # they are entries
    key = ring.find(kid or f"key-{alg}", alg)
    assert key is not None
    return key


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_the_cost_of_a_key_is_measured_with_a_complete_check(alg: str) -> None:
    key = key_of(alg, entry(alg))
    ticks = iter(range(100))
    key.measure(lambda: float(next(ticks)))
    assert key.cost_s == 1.0
    key.measure()
    assert 0.0 < key.cost_s < 0.1
    # ES256 and Ed25519 cost many times as much as HS256; samples refused for their form would cost the same.
    if alg in {"ES256", "EdDSA"}:
        cheap = key_of("HS256", entry("HS256"))
        cheap.measure()
        assert key.cost_s > 1.5 * cheap.cost_s


def test_no_representation_has_a_secret() -> None:
    assert repr(key_of("HS256")) == "Key('key-HS256', 'HS256')"
    assert entry("HS256")["k"] not in repr(every_key()) + repr(vars(every_key()))
    with pytest.raises(InvalidKey) as caught:
        Signer({**entry("RS256"), "d": "canary"})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_no_two_keys_are_the_same(alg: str) -> None:
    first, second = make_key("a", alg), make_key("a", alg)
    members = first.keys() - {"kid", "alg", "kty", "crv", "e"}
    assert members
    assert all(first[name] != second[name] for name in members)


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
def test_the_public_part_verifies_and_cannot_sign(alg: str) -> None:
    public = public_entry(entry(alg))
    token = make_token(entry(alg), "ann", audience="presence", now=0, ttl_s=1)
    assert b'"ann"' in key_of(alg, public).verify(token)
    assert public.keys() == {"kid", "alg", "kty", *PUBLIC[alg]}
    with pytest.raises(CannotSign):
        Signer(public)


@pytest.mark.parametrize("kid", ["", "k" * 65, "a\n"])
def test_an_invalid_kid_makes_no_key(kid: str) -> None:
    with pytest.raises(InvalidKey):
        make_key(kid, "HS256")


def test_a_lifetime_is_in_whole_seconds_and_within_the_protocols_limit() -> None:
    token = make_token(entry("HS256"), "ann", audience="presence", now=10.9, ttl_s=0.1)
    claims = json.loads(key_of("HS256").verify(token))
    assert (claims["iat"], claims["exp"]) == (10, 11)
    with pytest.raises(CannotSign, match="takes 768"):
        make_token(entry("HS256"), "ann", audience="a" * 600, now=0, ttl_s=1)
