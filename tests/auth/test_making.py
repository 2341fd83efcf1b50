"""Keys and tokens as an issuer makes them."""

import json

import pytest

from presence.auth.keys import Unsound
from presence.auth.making import CannotSign, Signer, make_key, make_token, public_part
from tests.auth.gates import ALGORITHMS, entry, keyring


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_no_two_keys_are_the_same(alg: str) -> None:
    first, second = make_key("a", alg), make_key("a", alg)
    members = {"kid", "alg", "kty", "crv", "e"}
    assert all(first[name] != second[name] for name in first.keys() - members)
    assert first.keys() - members


@pytest.mark.parametrize("alg", ["RS256", "EdDSA"])
def test_the_public_part_checks_and_cannot_sign(alg: str) -> None:
    public = public_part(entry(alg))
    token = make_token(entry(alg), "ann", audience="presence", now=0, ttl_s=1)
    key = keyring(public).find(f"key-{alg}", alg)
    assert key is not None
    assert b'"ann"' in key.open(token)
    assert public.keys() == {"kid", "alg", "kty", *({"n", "e"} if alg == "RS256" else {"crv", "x"})}
    with pytest.raises(CannotSign):
        Signer(public)


def test_a_name_that_is_none_makes_no_key() -> None:
    for kid in ("", "k" * 65, "a\n"):
        with pytest.raises(Unsound):
            make_key(kid, "HS256")


def test_a_private_part_that_is_not_sound_is_refused_and_not_shown() -> None:
    with pytest.raises(Unsound) as caught:
        Signer({**entry("RS256"), "d": "canary"})
    assert "canary" not in str(caught.value)


def test_a_token_that_the_protocol_does_not_take_is_not_made() -> None:
    with pytest.raises(CannotSign, match="takes 768"):
        make_token(entry("HS256"), "ann", audience="a" * 600, now=0, ttl_s=1)


def test_a_time_to_live_is_rounded_up() -> None:
    token = make_token(entry("HS256"), "ann", audience="presence", now=10.9, ttl_s=0.1)
    key = keyring(entry("HS256")).find("key-HS256", "HS256")
    assert key is not None
    said = json.loads(key.open(token))
    assert (said["iat"], said["exp"]) == (10, 11)
