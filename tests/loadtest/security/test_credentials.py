"""What issuers of the load test sign is good at the server's own gate, and what is spoilt is not."""

import stat
import time
from pathlib import Path

import pytest

from loadtest.security.credentials import Frames, Issuer, spoilt, write_certificate, write_keys
from presence.auth.gate import TokenGate, from_settings
from presence.auth.verdicts import Denied, Granted
from presence.clock import Clock
from presence.settings import Settings
from presence.transports.tls import Certificate


def gate_of(path: Path) -> TokenGate:
    gate = from_settings(Settings(token_keys=path), Clock(), time.time)
    assert gate is not None
    return gate


@pytest.mark.parametrize("alg", ["HS256", "RS256", "EdDSA"])
def test_a_token_is_good_until_it_is_spoilt(tmp_path: Path, alg: str) -> None:
    issuer = Issuer.fresh("key", alg)
    write_keys(tmp_path / "keys.json", [issuer])
    gate, clock = gate_of(tmp_path / "keys.json"), Clock()
    token = issuer.token("ann")
    assert isinstance(gate.login(token, "ann", "127.0.0.1", clock.now()), Granted)
    assert isinstance(gate.login(spoilt(token), "ann", "127.0.0.1", clock.now()), Denied)


def test_a_server_gets_no_private_part_that_it_does_not_need(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_keys(path, [Issuer.fresh("key", "EdDSA")])
    assert '"d"' not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_certificate_is_one_that_a_server_takes(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "one")
    first = cert.read_bytes()
    assert Certificate(cert, key).context
    write_certificate(tmp_path, "two")
    assert cert.read_bytes() != first


def test_frames_come_again_after_the_last() -> None:
    frames = Frames([b"a", b"b"])
    assert [frames(number) for number in range(3)] == [b"a", b"b", b"a"]
