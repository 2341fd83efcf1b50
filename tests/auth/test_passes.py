"""Passes: what is signed is what servers take."""

import math
import time
from pathlib import Path

import pytest

from presence.auth import token_signer, tokens
from presence.auth.key_file import load
from presence.auth.tokens import TokenRules
from presence.passes import CannotSign, PassIssuer
from presence.protocol import PASS_MAX_BYTES
from tests.support.odd_inputs import NAMES

SEEING = {what: name for what, name in NAMES.items() if not name.endswith("*")}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(token_signer.key_set([token_signer.make_key("k", "EdDSA")]))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("uid", SEEING.values(), ids=SEEING)
def test_a_pass_is_accepted_for_every_uid_that_may_see(keys: Path, uid: str) -> None:
    text = PassIssuer(keys).issue(uid, [uid, f"{uid[:20]}*"], ttl_s=60)
    token = tokens.parse(text, load(keys), PASS_MAX_BYTES)
    assert tokens.check(token, TokenRules(("presence",)).of_passes, time.time()).uid == uid


@pytest.mark.parametrize("ttl_s", [0, -60, math.nan, math.inf, 1e12])
def test_a_pass_for_no_time_or_beyond_the_year_9999_is_not_signed(keys: Path, ttl_s: float) -> None:
    with pytest.raises(CannotSign, match="more than 0 s"):
        PassIssuer(keys).issue("ann", ["bob"], ttl_s=ttl_s)


@pytest.mark.parametrize("uid", ["ann*", "*", "a b", "", "ann\ud800"])
def test_a_pass_for_a_uid_that_no_server_takes_is_not_signed(keys: Path, uid: str) -> None:
    with pytest.raises(ValueError, match="a pass is for a uid"):
        PassIssuer(keys).issue(uid, ["bob"], ttl_s=60)
