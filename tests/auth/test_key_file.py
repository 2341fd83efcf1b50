"""The key file: what is refused, and what the error message shows and hides."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from presence.auth.key_file import MAX_FILE_BYTES, MAX_KEYS, load
from presence.auth.signing_keys import KeySetError
from presence.auth.token_signer import key_set, public_entry
from tests.auth.gates import ALGORITHMS, entry

CANARY = "canary-canary-canary-canary-canary-canary-x"
GOOD = {"kty": "oct", "kid": "a", "alg": "HS256", "k": CANARY}


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys.json"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


def complaint(path: Path) -> str:
    """Return the error about a file, which always names it and never shows a secret."""
    with pytest.raises(KeySetError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert CANARY[:8] not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"alg": each}, "alg must be one of") for each in ("none", "HS512", ["HS256"])),
        ({"alg": None}, "key 'a': alg must be one of HS256, RS256, ES256, EdDSA"),
        ({"alg": "RS256"}, "key 'a': kty must be RSA with alg RS256"),
        ({"kty": "RSA"}, "kty must be oct with alg HS256"),
        *(({"kid": each}, "kid must be") for each in (7, "k" * 65, "a\n", "\ud800")),
        *(({"kid": each}, "key 2 of the list: kid must be") for each in (None, "")),
        ({"kid": "first"}, "key 'first': another key has this kid"),
        ({"use": "enc"}, "use must be sig"),
        *(({"k": each}, "k must be text in base64url") for each in (None, f"{CANARY}==")),
        *(({"k": each}, "k must be 32 to 1,024 bytes long") for each in (CANARY[:-5], CANARY * 40)),
        ({"k": "canary-canary-canary-canary-canary-canary-xyz"}, "its k is not as RFC 7518 has it"),
    ],
)
def test_an_invalid_key_is_refused_and_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    changed = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    assert message in complaint(written(tmp_path, key_set([{**GOOD, "kid": "first"}, changed])))


@pytest.mark.parametrize(
    ("alg", "change", "message"),
    [
        ("ES256", {"crv": "P-384"}, "crv must be P-256"),
        ("ES256", {"crv": "secp256k1"}, "crv must be P-256"),
        ("ES256", {"y": "AAAA"}, "its crv or x or y is not as RFC 7518 has it"),
        ("ES256", {"y": entry("ES256")["x"]}, "its crv or x or y is not as RFC 7518 has it"),
        ("EdDSA", {"crv": "Ed448"}, "crv must be Ed25519"),
        ("EdDSA", {"x": "AAAA"}, "its crv or x is not as RFC 7518 has it"),
        ("EdDSA", {"kty": "RSA"}, "kty must be OKP with alg EdDSA"),
        ("RS256", {"n": ""}, "n must be text in base64url"),
        ("RS256", {"e": "AQ"}, "its n or e is not as RFC 7518 has it"),
        ("RS256", {"n": "4" * 171}, "n must have 2048 to 3072 bits"),
        ("RS256", {"n": "4" * 683}, "n must have 2048 to 3072 bits"),
    ],
)
def test_an_invalid_public_key_is_refused(
    tmp_path: Path, alg: str, change: dict[str, Any], message: str
) -> None:
    text = key_set([{**public_entry(entry(alg)), **change}])
    assert f"key 'key-{alg}': {message}" in complaint(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "is not valid JSON") for text in ("", CANARY, '{"keys": [' + "[" * 100_000)),
        *((text, "must be a JSON Web Key Set") for text in ("[]", '{"keys": {}}', json.dumps(GOOD))),
        ('{"keys": []}', "holds no key"),
        ('{"keys": ["a"]}', "key 1 of the list: must be an object"),
        (key_set([{**GOOD, "kid": f"{n}"} for n in range(MAX_KEYS + 1)]), "holds more than 100 keys"),
        (" " * (MAX_FILE_BYTES + 1), "is larger than 262,144 bytes"),
    ],
)
def test_a_file_that_is_no_key_set_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in complaint(written(tmp_path, text))


@pytest.mark.parametrize("place", ["nowhere.json", ".", "fifo"])
def test_an_unreadable_file_is_named_immediately(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "cannot be read" in complaint(tmp_path / place)


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_secrets_must_not_be_readable_by_others(tmp_path: Path, alg: str) -> None:
    text = key_set([entry(alg)])
    for mode in (0o604, 0o644, 0o666):
        assert "chmod o-rwx" in complaint(written(tmp_path, text, mode))
    for mode in (0o400, 0o600, 0o640, 0o660):
        (tmp_path / "keys.json").unlink()
        assert load(written(tmp_path, text, mode)).kids == {f"key-{alg}"}


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
def test_public_keys_may_be_readable_but_not_writable_by_others(tmp_path: Path, alg: str) -> None:
    text = key_set([public_entry(entry(alg))])
    assert len(load(written(tmp_path, text, 0o644))) == 1
    assert "world-writable" in complaint(written(tmp_path, text, 0o646))
